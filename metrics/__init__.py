"""What was measured: records, the run store, the DHT monitor, and pure functions from records to numbers."""
