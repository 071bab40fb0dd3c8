"""Membership of the swarm: DHT node, allowlist, connections, clock, orders."""
