"""Gradient averagers and the protocol that makes a round all-or-nothing."""
