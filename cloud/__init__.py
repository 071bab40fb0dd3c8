"""What can be rented or emulated: providers, prices, networks, object storage. Imports no other package of orch."""
