"""The headline of a run: its result in a few large numbers."""

from dataclasses import dataclass

from fedtiny.report.bars import share
from fedtiny.report.costs import MODEL, costs
from fedtiny.report.run import Run, number
from fedtiny.reproduce import labels
from fedtiny.runs import formatting


@dataclass(frozen=True)
class Fact:
    """A large number, what it is, and a line that puts it into place."""

    name: str
    value: str
    beside: str = ""


def title(run: Run) -> str:
    """What was trained, in a few words."""
    return f"{labels.value(run.config.method)}: {task(run)}"


def task(run: Run) -> str:
    """The network and the data."""
    name = run.config.data.name
    data = "the digits" if name == "digits" else labels.value(name)
    return f"{labels.value(run.config.model)} on {data}"


def facts(run: Run) -> list[Fact]:
    """The result, as far as it is known."""
    found = (
        *(_accuracy(run), _density(run), _model(run), _compute(run)),
        *(_rounds(run), _devices(run), _traffic(run)),
    )
    return [fact for fact in found if fact]


def _accuracy(run: Run) -> Fact | None:
    value = number(run.outcome, "accuracy")
    if value is None:
        return None
    loss = number(run.outcome, "loss")
    return Fact("Accuracy", f"{value:.4f}", "" if loss is None else f"test loss {loss:.3f}")


def _density(run: Run) -> Fact | None:
    value = number(run.outcome, "density")
    if value is None:
        return None
    kept, all_weights = (number(run.result, f"{name}_weights") for name in ("kept", "prunable"))
    told = f"{kept:,.0f} of {all_weights:,.0f} weights" if kept and all_weights else ""
    return Fact("Density", f"{value:.4f}", told)


def _model(run: Run) -> Fact | None:
    size = next((cost for cost in costs(run) if cost.name == MODEL), None)
    if size is None:
        return None
    told = f"as it travels, {share(size.ours, size.dense)} of {formatting.size(size.dense)} dense"
    return Fact("Model", formatting.size(size.ours), told)


def _compute(run: Run) -> Fact | None:
    found = next((cost for cost in costs(run) if cost.name.startswith("FLOPs")), None)
    if found is None:
        return None
    return Fact("FLOPs", share(found.ours, found.dense), "of a dense round, on a device")


def _rounds(run: Run) -> Fact:
    done, planned = len(run.records), run.config.rounds
    seconds = sum(number(record, "seconds") or 0.0 for record in run.records)
    value = str(done) if done == planned else f"{done} of {planned}"
    return Fact("Rounds", value, f"in {duration(seconds)}")


def _devices(run: Run) -> Fact:
    fleet = run.config.fleet
    if run.table is None or not run.table.any():  # real devices tell nobody of their images
        return Fact("Devices", str(fleet.devices), "")
    told = f"{formatting.spread(fleet)}, {run.table.sum():,} images"
    return Fact("Devices", str(fleet.devices), told)


def _traffic(run: Run) -> Fact | None:
    parts = (run.selection, *run.records)
    down, up = (sum(number(part, f"bytes_{way}") or 0 for part in parts) for way in ("down", "up"))
    if not down and not up:
        return None
    told = f"{formatting.size(down)} down, {formatting.size(up)} up, all devices"
    return Fact("Traffic", formatting.size(down + up), told)


def duration(seconds: float) -> str:
    """A time in words.

    >>> duration(14.2), duration(200), duration(9000)
    ('14 s', '3 min 20 s', '2 h 30 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
