"""AWS accessed directly: what an account still holds, and the role of its VMs."""
