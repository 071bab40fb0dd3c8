"""The emulated network: namespaces, a user-space switch, and the model of delay and bandwidth."""
