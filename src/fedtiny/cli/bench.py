"""fedtiny bench: what measures lies in the repository's folder `benchmarks`."""

from fedtiny import shipped


def command(arguments: list[str]) -> int:
    """Parse, measure and print."""
    code: int = shipped.load("benchmarks/device", "command").command(arguments)
    return code
