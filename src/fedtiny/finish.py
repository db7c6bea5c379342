"""What a finished run leaves: each hook makes one thing and returns what to say of it."""

from collections.abc import Callable, Iterable
from functools import partial

from fedtiny.errors import FedTinyError
from fedtiny.export import packed
from fedtiny.export.source import pack_run
from fedtiny.process import Stopped, launch
from fedtiny.report.run import read
from fedtiny.report.write import write_page
from fedtiny.runs import formatting, reading
from fedtiny.runs.folder import RunFolder, quoted, way_on
from fedtiny.runs.runner import Outcome
from fedtiny.runs.tracking import seen_with


def finish(result: Outcome, *, report: bool = True, track: Iterable[str] = ()) -> None:
    """Call every hook and print its line; whatever happens, the run stays finished.

    Of several ranks, the first does it: it has the run folder.
    """
    if launch().rank:
        return
    hooks: dict[str, Callable[[], str]] = {"packed model": partial(_packed_model, result)}
    if report:  # which tells the size of the packed model
        hooks["report"] = partial(_report, result)
    hooks |= {name: partial(seen_with, name, result.path) for name in track}
    for name, hook in hooks.items():
        try:
            print(f"{name}: {hook()}")
        except Stopped as stopped:
            stopped.way_on = f"{way_on(RunFolder(result.path))} (the run itself is complete)"
            raise
        except FedTinyError as error:
            print(f"no {name}: {error}")
        except Exception as error:
            print(f"no {name} ({type(error).__name__}: {error}); the run itself is complete")


def _report(result: Outcome) -> str:
    """The page with the run's figures."""
    folder = RunFolder(result.path)
    return str(write_page([read(folder)], folder.report))


def _packed_model(result: Outcome) -> str:
    """The model as one small file."""
    path = pack_run(result.path, graph=result.graph)
    size, dense = path.stat().st_size, packed.read(path).dense_bytes
    layout = reading.about(RunFolder(result.path))["layout"]
    images = f"fedtiny predict {quoted(path)} IMAGE"
    use = images if layout == "NCHW" else f"fedtiny.load({str(path)!r})"
    return f"{path} ({formatting.size(size)}, {size / dense:.2%} of dense); classify with: {use}"
