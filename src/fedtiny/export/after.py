"""The last lines of a run: the packed model that it leaves."""

from pathlib import Path

from rich.console import Console

from fedtiny.errors import FedTinyError
from fedtiny.export import packed
from fedtiny.export.source import pack_run
from fedtiny.models import Traced
from fedtiny.runs import formatting
from fedtiny.runs.folder import quoted


def tell_packed(run: Path, graph: Traced | None = None) -> None:
    """Write the packed model of a finished run and name it; without it the run is complete too.

    What tracing its network gave may be handed in.
    """
    console = Console(highlight=False, soft_wrap=True)
    try:
        path = pack_run(run, graph=graph)
    except FedTinyError as error:
        console.print(f"no packed model: {error}", markup=False)
        return
    size, dense = path.stat().st_size, packed.read(path).dense_bytes
    console.print(
        f"packed model: {path} ({formatting.size(size)}, {size / dense:.2%} of dense); "
        f"classify with: fedtiny predict {quoted(path)} IMAGE",
        markup=False,
    )
