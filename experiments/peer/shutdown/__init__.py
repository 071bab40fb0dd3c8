"""When and how a peer leaves: preemption notices, leases, deadlines."""
