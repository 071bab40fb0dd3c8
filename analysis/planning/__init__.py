"""Plans before a run: VMs, prices, budget reserve."""
