"""A two-stage profile of what offloading can save (SOPHON): measured, found again, and completed by options."""
