"""What one device can lose by taking part: differential privacy of the replies."""
