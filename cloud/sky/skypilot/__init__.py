"""Interface to SkyPilot: its SDK, API server, errors, catalogs and configuration."""
