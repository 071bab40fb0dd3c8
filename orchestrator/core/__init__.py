"""The controller's decisions as pure functions: events in, instructions out; no clock, process or socket."""
