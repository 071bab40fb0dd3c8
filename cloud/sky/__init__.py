"""Real clouds, rented through SkyPilot: one SkyPilot cluster per VM. See docs/sky.md."""

from cloud.sky.provider import SkyCloud

__all__ = ["SkyCloud"]
