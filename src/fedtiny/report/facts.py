"""The headline of a run: its result in a few large numbers, and its costs beside a dense run's."""

from dataclasses import dataclass
from statistics import fmean

from fedtiny.experiments import labels
from fedtiny.report.charts import Cost, share
from fedtiny.report.run import Run, number
from fedtiny.runs import formatting

FLOPS, MODEL = "FLOPs in a round", "Size of the model"
DENSE_COSTS = ("flops", "memory_paper", "memory_device", "bytes_down", "bytes_up", "model_bytes")


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
    return [*_reached(run), *_saved(run), *_effort(run)]


def _reached(run: Run) -> list[Fact]:
    found = []
    accuracy, loss, density = (
        number(run.outcome, name) for name in ("accuracy", "loss", "density")
    )
    if accuracy is not None:
        told = "" if loss is None else f"test loss {loss:.3f}"
        found.append(Fact("Accuracy", f"{accuracy:.4f}", told))
    if density is not None:
        kept, every = (number(run.result, f"{name}_weights") for name in ("kept", "prunable"))
        told = f"{kept:,.0f} of {every:,.0f} weights" if kept and every else ""
        found.append(Fact("Density", f"{density:.4f}", told))
    return found


def _saved(run: Run) -> list[Fact]:
    """What is less than in a dense run."""
    by_name, found = {cost.name: cost for cost in costs(run)}, []
    if size := by_name.get(MODEL):
        told = (
            f"as it travels, {share(size.ours, size.dense)} of {formatting.size(size.dense)} dense"
        )
        found.append(Fact("Model", formatting.size(size.ours), told))
    if flops := by_name.get(FLOPS):
        told = "of a dense round, on a device"
        found.append(Fact("FLOPs", share(flops.ours, flops.dense), told))
    return found


def _effort(run: Run) -> list[Fact]:
    fleet, (done, planned) = run.config.fleet, (len(run.records), run.config.rounds)
    seconds = sum(number(record, "seconds") or 0.0 for record in run.records)
    rounds = str(done) if done == planned else f"{done} of {planned}"
    held = 0 if run.table is None else int(run.table.sum())  # real devices tell nobody of theirs
    images = f"{formatting.spread(fleet)}, {held:,} images" if held else ""
    found = [
        Fact("Rounds", rounds, f"in {duration(seconds)}"),
        Fact("Devices", str(fleet.devices), images),
    ]
    parts = (run.selection, *run.records)
    down, up = (sum(number(part, f"bytes_{way}") or 0 for part in parts) for way in ("down", "up"))
    if down or up:
        both = f"{formatting.size(down)} down, {formatting.size(up)} up, all devices"
        found.append(Fact("Traffic", formatting.size(down + up), both))
    return found


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


def costs(run: Run) -> list[Cost]:
    """The costs that are known of this run and of a dense one, of a device of mean size."""

    def highest(key: str) -> float | None:
        found = (number(record, key) for record in run.records)
        return max((value for value in found if value is not None), default=None)

    dense = {key: number(run.about.get("dense"), key) for key in DENSE_COSTS}
    down, up = dense["bytes_down"], dense["bytes_up"]
    moved = None if down is None or up is None else down + up
    size, model = formatting.size, number(run.result, "model_bytes")
    wanted = (
        (FLOPS, highest("flops"), dense["flops"], flops_text),
        ("Memory (paper's count)", highest("memory_paper"), dense["memory_paper"], size),
        ("Memory (whole device)", highest("memory_device"), dense["memory_device"], size),
        ("Bytes in a round", bytes_a_round(run), moved, size),
        (MODEL, model, dense["model_bytes"], size),
    )
    return [Cost(name, ours, other, text) for name, ours, other, text in wanted if ours and other]


def flops_text(count: float) -> str:
    """A number of FLOPs, in units of a thousand.

    >>> flops_text(2_500_000)
    '2.5 MFLOPs'
    """
    return formatting.size(count).removesuffix("B").replace("k", "K") + "FLOPs"


def bytes_a_round(run: Run) -> float | None:
    """What a device that answered moved in a round, down and up, on the mean of all rounds."""
    moved = [
        ((number(record, "bytes_down") or 0) + (number(record, "bytes_up") or 0)) / len(answered)
        for record in run.records
        if (answered := record.get("answered"))
    ]
    return fmean(moved) if moved else None
