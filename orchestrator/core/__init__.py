"""The controller's decisions as pure functions from events to instructions, without clocks, processes or sockets."""
