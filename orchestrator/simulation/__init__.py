"""The controller's own core on a virtual clock: a simulated cloud, a model of peers, faults drawn from a seed."""
