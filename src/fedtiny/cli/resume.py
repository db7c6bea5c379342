"""fedtiny resume."""

from fedtiny.cli.arguments import run_folder
from fedtiny.runs.runner import resume


def command(arguments: list[str]) -> int:
    """Parse and resume."""
    resume(run_folder("resume", "Continue a run from its last checkpoint.", arguments))
    return 0
