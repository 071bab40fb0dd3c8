"""What `benchmarks/robustness.py` is made of."""
