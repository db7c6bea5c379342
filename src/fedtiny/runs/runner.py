"""Running and resuming runs, for fedtiny's own commands, comparisons and Flower server.

From Python use `fedtiny.run` and `fedtiny.resume` (`fedtiny.api`): they call these, and return a
`fedtiny.Result`, which reads, draws and exports what an `Outcome` of here left in the run folder.
"""

import itertools
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedtiny import config as configs
from fedtiny.config import Config
from fedtiny.data import DataSet, Partition
from fedtiny.devices.ranks import Ranks, joined
from fedtiny.errors import ConfigError, FedTinyError, RunError, printable
from fedtiny.federation.rounds import is_over, prepare
from fedtiny.federation.server import Server
from fedtiny.files import plain
from fedtiny.models import Traced
from fedtiny.runs.acceptance import accepted_round
from fedtiny.runs.assembly import Assembly, assemble, computing_on
from fedtiny.runs.best import best_model, keep_best
from fedtiny.runs.checkpoint import OF_THETA, Checkpoint, IncompleteRunError, restore
from fedtiny.runs.fleet import Fleet
from fedtiny.runs.folder import RunFolder, way_on
from fedtiny.runs.metrics import Record, result_record, selection_record
from fedtiny.runs.opening import new_folder
from fedtiny.runs.private_round import private_round
from fedtiny.runs.recorder import Recorder, Saved, recording, versions
from fedtiny.runs.reporter import Reporter, Silent, automatic
from fedtiny.runs.resolve import resolved
from fedtiny.runs.split import NOT_OURS
from fedtiny.sparse.theta import Theta

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class Outcome:
    """What a finished run leaves in memory."""

    path: Path
    config: Config
    accuracy: float
    loss: float
    density: float
    metrics: list[Record]
    selection: dict[str, Any]
    network: "nn.Module"
    graph: Traced | None = None
    """The graph of the network, or why it cannot be told."""


def run(
    config: Config,
    *,
    out: Path | str | None = None,
    data: DataSet | None = None,
    model: "nn.Module | None" = None,
    partition: Partition | None = None,
    reporter: Reporter | None = None,
    fleet: Fleet | None = None,
) -> Outcome:
    """Run a config in a new folder; a data set and a model of one's own may be given.

    A partition says which training samples each device has, whatever the config says of it.
    Processes that torchrun started play one run together; rank 0 writes the folder.
    """
    with (
        joined() as ranks,
        _assembled(
            config, ranks, data=data, model=model, partition=partition, fleet=fleet
        ) as assembly,
        recording(ranks, lambda: new_folder(assembly.config, out)) as recorder,
    ):
        recorder.described(assembly, fleet)
        return _train(assembly, recorder, _reporter(ranks, reporter))


def resume(
    path: Path | str,
    *,
    root: Path | str | None = None,
    workers: int | None = None,
    device_python: Path | str | None = None,
    device_program: str | None = None,
    data: DataSet | None = None,
    model: "nn.Module | None" = None,
    reporter: Reporter | None = None,
    fleet: Fleet | None = None,
) -> Outcome:
    """Continue a run from its last checkpoint, to the same end as if it had never stopped.

    On another machine the data may lie elsewhere, and there may be more workers or ranks. What
    played the devices is given again: no program is started because a folder names it.
    """
    with joined() as ranks, recording(ranks, lambda: _known_folder(path, fleet)) as recorder:
        saved = Saved.of_first(recorder.folder, ranks)
        config = _with_programs(saved.config, recorder.folder, device_python, device_program)
        if root is not None:
            config = replace(config, data=replace(config.data, root=str(root)))
        workers = config.workers if workers is None else workers
        config = replace(config, workers=workers, gpu=replace(config.gpu, cards=None))
        inputs: dict[str, Any] = {"data": data, "model": model, "fleet": fleet}
        inputs |= {"split": saved.split, "weights": saved.weights}
        with _assembled(config, ranks, **inputs) as assembly:
            assembly.notes = (*assembly.notes, saved.note) if saved.note else assembly.notes
            if saved.checkpoint:
                _restore(saved.checkpoint, assembly.server)
            else:
                recorder.described(assembly, fleet)
            with _going_on_from(saved.checkpoint, recorder.folder):
                return _train(assembly, recorder, _reporter(ranks, reporter), saved)


@contextmanager
def _assembled(config: Config, ranks: Ranks, **inputs: Any) -> Iterator[Assembly]:
    """Everything that takes part, computing with the run's own number of threads."""
    if ranks.size > 1 and inputs.get("fleet"):
        raise ConfigError("real devices are asked by one process; start it without torchrun")
    run_config = resolved(config, inputs.get("data"), inputs.get("model"))
    with computing_on(run_config.threads):
        assembly = assemble(run_config, ranks=ranks, **inputs)
        try:
            _require_alike(ranks, assembly)
            yield assembly
        finally:
            assembly.server.transport.close()


def _require_alike(ranks: Ranks, assembly: Assembly) -> None:
    """Refuse ranks that would not play the same run."""
    asked = assembly.asked
    kernels = asked.gpu.kernels  # which a machine may have chosen
    asked = replace(asked, workers=1, weights=None, data=replace(asked.data, root=None))
    asked = replace(asked, gpu=replace(asked.gpu, kernels="auto"))
    own = {
        "fedtiny or PyTorch": [versions()[package] for package in ("fedtiny", "code", "torch")],
        "config": configs.dumps(asked),
        "--gpu.kernels": kernels,
        "--weights": assembly.weights.digest if assembly.weights else "",
        "data set": assembly.split.checksum.hex(),
        "network": assembly.server.theta.param_spec.fingerprint,
    }
    every = [json.loads(message) for message in ranks.exchange(json.dumps(own).encode())]
    for rank, what in itertools.product(range(ranks.size), own):
        if every[rank][what] != every[0][what]:
            raise FedTinyError(f"rank {rank} has another {what} than rank 0; start all alike")


def _reporter(ranks: Ranks, asked: Reporter | None) -> Reporter:
    return Silent() if ranks.rank else asked or automatic()


def _train(
    assembly: Assembly, recorder: Recorder, reporter: Reporter, saved: Saved | None = None
) -> Outcome:
    records = list(saved.records) if saved else []
    recorder.started(records)
    try:
        reporter.started(assembly, recorder.folder, records)
        selection = _prepare(assembly, recorder, saved)
        reporter.selected(selection)
        privacy = assembly.config.privacy
        private = privacy.differential or privacy.secure_aggregation
        play = private_round if private else accepted_round
        started = time.perf_counter()
        while not is_over(assembly.server, assembly.config.rounds):
            record = play(assembly, started)
            records.append(record)
            keep_best(assembly.server, records)
            recorder.round_done(assembly, record)
            reporter.round_done(record)
            started = time.perf_counter()
        return _finish(assembly, recorder, reporter, records, selection)
    finally:
        reporter.close()


def _prepare(assembly: Assembly, recorder: Recorder, saved: Saved | None) -> dict[str, Any]:
    """Pretraining and coarse pruning, once in the life of a run; what was chosen."""
    if saved and assembly.server.coarse_pruned:
        return saved.selection
    assembly.pretrain()
    prepare(assembly.server, assembly.method)
    selection: dict[str, Any] = plain(selection_record(assembly))
    recorder.selected(assembly, selection)
    return selection


def _finish(
    assembly: Assembly,
    recorder: Recorder,
    reporter: Reporter,
    records: list[Record],
    selection: dict[str, Any],
) -> Outcome:
    summary = recorder.finished(assembly, plain(result_record(assembly, records, selection)))
    assembly.engine.load(assembly.server.model)
    assembly.engine.to("cpu")
    reporter.finished(summary)
    return Outcome(
        path=recorder.folder.path,
        config=assembly.config,
        accuracy=summary["accuracy"],
        loss=summary["loss"],
        density=summary["density"],
        metrics=records,
        selection=selection,
        network=assembly.model.eval(),
        graph=assembly.graph,
    )


def _restore(checkpoint: Checkpoint, server: Server) -> None:
    """Put a server where a checkpoint was taken, with models in it that can be used."""
    restore(checkpoint, server)
    try:
        best_model(server)
        for name in server.arrays.keys() & OF_THETA:
            Theta(server.theta.mask, server.arrays[name])
    except NOT_OURS as error:
        raise RunError(f"{checkpoint.name} is damaged") from error


@contextmanager
def _going_on_from(checkpoint: Checkpoint | None, folder: RunFolder) -> Iterator[None]:
    """What a method remembers is its own: if it cannot work with it, the checkpoint is named."""
    try:
        yield
    except (*NOT_OURS, ArithmeticError) as error:
        if checkpoint is None:
            raise
        why = printable(f"{type(error).__name__}: {error}"[:200])
        raise IncompleteRunError(
            f"the run cannot go on from {checkpoint.name} ({why}), which is damaged if the fault "
            "is not in code of your own (FEDTINY_TRACEBACK=1 shows where)",
            folder,
        ) from error


def _with_programs(
    config: Config, folder: RunFolder, python: Path | str | None, program: str | None
) -> Config:
    """The config with the programs that were given for the devices; none that it names is taken."""
    programs: dict[str, Any] = {
        "python": None if python is None else str(python),
        "program": program,
    }
    for name, value in programs.items():
        if value is None and getattr(config.device, name) is not None:
            raise ConfigError(
                f"{folder.config} names a program that would simulate the devices (device.{name}); "
                "programs are taken from flags only: if you trust it, give it again with "
                f"--device.{name}, or take it out of the file"
            )
    return replace(config, device=replace(config.device, **programs))


def _known_folder(path: Path | str, fleet: Fleet | None) -> RunFolder:
    folder = RunFolder.open(Path(path))
    if fleet is None and folder.nodes.exists():
        raise RunError(f"the devices of this run are real; continue it with {way_on(folder)}")
    return folder
