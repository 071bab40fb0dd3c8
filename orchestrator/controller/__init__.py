"""The imperative shell around the core: a Ray actor, the journal, provider calls with deadlines."""
