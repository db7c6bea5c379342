"""Running and resuming, with callbacks and with pictures in a notebook."""

from pathlib import Path
from typing import TYPE_CHECKING

from fedtiny.api.callbacks import CallbackReporter, Callbacks, as_callbacks
from fedtiny.api.result import Result, of_run
from fedtiny.config import Config
from fedtiny.data import DataSet, Partition
from fedtiny.errors import FedTinyError
from fedtiny.process import launch
from fedtiny.runs import runner
from fedtiny.runs.fleet import Fleet
from fedtiny.runs.notebook import NotebookReporter, display
from fedtiny.runs.reporter import Reporter, automatic

if TYPE_CHECKING:
    from torch import nn


def run(
    config: Config,
    *,
    out: Path | str | None = None,
    data: DataSet | None = None,
    model: "nn.Module | None" = None,
    partition: Partition | None = None,
    callbacks: Callbacks = (),
    reporter: Reporter | None = None,
    fleet: Fleet | None = None,
) -> Result:
    """Train a sparse network over devices, in a new run folder.

    Processes that torchrun started play one run together; rank 0 writes the folder and calls the
    callbacks.

    Args:
        config: The settings.
        out: The run folder, new or empty; default: one below `runs/`, named after the settings.
        data: A data set of your own, in place of the one that the config names.
        model: A network of your own, in place of the one that the config names.
        partition: Which training samples each device has, whatever the config says of it.
        callbacks: :class:`fedtiny.Callback` objects, or functions that are called with each
            round's record.
        reporter: What shows the progress; default: what fits a terminal, a file or a notebook.
        fleet: Real devices, in place of simulated ones.

    Returns:
        The trained network, its accuracy and every round's figures.

    Raises:
        ConfigError: A setting that cannot work.
        DataError: Data that are missing or do not fit.
        FedTinyError: Whatever else you can mend; its text says how.

    Example:
        >>> config = fedtiny.Config(model="small", width=2, density=0.3, rounds=2, workers=1)
        >>> result = fedtiny.run(config, out="runs/digits", callbacks=[lambda record: None])
        >>> result.density <= 0.3
        True
    """
    calling = CallbackReporter(reporter or automatic(), as_callbacks(callbacks))
    with calling.surfacing():
        ended = runner.run(
            config,
            out=out,
            data=data,
            model=model,
            partition=partition,
            reporter=calling,
            fleet=fleet,
        )
    return _ended(of_run(ended, data=data, model=model), calling)


def resume(
    path: Path | str,
    *,
    root: Path | str | None = None,
    workers: int | None = None,
    device_python: Path | str | None = None,
    device_program: str | None = None,
    data: DataSet | None = None,
    model: "nn.Module | None" = None,
    callbacks: Callbacks = (),
    reporter: Reporter | None = None,
    fleet: Fleet | None = None,
) -> Result:
    """Continue a run from its last checkpoint, to the same end as if it had never stopped.

    On another machine the data may lie elsewhere, and there may be more workers or ranks. A
    finished run is not trained again.

    Args:
        path: The run folder.
        root: Where the data lie now; default: where they lay.
        workers: Processes that simulate the devices; default: as many as before.
        device_python: The Python that simulates the devices, if the run had one: no program is
            started because a folder names it.
        device_program: Where devices without Python are, if the run had any.
        data: The data set, if it was one of your own.
        model: The network, if it was one of your own.
        callbacks: As for :func:`fedtiny.run`; they hear of the rounds that are left.
        reporter: As for :func:`fedtiny.run`.
        fleet: The real devices, if the run had any.

    Returns:
        As :func:`fedtiny.run` would have returned.

    Raises:
        RunError: The folder is damaged, was edited, or is in use.
        ConfigError: Data or a network of your own are not given again.

    Example:
        >>> config = fedtiny.Config(model="small", width=2, rounds=2, workers=1)
        >>> result = fedtiny.run(config, out="runs/stopped")
        >>> fedtiny.resume("runs/stopped").accuracy == result.accuracy
        True
    """
    calling = CallbackReporter(reporter or automatic(), as_callbacks(callbacks))
    with calling.surfacing():
        ended = runner.resume(
            path,
            root=root,
            workers=workers,
            device_python=device_python,
            device_program=device_program,
            data=data,
            model=model,
            reporter=calling,
            fleet=fleet,
        )
    return _ended(of_run(ended, data=data, model=model), calling)


def _ended(result: Result, calling: CallbackReporter) -> Result:
    """Show the picture in a notebook, and tell the callbacks."""
    if launch().rank == 0:
        if isinstance(calling.reporter, NotebookReporter):
            _show(result)
        for callback in calling.callbacks:
            callback.on_train_end(result)
    return result


def _show(result: Result) -> None:
    """The accuracy by round; a run without any has none."""
    try:
        display(result.plot())
    except FedTinyError as error:
        print(error)
