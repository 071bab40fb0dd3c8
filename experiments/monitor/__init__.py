"""The DHT monitor: a client-mode Hivemind node that reads progress and epoch records once per second."""
