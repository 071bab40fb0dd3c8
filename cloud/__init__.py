"""What can be rented or emulated: providers, prices, networks, object storage. Imports nothing of ours."""
