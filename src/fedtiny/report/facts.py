"""A run in large numbers."""

from fedtiny.errors import plural
from fedtiny.experiments.quantities import label
from fedtiny.report.costs import FLOPS, SIZE, SIZE_AS_SENT, costs, model_size, share
from fedtiny.report.run import Run
from fedtiny.runs import formatting
from fedtiny.runs.metrics import number

UNKNOWN = "-"
Fact = tuple[str, str, str]
"""What a large number is, the number, and a line that puts it into place."""


def title(run: Run) -> str:
    """What was trained, in a few words."""
    return f"{label(run.config.method)}: {task(run)}"


def task(run: Run) -> str:
    """The network and the data."""
    return f"{label(run.config.model)} on {data_name(run)}"


def data_name(run: Run) -> str:
    """The data set."""
    name = run.config.data.name
    return "the digits" if name == "digits" else label(name)


def facts(run: Run) -> list[Fact]:
    """The result in eight numbers; what is not known has a dash."""
    costed = {cost.name: share(cost.ours, cost.dense) for cost in costs(run)}
    return [
        _accuracy(run),
        _size(run, costed.get(SIZE) or costed.get(SIZE_AS_SENT)),
        _density(run),
        ("FLOPs", costed.get(FLOPS, UNKNOWN), "of a dense round, on a device"),
        *_effort(run),
        _devices(run),
        _traffic(run),
    ]


def _accuracy(run: Run) -> Fact:
    accuracy, loss = (number(run.outcome, name) for name in ("accuracy", "loss"))
    told = "on the test set" if loss is None else f"test loss {loss:.3f}"
    return "Accuracy", UNKNOWN if accuracy is None else f"{accuracy:.4f}", told


def _size(run: Run, of_dense: str | None) -> Fact:
    """One number for the size of the model."""
    name, size = model_size(run)
    if size is None:
        return "Model size", UNKNOWN, "known when the run is finished"
    kind = "packed file" if name == SIZE else "as sent to a device"
    return (
        "Model size",
        formatting.size(size),
        kind + (f", {of_dense} of dense" if of_dense else ""),
    )


def _density(run: Run) -> Fact:
    density = number(run.outcome, "density")
    kept, every = (number(run.result, f"{name}_weights") for name in ("kept", "prunable"))
    told = f"{kept:,.0f} of {every:,.0f} weights" if kept and every else ""
    share_of_all = number(run.result, "whole_density")
    told += f", {share_of_all:.3g} of all parameters" if told and share_of_all is not None else ""
    target = told or f"the target is {run.config.density:g}"
    return "Density", UNKNOWN if density is None else f"{density:.4f}", target


def _effort(run: Run) -> list[Fact]:
    done, planned = len(run.records), run.config.rounds
    seconds = sum(number(record, "seconds") or 0.0 for record in run.records)
    each = f"{seconds / done:.3g} s a round, evaluation included" if done else ""
    rounds, told = str(done), "finished"
    if done != planned:
        rounds = f"{done} of {planned}"
        told = "its budget of privacy is spent" if run.result.get("privacy") else "not finished"
    return [("Rounds", rounds, told), ("Time", duration(seconds), each)]


def _devices(run: Run) -> Fact:
    """Who trained, which were out of the others' bounds, and what is known of one at most."""
    fleet = run.config.fleet
    held = 0 if run.table is None else int(run.table.sum())  # real devices tell nobody of theirs
    told = [f"{formatting.spread(fleet)}, {held:,} samples"] if held else []
    tables = [part.get("bounded") for part in (run.selection, *run.records)]
    named = sorted({str(k) for own in tables if isinstance(own, dict) for k in own}, key=_order)
    again = sum(isinstance(record.get("rejected"), dict) for record in run.records)
    told += [f"out of bounds: {', '.join(named)}"] if named else []
    told += [f"{plural(again, 'round')} repeated"] if again else []
    if privacy := run.result.get("privacy"):
        told.append(f"epsilon {formatting.epsilon(privacy)} at delta {privacy['delta']:.2g}")
    return "Devices", str(fleet.devices), "; ".join(told)


def _order(device: str) -> tuple[int, str]:
    """Numbers in their order, whatever a damaged file holds."""
    return len(device), device


def _traffic(run: Run) -> Fact:
    parts = (run.selection, *run.records)
    down, up, evaluation = (
        sum(number(part, f"bytes_{what}") or 0 for part in parts)
        for what in ("down", "up", "evaluation")
    )
    told = f"{formatting.size(down)} down, {formatting.size(up)} up"
    told += f", {formatting.size(evaluation)} to evaluate" if evaluation else ", all devices"
    return "Traffic", formatting.size(down + up + evaluation), told


def duration(seconds: float) -> str:
    """A time in words.

    >>> duration(14.2), duration(200), duration(9000)
    ('14 s', '3 min 20 s', '2 h 30 min')
    """
    total = round(seconds)
    if total < 60:
        return f"{total} s"
    if total < 3600:
        return f"{total // 60} min {total % 60} s"
    return f"{total // 3600} h {total % 3600 // 60} min"
