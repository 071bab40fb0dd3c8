"""What is sent to a VM and run there: bootstrap script, wheel, sealed secrets, SSH commands."""
