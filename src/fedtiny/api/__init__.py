"""What `import fedtiny` offers: running, what came of it, callbacks, and many runs at once."""
