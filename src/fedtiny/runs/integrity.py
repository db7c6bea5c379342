"""Whether a run folder still holds what the run needs to go on."""

from fedtiny.errors import FedTinyError, RunError
from fedtiny.files import read_json
from fedtiny.runs import metrics
from fedtiny.runs.folder import RunFolder, quoted
from fedtiny.runs.split import load_split


class IncompleteRunError(RunError):
    """A run that has lost what it needs to go on; `trouble` is without the way out."""

    def __init__(self, trouble: str, folder: RunFolder) -> None:
        super().__init__(
            f"{trouble}; put back a copy of it, or run its config again with: "
            f"fedtiny run {quoted(folder.config)}"
        )
        self.trouble = trouble


def require_complete(folder: RunFolder) -> None:
    """Refuse a run that has lost a file without which it cannot go on."""
    try:
        if folder.partition.exists():
            load_split(folder)
        if folder.checkpoint.exists():
            read_json(folder.selection)
        else:
            _refuse_to_forget(folder)
    except FedTinyError as error:
        raise IncompleteRunError(str(error), folder) from error


def _refuse_to_forget(folder: RunFolder) -> None:
    """A run begins again only where it had not come to its first checkpoint."""
    rounds = len(metrics.read(folder))
    if rounds:
        raise RunError(
            f"{folder.checkpoint} is missing, and with it what {rounds} rounds have trained"
        )
