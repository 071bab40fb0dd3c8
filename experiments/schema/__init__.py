"""Schema of the experiment file: the models, their field types, slots and shards."""
