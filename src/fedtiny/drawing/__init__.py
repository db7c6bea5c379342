"""Drawings: plain shapes on a canvas, plots made of them, and their writers (SVG and PNG)."""
