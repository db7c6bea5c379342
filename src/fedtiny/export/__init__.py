"""What a user takes away: the tiny model in formats that others can run."""
