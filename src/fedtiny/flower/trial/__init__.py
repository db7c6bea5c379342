"""A federation on this machine for a trial, and keys for one on many machines."""
