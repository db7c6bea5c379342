"""Masks, parameters under a mask, and everything that is done with them."""
