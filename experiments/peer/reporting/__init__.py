"""What a peer reports: epochs through the DHT, egress by destination, lost averaging parts."""
