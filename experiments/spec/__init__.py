"""The experiment file: parse, validate, resolve into one frozen object, with errors that say where."""
