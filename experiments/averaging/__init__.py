"""Pure models of gradient averaging: bytes per peer and link, epoch time and round timeouts."""
