"""What a training step really costs a device: time and memory, measured, not worked out."""
