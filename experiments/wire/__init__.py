"""Formats exchanged between peers, monitor and controller: DHT records, signed orders and keys."""
