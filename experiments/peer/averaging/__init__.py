"""Gradient averagers and the commit protocol that makes a round all-or-nothing."""
