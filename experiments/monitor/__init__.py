"""The DHT monitor: a client-mode Hivemind node that scrapes progress and epoch records at 1 Hz."""
