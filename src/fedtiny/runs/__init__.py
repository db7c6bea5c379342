"""From a config to a run folder, and back after a stop."""
