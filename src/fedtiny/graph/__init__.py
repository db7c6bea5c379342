"""A network as a graph of plain records: the one truth about its structure."""
