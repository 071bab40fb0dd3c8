"""Study files: which experiments run, what they are compared with, and the limits of agreement."""
