"""Real devices over Flower: a ServerApp, a ClientApp, and the transport between them.

This is the only place that imports flwr.
"""
