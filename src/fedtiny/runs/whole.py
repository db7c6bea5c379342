"""Whether a run folder still holds what the run needs to go on."""

from fedtiny.errors import FedTinyError, RunError
from fedtiny.runs import metrics
from fedtiny.runs.folder import RunFolder, quoted, read_json
from fedtiny.runs.split import load_split


def require_whole(folder: RunFolder) -> None:
    """Refuse a run that has lost a file without which it cannot go on."""
    try:
        if folder.partition.exists():
            load_split(folder)
        if folder.checkpoint.exists():
            read_json(folder.selection)
        else:
            _refuse_to_forget(folder)
    except FedTinyError as error:
        raise RunError(f"{error}; {way_back(folder)}") from error


def _refuse_to_forget(folder: RunFolder) -> None:
    """A run begins again only where it had not come to its first checkpoint."""
    rounds = len(metrics.read(folder))
    if rounds:
        raise RunError(
            f"{folder.checkpoint} is missing, and with it what {rounds} rounds have trained"
        )


def way_back(folder: RunFolder) -> str:
    """What to do about a file without which a run cannot go on."""
    return (
        f"put back a copy of it, or run its config again with: fedtiny run {quoted(folder.config)}"
    )
