"""The round, its messages, and the door between the server and its devices."""
