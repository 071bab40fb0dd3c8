"""Dollars: the ledger, bills, budgets, and what preemptions cost."""
