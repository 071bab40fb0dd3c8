"""Direct access to AWS: the resources that an account still holds, and the role of its VMs."""
