"""Reporting of a peer: epochs through the DHT, egress by destination, losses in averaging rounds."""
