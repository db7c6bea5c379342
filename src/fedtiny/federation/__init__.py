"""The round, its messages, and the transport between the server and its devices."""
