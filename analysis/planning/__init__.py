"""Plans before a run: VMs, prices and the budget reserve."""
