"""The controller's decisions as pure functions from events to instructions, without I/O or clocks."""
