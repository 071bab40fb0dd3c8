"""What is run: the experiment file's schema, the library of experiments, and the peer program."""
