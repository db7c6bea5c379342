"""Federated training of tiny neural networks."""
