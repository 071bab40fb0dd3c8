"""Measured networks between places (RTT, what one stream carries) as data files with sources."""
