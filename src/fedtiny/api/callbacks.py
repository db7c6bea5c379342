"""Code of one's own that a run calls: at its begin, after each round, and at its end."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

from fedtiny.api.result import Result, so_far
from fedtiny.errors import ConfigError
from fedtiny.runs.assembly import Assembly
from fedtiny.runs.folder import RunFolder
from fedtiny.runs.metrics import Record
from fedtiny.runs.reporter import Reporter


class Callback:
    """Base class of callbacks; override what you need.

    A run is not changed by its callbacks: they are given copies. An exception in one ends the run,
    whose folder stays as it was after the last checkpoint: :func:`fedtiny.resume` goes on with it.

    Example:
        >>> class Lowest(fedtiny.Callback):
        ...     loss = float("inf")
        ...
        ...     def on_round_end(self, record):
        ...         self.loss = min(self.loss, record["train_loss"])
        >>> lowest = Lowest()
        >>> config = fedtiny.Config(model="small", width=2, rounds=2, workers=1)
        >>> result = fedtiny.run(config, out="runs/watched", callbacks=[lowest])
        >>> lowest.loss == min(record["train_loss"] for record in result.metrics)
        True
    """

    def on_train_begin(self, result: Result) -> None:
        """Called once, before coarse pruning, or when a stopped run goes on.

        Args:
            result: What is known of the run: its folder, settings, and the rounds so far.
        """

    def on_round_end(self, record: Record) -> None:
        """Called after each round.

        Args:
            record: The round's figures, as in :attr:`fedtiny.Result.metrics`.
        """

    def on_train_end(self, result: Result) -> None:
        """Called once, after the last round.

        Args:
            result: What the run came to, as :func:`fedtiny.run` returns it.
        """


class EachRound(Callback):
    """A function that is called after each round."""

    def __init__(self, function: Callable[[Record], Any]) -> None:
        self.function = function

    def on_round_end(self, record: Record) -> None:
        self.function(record)


Callbacks = Iterable[Callback | Callable[[Record], Any]]
"""Callbacks, or functions that are called after each round."""


def as_callbacks(callbacks: Callbacks) -> list[Callback]:
    """Every one as an object."""
    if isinstance(callbacks, Callback) or not isinstance(callbacks, Iterable):
        raise ConfigError(f"callbacks= takes a list, got {type(callbacks).__name__}; write [...]")
    return [_as_callback(each) for each in callbacks]


def _as_callback(callback: object) -> Callback:
    if isinstance(callback, Callback):
        return callback
    if isinstance(callback, type) or not callable(callback):
        got = f"the class {callback.__name__}" if isinstance(callback, type) else repr(callback)
        raise ConfigError(f"callbacks= takes instances of fedtiny.Callback or functions, got {got}")
    return EachRound(callback)


class CallbackReporter:
    """Passes everything on to a reporter, and then to callbacks.

    What a callback raises is kept, so that it is not taken for a fault of the run.
    """

    def __init__(self, reporter: Reporter, callbacks: Iterable[Callback]) -> None:
        self.reporter = reporter
        self.callbacks = list(callbacks)
        self.raised: BaseException | None = None

    @contextmanager
    def surfacing(self) -> Iterator[None]:
        """Within this, what a callback raises ends the run as it is."""
        try:
            yield
        except Exception:
            if self.raised is not None:
                raise self.raised from None
            raise

    @contextmanager
    def _noting(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            self.raised = error
            raise

    def started(self, assembly: Assembly, folder: RunFolder, records: list[Record]) -> None:
        self.reporter.started(assembly, folder, records)
        with self._noting():
            for callback in self.callbacks:
                callback.on_train_begin(so_far(folder, assembly.config, deepcopy(records)))

    def selected(self, selection: dict[str, Any]) -> None:
        self.reporter.selected(selection)

    def round_done(self, record: Record) -> None:
        self.reporter.round_done(record)
        with self._noting():
            for callback in self.callbacks:
                callback.on_round_end(deepcopy(record))

    def finished(self, result: dict[str, Any]) -> None:
        self.reporter.finished(result)

    def close(self) -> None:
        self.reporter.close()
