"""What a replacement policy can reach on histories of spot capacity. Pure."""
