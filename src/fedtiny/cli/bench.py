"""fedtiny bench: what measures lies in the repository's folder `benchmarks`."""

from fedtiny.extras import shipped_module


def command(arguments: list[str]) -> int:
    """Parse, measure and print."""
    code: int = shipped_module("benchmarks/device", "command").command(arguments)
    return code
