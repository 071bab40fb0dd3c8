"""The emulated cloud: one network namespace per VM, one user-space switch, real processes."""
