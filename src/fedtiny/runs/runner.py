"""Running, resuming and reading runs."""

import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedtiny import config as configs
from fedtiny.config import Config
from fedtiny.data import DataSet
from fedtiny.errors import RunError
from fedtiny.extras import own_code, require, version_of
from fedtiny.federation.rounds import federate, prepare
from fedtiny.files import read_json, write_atomically, write_json
from fedtiny.models import Traced
from fedtiny.runs import metrics
from fedtiny.runs.assembly import Assembly, assemble, computing_on
from fedtiny.runs.best import best_model, keep_best
from fedtiny.runs.checkpoint import load_checkpoint, require_complete, save_checkpoint
from fedtiny.runs.fleet import Fleet
from fedtiny.runs.folder import RunFolder, way_on
from fedtiny.runs.metrics import Record, about_record, result_record, round_record, selection_record
from fedtiny.runs.reporter import Reporter, automatic
from fedtiny.runs.resolve import resolved
from fedtiny.runs.split import load_split, save_split
from fedtiny.sparse.theta import Theta

if TYPE_CHECKING:
    from torch import nn

PACKAGES = ("fedtiny", "torch", "numpy", "safetensors", "flwr")


@dataclass(frozen=True)
class Result:
    """What a finished run gives."""

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
    reporter: Reporter | None = None,
    fleet: Fleet | None = None,
) -> Result:
    """Run a config in a new folder; a data set and a model of one's own may be given."""
    with _assembled(config, data=data, model=model, fleet=fleet) as assembly:
        folder = _new_folder(assembly.config, out)
        with folder.locked():
            _describe(folder, assembly, fleet)
            return _train(assembly, folder, reporter or automatic())


def resume(
    path: Path | str,
    *,
    root: Path | str | None = None,
    workers: int | None = None,
    data: DataSet | None = None,
    model: "nn.Module | None" = None,
    reporter: Reporter | None = None,
    fleet: Fleet | None = None,
) -> Result:
    """Continue a run from its last checkpoint, to the same end as if it had never stopped.

    On another machine the data may lie elsewhere, and there may be more workers.
    """
    folder = RunFolder.open(Path(path))
    if fleet is None and folder.nodes.exists():
        raise RunError(f"the devices of this run are real; continue it with {way_on(folder)}")
    config = configs.load(folder.config)
    if root is not None:
        config = replace(config, data=replace(config.data, root=str(root)))
    workers = config.workers if workers is None else workers
    config = replace(config, workers=workers, gpu=replace(config.gpu, cards=None))
    with folder.locked():
        require_complete(folder)
        split = load_split(folder) if folder.partition.exists() else None
        with _assembled(config, data=data, model=model, split=split, fleet=fleet) as assembly:
            if folder.checkpoint.exists():
                load_checkpoint(folder, assembly.server)
            else:
                _describe(folder, assembly, fleet)
            return _train(assembly, folder, reporter or automatic())


@contextmanager
def _assembled(config: Config, **inputs: Any) -> Iterator[Assembly]:
    """Everything that takes part, computing with the run's own number of threads."""
    run_config = resolved(config, inputs.get("data"), inputs.get("model"))
    with computing_on(run_config.threads):
        assembly = assemble(run_config, **inputs)
        try:
            yield assembly
        finally:
            assembly.server.transport.close()


def _train(assembly: Assembly, folder: RunFolder, reporter: Reporter) -> Result:
    server, config = assembly.server, assembly.config
    records = metrics.keep_before(folder, server.round)
    try:
        reporter.started(assembly, folder, records)
        _prepare(assembly, folder, reporter)
        started = time.perf_counter()
        for result in federate(server, assembly.method, config.rounds):
            record = round_record(assembly, result, started)
            records.append(record)
            metrics.append(folder, record)
            keep_best(server, records)
            if server.round % config.checkpoint_every == 0 or server.round == config.rounds:
                save_checkpoint(folder, server)
            reporter.round_done(record)
            started = time.perf_counter()
        return _finish(assembly, folder, records, reporter)
    finally:
        reporter.close()


def _prepare(assembly: Assembly, folder: RunFolder, reporter: Reporter) -> None:
    """Pretraining and coarse pruning, once in the life of a run."""
    if not assembly.server.coarse_pruned:
        assembly.pretrain()
        prepare(assembly.server, assembly.method)
        write_json(folder.selection, selection_record(assembly))
        save_checkpoint(folder, assembly.server)
    reporter.selected(read_json(folder.selection))


def _finish(
    assembly: Assembly, folder: RunFolder, records: list[Record], reporter: Reporter
) -> Result:
    best = best_model(assembly.server)
    if best is not None:
        _save_model(assembly, best, folder.best)
    _save_model(assembly, assembly.server.model, folder.model)
    selection = read_json(folder.selection)
    known = read_json(folder.result) if folder.result.exists() else {}
    if known.get("rounds") != assembly.server.round:
        write_json(folder.result, result_record(assembly, records, selection))
    summary = read_json(folder.result)
    reporter.finished(summary)
    return Result(
        path=folder.path,
        config=assembly.config,
        accuracy=summary["accuracy"],
        loss=summary["loss"],
        density=summary["density"],
        metrics=records,
        selection=selection,
        network=assembly.model.eval(),
        graph=assembly.graph,
    )


def _save_model(assembly: Assembly, theta: Theta, path: Path) -> None:
    """Write a model as a state dict; the network has its values then."""
    assembly.engine.load(theta)
    assembly.engine.to("cpu")
    state = {name: value.contiguous() for name, value in assembly.model.state_dict().items()}
    write_atomically(path, require("safetensors.torch", extra="torch").save(state))


def _new_folder(config: Config, out: Path | str | None) -> RunFolder:
    if out is not None:
        return RunFolder.create(Path(out))
    data, model = (name.rpartition(":")[2] for name in (config.data.name, config.model))
    stem = f"{config.method}-{data}-{model}-d{config.density:g}-s{config.seed}"
    return RunFolder.create_below(Path("runs"), stem)


def _describe(folder: RunFolder, assembly: Assembly, fleet: Fleet | None) -> None:
    """Write what the run is, before it does anything."""
    if fleet is not None:
        fleet.note()
    write_atomically(folder.config, configs.dumps(assembly.asked).encode())
    write_json(folder.versions, _versions())
    write_json(folder.about, about_record(assembly))
    save_split(folder, assembly.split)


def _versions() -> dict[str, str]:
    system = {"python": platform.python_version(), "platform": platform.platform()}
    packages = {package: version_of(package) for package in PACKAGES}
    return {**system, **packages, "code": own_code()}
