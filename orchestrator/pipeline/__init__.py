"""The input of an experiment, or a built-in pipeline with generated data, opened on this machine."""
