"""What crosses the network between peers, monitor and controller: DHT records, signed orders, keys."""
