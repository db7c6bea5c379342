"""What is written down about a round and about a run; metrics.jsonl has one line a round."""

import json
import time
from dataclasses import replace
from math import isfinite
from typing import Any

import numpy as np

from fedtiny.cost import Workload, flops, memory, traffic
from fedtiny.errors import RunError, plural
from fedtiny.federation import averaging, private, secure
from fedtiny.federation.rounds import RoundResult, is_over
from fedtiny.federation.server import Account
from fedtiny.federation.verbs import Evaluate
from fedtiny.files import (
    MAX_LINES,
    append_line,
    parse_json,
    plain,
    read_file,
    readable,
    write_atomically,
)
from fedtiny.runs.assembly import Assembly
from fedtiny.runs.folder import RunFolder
from fedtiny.runs.reading import RECORD
from fedtiny.sparse.vector import VALUE_BYTES

Record = dict[str, Any]


def append(folder: RunFolder, record: Record) -> None:
    """Add a round's line."""
    append_line(folder.metrics, json.dumps(plain(record)))


def read(folder: RunFolder) -> list[Record]:
    """Every whole line; one that a kill cut off is left out."""
    if not folder.metrics.exists():
        return []
    with readable(folder.metrics):
        lines = read_file(folder.metrics, MAX_LINES).splitlines()
    records: list[Record] = []
    for number, line in enumerate(lines, start=1):
        try:
            record = parse_json(line)
        except ValueError:
            record = None
        if RECORD(record):
            records.append(record)
        elif number < len(lines):
            raise RunError(f"line {number} of {folder.metrics} is damaged")
    return records


def write(folder: RunFolder, records: list[Record]) -> None:
    """Have these lines and no others."""
    text = "".join(json.dumps(plain(record)) + "\n" for record in records)
    write_atomically(folder.metrics, text.encode())


def read_before(folder: RunFolder, rounds: int, last: Record | None = None) -> list[Record]:
    """The lines of so many rounds, which the checkpoint knows of: no round may stand twice.

    If the last of them is lost, it is the checkpoint's own.
    """
    records = [record for record in read(folder) if record["round_number"] <= rounds]
    if last and len(records) == rounds - 1:
        records.append(last)
    numbers = [record["round_number"] for record in records]
    if len(numbers) != rounds or numbers != list(range(1, rounds + 1)):
        raise RunError(
            f"{folder.metrics} lacks some of the {plural(rounds, 'round')} that the checkpoint has "
            "seen; put the file back as it was"
        )
    return records


def number(values: Any, key: str) -> float | None:
    """A finite number out of plain data, or nothing."""
    value = values.get(key) if isinstance(values, dict) else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if isfinite(value) else None


def moved(part: Any) -> float | None:
    """Bytes of all devices in a round or in selection, both ways, or nothing if not told.

    Evaluation on devices counts: they keep the model that it brings, and train from there.
    """
    down, up = number(part, "bytes_down"), number(part, "bytes_up")
    if down is None or up is None:
        return None
    return down + up + (number(part, "bytes_evaluation") or 0.0)


def numbers(values: Any, key: str) -> dict[str, float]:
    """The finite numbers of a table within plain data, by name."""
    table = values.get(key) if isinstance(values, dict) else None
    if not isinstance(table, dict):
        return {}
    found = {str(name): number(table, name) for name in table}
    return {name: value for name, value in found.items() if value is not None}


def strings(values: Any, key: str) -> list[str]:
    """The texts of a list within plain data."""
    listed = values.get(key) if isinstance(values, dict) else None
    return [str(item) for item in listed] if isinstance(listed, list) else []


def about_record(assembly: Assembly) -> dict[str, Any]:
    """What a reader of the run cannot tell from its config: classes, layers, costs of a dense run.

    The costs are those of a round for a device of mean size, as in the lines of rounds.
    """
    return {
        "classes": list(assembly.data.classes),
        "shape": list(assembly.data.input_shape),
        "layout": assembly.data.layout,
        "layers": dict(assembly.server.param_spec.sizes),
        "dense": _dense_cost(assembly.workload),
        "server": flops.server_passes(assembly.workload),
        **({"weights": assembly.weights.record()} if assembly.weights else {}),
    }


def _dense_cost(work: Workload) -> dict[str, int]:
    dense = replace(work, config=replace(work.config, method="fedavg")).at(1.0)
    sent = traffic.training_round(dense, dense.plain_round)
    return {
        "flops": flops.dense_round(dense),
        "memory_paper": memory.total(dense, "paper"),
        "memory_device": memory.total(dense, "device"),
        "bytes_down": sent.down,
        "bytes_up": sent.up,
        "model_bytes": VALUE_BYTES * dense.large.profile.parameters,
    }


def round_record(assembly: Assembly, result: RoundResult, started: float) -> Record:
    """The line of a round that began at this time; it tells of the model after the round."""
    mask = assembly.server.theta.mask
    account = assembly.server.take_account()
    measured = _measured(assembly, result)
    evaluation, *_ = assembly.server.take_account()
    return {
        "round_number": result.round + 1,
        **measured,
        "train_loss": result.outcome.metrics.get("loss"),
        **private.record(assembly.server),
        **({"clipped": list(result.outcome.clipped)} if result.outcome.clipped else {}),
        "density": mask.density,
        "densities": dict(mask.densities),
        **_effective(assembly),
        "mask_change": sum(len(change) for change in result.changes.values()),
        "adjusted": {layer: len(change) for layer, change in result.changes.items()},
        "grown": {layer: len(change.grown) for layer, change in result.changes.items()},
        "dropped": {layer: len(change.dropped) for layer, change in result.changes.items()},
        "bytes_down": account.traffic.down,
        "bytes_up": account.traffic.up,
        "bytes_evaluation": evaluation.down + evaluation.up,
        **_cost(assembly, result),
        "answered": list(result.outcome.answered),
        **_account(account),
        "counted": result.counted,
        "seconds": round(time.perf_counter() - started, 3),
    }


def _account(account: Account) -> Record:
    """Which devices failed or were bounded and, if sums were secure, who shared masks with whom."""
    return {
        "failed": {str(device): why for device, why in account.failed.items()},
        "bounded": {str(device): why for device, why in account.bounded.items()},
        **({"exchanges": account.exchanges} if account.exchanges else {}),
    }


def _effective(assembly: Assembly) -> Record:
    """Kept weights that carry something to the output; unknown where the graph cannot be told."""
    server = assembly.server
    graph = server.public.graph if server.public else None
    if graph is None:
        return {"effective_density": None, "effective_densities": None}
    reach = server.theta.mask.reachability(graph)
    return {"effective_density": reach.density, "effective_densities": reach.densities}


def _cost(assembly: Assembly, result: RoundResult) -> Record:
    """What the round cost a device of mean size, under the mask it trained with.

    `flops_plain` is what a round costs that adjusts nothing, which a budget of FLOPs counts.
    """
    work = assembly.workload.under(result.mask)
    return {
        "flops": sum(flops.of_round(work, result.round).values()),
        "flops_plain": flops.plain(work),
        "memory_paper": memory.total(work, "paper"),
        "memory_device": memory.total(work, "device"),
        "memory_arena": assembly.arena(result.mask),
    }


def _measured(assembly: Assembly, result: RoundResult) -> Record:
    config = assembly.config
    done = result.round + 1
    if done % config.eval_every and not is_over(assembly.server, config.rounds):
        return {"accuracy": None, "loss": None}
    measured: Record = dict(assembly.evaluate())
    return {**measured, **_on_devices(assembly)} if config.eval_devices else measured


def _on_devices(assembly: Assembly) -> Record:
    server = assembly.server
    outcome = server.ask("evaluate", (Evaluate(),), theta=server.model)
    accuracies = [found["accuracy"] for found in outcome.by_device.values()]
    if not accuracies:
        return {"device_accuracy_mean": None, "device_accuracy_worst": None}
    by_device = outcome.by_device.items()
    return {
        "device_accuracies": {str(device): found["accuracy"] for device, found in by_device},
        "device_accuracy_mean": sum(accuracies) / len(accuracies),
        "device_accuracy_worst": min(accuracies),
    }


def evaluation_record(assembly: Assembly) -> dict[str, Any]:
    """What the final model takes each class of the test set for; empty without a test set here.

    `confusion` has a row for each true class and a column for each predicted one.
    """
    if not assembly.test:
        return {}
    data, classes = assembly.data.test, len(assembly.data.classes)
    assembly.engine.load(assembly.server.model)
    counts = np.zeros((classes, classes), dtype=np.int64)
    np.add.at(counts, (data.labels, assembly.engine.predict(data)), 1)
    return {"confusion": counts.tolist()}


def selection_record(assembly: Assembly) -> dict[str, Any]:
    """What coarse pruning chose and the bytes it cost; empty where it asked nobody."""
    summary = assembly.method.summary(assembly.server)
    account = assembly.server.take_account()
    if not summary and not account.traffic.down:
        return {}
    return {
        **summary,
        "bytes_down": account.traffic.down,
        "bytes_up": account.traffic.up,
        **_account(account),
    }


def result_record(
    assembly: Assembly, records: list[Record], selection: dict[str, Any]
) -> dict[str, Any]:
    """The outcome of a run: the last round's model, never the best one on the test set.

    With an average over rounds it is the average, which the last round has measured.
    """
    last, theta, kept = records[-1], assembly.server.theta, assembly.server.memory
    mask = theta.mask
    return {
        "accuracy": last["accuracy"],
        "loss": last["loss"],
        "density": mask.density,
        "whole_density": mask.param_spec.whole_density(mask.count),
        "effective_density": _effective(assembly)["effective_density"],
        "kept_weights": mask.count,
        "prunable_weights": mask.param_spec.prunable_count,
        "model_bytes": theta.vector.nbytes + sum(traffic.coded_mask(mask).values()),
        "rounds": assembly.server.round,
        "bytes_down": sum(part.get("bytes_down", 0) for part in (selection, *records)),
        "bytes_up": sum(part.get("bytes_up", 0) for part in (selection, *records)),
        "seconds": round(sum(record["seconds"] for record in records), 3),
        **averaging.record(assembly.server),
        **private.summary(assembly.server),
        **secure.summary(assembly.config),
        **({"best": kept["best"]} if "best" in kept else {}),
        **assembly.executor.account(),
    }
