"""Costs in dollars: the ledger, bills, budgets and the cost of preemptions."""
