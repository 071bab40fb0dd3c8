"""Study files: batches of experiments, what they are compared with, and the accepted differences."""
