"""A run in large numbers, its costs beside a dense run's, and how it learned by round."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedtiny.drawing import files
from fedtiny.drawing.canvas import SMALL, Boxes, Canvas, Text, text_width
from fedtiny.drawing.plot import Key, Plot, Series, draw_series, legend, linear
from fedtiny.errors import ConfigError
from fedtiny.experiments.finished import bytes_a_round
from fedtiny.experiments.quantities import label
from fedtiny.files import make_folder, write_atomically
from fedtiny.report.run import Run
from fedtiny.runs import formatting
from fedtiny.runs.metrics import number

FLOPS, MODEL = "FLOPs in a round", "Size of the model"
DENSE_COSTS = ("flops", "memory_paper", "memory_device", "bytes_down", "bytes_up", "model_bytes")
ROW, BAR = 66.0, 15.0  # pixels of a pair of bars, and of one of them

Fact = tuple[str, str, str]
"""What a large number is, the number, and a line that puts it into place."""


@dataclass(frozen=True, repr=False)
class Figure:
    """A drawing with its name (of the files), its title and what it says; notebooks show it.

    Example:
        >>> from fedtiny.drawing.canvas import Canvas
        >>> Figure("empty", "Nothing", "Nothing is drawn.", Canvas(20, 10)).save("it.svg").name
        'it.svg'
    """

    name: str
    """The name of its files, as in `accuracy`."""
    title: str
    """What it shows, in a few words."""
    caption: str
    """What it says, in sentences."""
    canvas: Canvas
    """What is drawn."""

    def __repr__(self) -> str:
        return f"<Figure {self.name!r}: {self.title}>"

    def _repr_svg_(self) -> str:
        """What a notebook shows."""
        return files.standalone(self.canvas, self.title)

    def save(self, path: Path | str) -> Path:
        """Write it to a file.

        Args:
            path: Where to; its ending says the format: .svg, or .png with the extra `plot`.

        Returns:
            The file.
        """
        place = Path(path)
        if place.suffix not in (".svg", ".png"):
            raise ConfigError(f"a figure is written as .svg or .png, not as {place.name!r}")
        content = self._repr_svg_().encode() if place.suffix == ".svg" else files.png(self.canvas)
        make_folder(place.parent)
        write_atomically(place, content)
        return place


def points_of(run: Run, key: str) -> tuple[tuple[float, float], ...]:
    """A number by round; rounds count from 1, and those without it are left out."""
    found = ((record["round"] + 1, number(record, key)) for record in run.records)
    return tuple((float(round), value) for round, value in found if value is not None)


def over_rounds(series: Sequence[Series], high: float) -> Canvas:
    """Values by round, from 0 to the given one; rounds count from 1."""
    canvas = Canvas(height=0)
    top = legend(canvas, [one.key for one in series])
    rounds = [x for one in series for x, _ in one.points]
    first, last = min(rounds), max(max(rounds), min(rounds) + 1)
    x, y = linear(first, last, "round", integers=True), linear(0, high or 1.0)
    draw_series(Plot(canvas, x, y, top), series)
    return canvas


def _figure(
    run: Run, name: str, shown: dict[str, tuple[str, str]], caption: str, room: float
) -> Figure | None:
    """A line for each number that was recorded, named with its last value, with room above."""
    series = []
    for key, (told, color) in shown.items():
        points = points_of(run, key)
        if points:
            dashed = key == "effective_density"  # often covers the other line
            series.append(Series(f"{told} {points[-1][1]:.4g}", color, points, dashed))
    if not series:
        return None
    high = max(y for one in series for _, y in one.points)
    high = 1.0 if name == "accuracy" and high > 0.5 else high * room
    return Figure(name, f"{name.capitalize()} by round", caption, over_rounds(series, high))


def accuracy(run: Run) -> Figure | None:
    """Test accuracy by round, with that on the devices if it was measured."""
    shown = {
        "accuracy": ("test set", "accent"),
        "device_accuracy_mean": ("devices, mean", "third"),
        "device_accuracy_worst": ("worst device", "second"),
    }
    points = next(filter(None, (points_of(run, key) for key in shown)), ((0.0, 0.0),))
    best_round, best = max(points, key=lambda point: point[1])
    (first_round, first), (last_round, last) = points[0], points[-1]
    caption = (
        f"Accuracy of the global model after each round: {first:.4f} after round "
        f"{first_round:.0f}, {last:.4f} after round {last_round:.0f}. The highest on the way was "
        f"{best:.4f} (round {best_round:.0f}); the run keeps the last model, not the best."
    )
    return _figure(run, "accuracy", shown, caption, 1.1)


def loss(run: Run) -> Figure | None:
    """Loss on the test set and in local training."""
    shown = {"loss": ("test set", "accent"), "train_loss": ("local training", "second")}
    caption = (
        "Cross-entropy of the global model on the test set, and the mean over devices while they "
        "train. A gap that opens means that devices learn what others do not have."
    )
    return _figure(run, "loss", shown, caption, 1.06)


def density(run: Run) -> Figure | None:
    """Density of the whole model, and what of it can reach the output."""
    shown = {"density": ("kept", "accent"), "effective_density": ("effective", "third")}
    caption = (
        "Share of the prunable weights that are kept, and (effective) that also lie on a path "
        f"from input to output. The target is {run.config.density:g}."
    )
    return _figure(run, "density", shown, caption, 1.15)


def title(run: Run) -> str:
    """What was trained, in a few words."""
    return f"{label(run.config.method)}: {task(run)}"


def task(run: Run) -> str:
    """The network and the data."""
    name = run.config.data.name
    data = "the digits" if name == "digits" else label(name)
    return f"{label(run.config.model)} on {data}"


def facts(run: Run) -> list[Fact]:
    """The result, as far as it is known."""
    return [*_reached(run), *_saved(run), *_effort(run), *_suspects(run)]


def _reached(run: Run) -> list[Fact]:
    found = []
    accuracy, loss, density = (
        number(run.outcome, name) for name in ("accuracy", "loss", "density")
    )
    if accuracy is not None:
        told = "" if loss is None else f"test loss {loss:.3f}"
        found.append(("Accuracy", f"{accuracy:.4f}", told))
    if density is not None:
        kept, every = (number(run.result, f"{name}_weights") for name in ("kept", "prunable"))
        told = f"{kept:,.0f} of {every:,.0f} weights" if kept and every else ""
        share = number(run.result, "whole_density")
        told += f", {share:.3g} of all parameters" if told and share is not None else ""
        found.append(("Density", f"{density:.4f}", told))
    return found


def _saved(run: Run) -> list[Fact]:
    """What is less than in a dense run."""
    by_name, found = {cost.name: cost for cost in costs(run)}, []
    if size := by_name.get(MODEL):
        told = (
            f"as it travels, {share(size.ours, size.dense)} of {formatting.size(size.dense)} dense"
        )
        found.append(("Model", formatting.size(size.ours), told))
    if flops := by_name.get(FLOPS):
        told = "of a dense round, on a device"
        found.append(("FLOPs", share(flops.ours, flops.dense), told))
    return found


def _effort(run: Run) -> list[Fact]:
    fleet, (done, planned) = run.config.fleet, (len(run.records), run.config.rounds)
    seconds = sum(number(record, "seconds") or 0.0 for record in run.records)
    rounds = str(done) if done == planned else f"{done} of {planned}"
    held = 0 if run.table is None else int(run.table.sum())  # real devices tell nobody of theirs
    images = f"{formatting.spread(fleet)}, {held:,} images" if held else ""
    found = [
        ("Rounds", rounds, f"in {duration(seconds)}"),
        ("Devices", str(fleet.devices), images),
    ]
    parts = (run.selection, *run.records)
    down, up = (sum(number(part, f"bytes_{way}") or 0 for part in parts) for way in ("down", "up"))
    if down or up:
        both = f"{formatting.size(down)} down, {formatting.size(up)} up, all devices"
        found.append(("Traffic", formatting.size(down + up), both))
    return found


def _suspects(run: Run) -> list[Fact]:
    """Devices that were out of the others' bounds, and rounds that were played again."""
    parts = (run.selection, *run.records)
    tables = [part.get("bounded") for part in parts]
    named = sorted({str(k) for own in tables if isinstance(own, dict) for k in own}, key=_order)
    again = sum(isinstance(record.get("rejected"), dict) for record in run.records)
    told = f"{again} rounds played again" if again else "of the others; brought back"
    shown = ", ".join(named) or "none"
    return [("Devices out of bounds", shown, told)] if named or again else []


def _order(device: str) -> tuple[int, str]:
    """Numbers in their order, whatever a damaged file holds."""
    return len(device), device


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


@dataclass(frozen=True)
class Cost:
    """One cost of this run and of a dense one."""

    name: str
    ours: float
    dense: float
    text: Callable[[float], str]


def pairs(shown: Sequence[Cost]) -> Canvas:
    """Two bars for each cost, on a scale of its own that starts at zero."""
    canvas = Canvas()
    top = legend(canvas, [Key("this run", "accent"), Key("dense", "dense")])
    canvas.height = top + ROW * len(shown)
    for place, cost in enumerate(shown):
        _draw_pair(canvas, cost, top + place * ROW)
    return canvas


def share(ours: float, dense: float) -> str:
    """A cost as a share of another.

    >>> share(1, 80), share(3, 2)
    ('1.25%', '150%')
    """
    return f"{100 * ours / dense:.3g}%"


def _draw_pair(canvas: Canvas, cost: Cost, top: float) -> None:
    room = canvas.width - 8 - text_width("999 GFLOPs", SMALL) - 8
    per_unit = room / max(cost.ours, cost.dense)
    told = f"{share(cost.ours, cost.dense)} of dense"
    canvas.add(Text(4, top + 16, cost.name, color="ink", bold=True))
    canvas.add(Text(canvas.width - 4, top + 16, told, "end", color="ink"))
    for place, (value, color) in enumerate(((cost.ours, "accent"), (cost.dense, "dense"))):
        y, width = top + 23 + place * (BAR + 3), max(1.5, value * per_unit)
        canvas.add(Boxes(((4, y, width, BAR),), color))
        canvas.add(Text(4 + width + 6, y + 12, cost.text(value), size=SMALL))


def costs(run: Run) -> list[Cost]:
    """The costs that are known of this run and of a dense one, of a device of mean size."""

    def highest(key: str) -> float | None:
        found = (number(record, key) for record in run.records)
        return max((value for value in found if value is not None), default=None)

    dense = {key: number(run.about.get("dense"), key) for key in DENSE_COSTS}
    down, up = dense["bytes_down"], dense["bytes_up"]
    moved = None if down is None or up is None else down + up
    size, model = formatting.size, number(run.result, "model_bytes")
    known = (
        (FLOPS, highest("flops"), dense["flops"], flops_text),
        ("Memory (paper's count)", highest("memory_paper"), dense["memory_paper"], size),
        ("Memory (whole device)", highest("memory_device"), dense["memory_device"], size),
        ("Bytes in a round", _bytes_a_round(run), moved, size),
        (MODEL, model, dense["model_bytes"], size),
    )
    return [Cost(name, ours, other, text) for name, ours, other, text in known if ours and other]


def _bytes_a_round(run: Run) -> float | None:
    try:
        return bytes_a_round(run.records)
    except (LookupError, TypeError, ValueError):
        return None


def flops_text(count: float) -> str:
    """A number of FLOPs, in units of a thousand.

    >>> flops_text(2_500_000)
    '2.5 MFLOPs'
    """
    return formatting.size(count).removesuffix("B").replace("k", "K") + "FLOPs"


def flops_number(count: float) -> str:
    """FLOPs on an axis that says so.

    >>> flops_number(2_500_000)
    '2.5 M'
    """
    return flops_text(count).removesuffix("FLOPs").strip()


def cost(run: Run) -> Figure | None:
    """FLOPs, memory and bytes of a device, beside those of a dense run."""
    found = costs(run)
    if not found:
        return None
    caption = (
        "What training costs one device of mean size, beside federated averaging of the dense "
        "network on the same data. FLOPs and memory are those of the costliest round, by the cost "
        "model; bytes are counted messages, both ways, on the mean of all rounds; the model is "
        "sized as it travels: kept values and coded positions."
    )
    return Figure("cost", "Cost beside a dense run", caption, pairs(found))
