"""The process that writes a run's experiment trackers while it goes on."""
