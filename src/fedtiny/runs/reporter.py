"""What a run tells whoever watches it: live in a terminal, plain lines elsewhere."""

import sys
from typing import Any, Protocol

from rich import progress
from rich.console import Console

from fedtiny.errors import can_retry, named
from fedtiny.federation.public import before_batch_norm
from fedtiny.process import Stopped
from fedtiny.runs import formatting
from fedtiny.runs.assembly import Assembly
from fedtiny.runs.folder import RunFolder, quoted, way_on
from fedtiny.runs.metrics import Record
from fedtiny.runs.notebook import NotebookReporter
from fedtiny.runs.resolve import gpu_count, has_gpu


class Reporter(Protocol):
    """Hears of each step of a run; one small class for each way of showing it."""

    def started(self, assembly: Assembly, folder: RunFolder, records: list[Record]) -> None:
        """A run begins, or goes on after these rounds."""

    def selected(self, selection: dict[str, Any]) -> None:
        """A candidate was chosen as the first sparse model."""

    def round_done(self, record: Record) -> None:
        """A round is over."""

    def finished(self, result: dict[str, Any]) -> None:
        """The run is over."""

    def close(self) -> None:
        """Nothing more will come, for whatever reason."""


class Silent:
    """Says nothing."""

    def started(self, *args: Any, **kwargs: Any) -> None:
        pass

    selected = round_done = finished = close = started


class Lines:
    """One plain line for each thing that happens.

    With a `bar` below them, which tells how far the run is and how long it takes.
    """

    def __init__(self, console: Console, *, bar: bool = False) -> None:
        self.console = console
        self.rounds = 0
        self.unfinished: RunFolder | None = None
        self.progress = progress.Progress(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(),
            progress.TextColumn("round {task.completed}/{task.total}"),
            progress.TimeElapsedColumn(),
            progress.TextColumn("left"),
            progress.TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not bar,
        )
        self.task = self.progress.add_task("")

    def started(self, assembly: Assembly, folder: RunFolder, records: list[Record]) -> None:
        config, server, self.unfinished = assembly.config, assembly.server, folder
        self.rounds = config.rounds
        table = assembly.split.table
        headline = formatting.headline(config, table, server.param_spec, assembly.backend)
        self.console.print(named(headline), style="bold", markup=False)
        if table.any():
            width = self.console.width
            shown = formatting.partition_table(table, assembly.data.classes, width)
            self.console.print(shown, soft_wrap=False)
        if config.memory_budget or config.flops_budget:
            work = assembly.workload
            for line in formatting.budget_lines(config, work, assembly.arena(work.mask)):
                self._say(line)
        if assembly.method.needs_flow and assembly.method.flow:
            for line in formatting.flow_lines(config, assembly.method, assembly.method.flow):
                self._say(line)
        if assembly.method.rescale:
            layers = before_batch_norm(server.public, server.param_spec)
            for line in formatting.rescale_lines(config, server.param_spec, layers):
                self._say(line)
        if config.data.validation:
            self._say(formatting.VALIDATING)
        if config.simulator == "gpu" and not has_gpu():
            self._say(formatting.NO_GPU)
        for note in assembly.notes:
            self._say(note)
        if config.simulator == "gpu" and assembly.ranks.size == 1 < gpu_count():
            self._say(formatting.idle_gpus_line(gpu_count()))
        for line in formatting.unused_settings(config):
            self._say(line)
        if records:
            self._say(f"resumed after round {records[-1]['round_number']} of {self.rounds}")
        asks = assembly.method.coarse_requests(server.param_spec)
        step = "choosing a candidate" if asks else "pruning"
        step = "training" if server.coarse_pruned else step
        self.progress.reset(self.task, total=self.rounds, completed=server.round, description=step)
        self.progress.start()

    def selected(self, selection: dict[str, Any]) -> None:
        if "selection" in selection:
            self._say(formatting.selection_line(selection))
        self.progress.update(self.task, description="training")

    def round_done(self, record: Record) -> None:
        self._say(formatting.round_line(record, self.rounds))
        accuracy = record["accuracy"]
        shown = "" if accuracy is None else f"accuracy {accuracy:.4f}  "
        self.progress.update(
            self.task, advance=1, description=f"{shown}density {record['density']:.4f}"
        )

    def finished(self, result: dict[str, Any]) -> None:
        self.progress.stop()
        self._say(
            f"done: accuracy {result['accuracy']:.4f} at density {result['density']:.4f}; "
            f"{result['kept_weights']:,} of {result['prunable_weights']:,} prunable weights kept"
            + formatting.whole_line(result)
        )
        if "privacy" in result:
            self._say(formatting.privacy_line(result, self.rounds))
        if result.get("gpu_memory"):
            self._say(formatting.gpu_line(result))
        if self.unfinished:
            self._say(f"run folder: {self.unfinished.path}")
            self._say(f"look at it: fedtiny inspect {quoted(self.unfinished.path)}")
        self.unfinished = None

    def close(self) -> None:
        self.progress.stop()
        if self.unfinished and can_retry(sys.exception()):  # what the run is ending with
            if self.console.quiet:  # rich falls silent when the reader of a pipe is gone
                self.console = Console(stderr=True, highlight=False, soft_wrap=True)
            self._say(f"stopped; continue with: {way_on(self.unfinished)}")
            if isinstance(stopped := sys.exception(), Stopped):
                stopped.said = True

    def _say(self, line: str) -> None:
        self.console.print(named(line), markup=False)


def automatic() -> Reporter:
    """The reporter that fits where the output goes."""
    console = Console(highlight=False, soft_wrap=True)
    if console.is_jupyter:
        return NotebookReporter()
    return Lines(console, bar=console.is_terminal)
