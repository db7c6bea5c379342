"""Where version 0.1.0 had `automatic`."""

from fedtiny.runs.reporter import automatic

__all__ = ["automatic"]
