"""The parts of `benchmarks/robustness.py`."""
