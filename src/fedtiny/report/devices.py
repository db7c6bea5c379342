"""How devices differ: what they hold, how well the model serves them, what they did."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from fedtiny.drawing.canvas import SMALL, Canvas, Dot, Line, Text
from fedtiny.drawing.figure import Figure
from fedtiny.report.run import Run
from fedtiny.runs import formatting, metrics
from fedtiny.runs.metrics import numbers

ROW, LINE_AT = 58.0, 38.0  # pixels of a quantity, and where its line lies in them
RADIUS, STEP, LEVELS = 4.0, 5.0, (0, -1, 1, -2, 2)
"""Of devices with the same value, each lies so many steps beside the line."""


@dataclass(frozen=True)
class Quantity:
    """A number of each device, by device."""

    name: str
    heading: str
    values: dict[int, float]
    text: Callable[[float], str] = "{:,.0f}".format
    high: float | None = None
    """Where its line ends; default: at the largest value."""


def quantities(run: Run) -> list[Quantity]:
    """All that is known of every device; what is the same of all by nature is left out."""
    found = [
        Quantity("Training samples", "samples", _held(run, samples=True)),
        Quantity("Classes", "classes", _held(run, samples=False)),
        Quantity("Accuracy on its data", "accuracy", accuracies(run), "{:.4f}".format, 1.0),
        Quantity("Bytes, both ways", "bytes", moved(run), formatting.size),
        Quantity("Rounds missed", "missed", _counted(run, "failed")),
        Quantity("Rounds out of bounds", "out of bounds", _counted(run, "bounded")),
    ]
    return [one for one in found if any(one.values.values())]


def _held(run: Run, samples: bool) -> dict[int, float]:
    if run.table is None or not run.table.any():
        return {}
    found = run.table.sum(axis=1) if samples else (run.table > 0).sum(axis=1)
    return {device: float(count) for device, count in enumerate(found)}


def accuracies(run: Run) -> dict[int, float]:
    """Accuracy of the model on each device's own data, when it was last measured."""
    known = (numbers(record, "device_accuracies") for record in reversed(run.records))
    return {int(device): value for device, value in next(filter(None, known), {}).items()}


def _known(run: Run) -> Iterable[int]:
    """The devices that the data were spread over, or else those that a round names."""
    if run.table is not None:
        return range(len(run.table))
    named = [
        int(device)
        for record in run.records
        for key in ("answered", "failed", "bounded")
        for device in record.get(key, ())
    ]
    return sorted(set(named))


def moved(run: Run) -> dict[int, float]:
    """About what each device sent and received: its share of each round that it answered."""
    begun = (metrics.moved(run.selection) or 0.0) / run.config.fleet.devices
    found = dict.fromkeys(_known(run), begun)
    for record in run.records:
        asked = [device for device in record.get("answered", ()) if device in found]
        for device in asked:
            found[device] += (metrics.moved(record) or 0.0) / len(asked)
    return found


def _counted(run: Run, key: str) -> dict[int, float]:
    """In how many rounds a device is named under a key."""
    found = dict.fromkeys(_known(run), 0.0)
    for record in run.records:
        for device in map(int, record.get(key, ())):
            if device in found:
                found[device] += 1
    return found


def spread(run: Run) -> Figure | None:
    """A line for each quantity with a dot for each device."""
    shown = quantities(run)
    if not shown:
        return None
    canvas = Canvas(height=ROW * len(shown) + 4)
    for place, one in enumerate(shown):
        _draw(canvas, one, place * ROW, run.color)
    named = {one.heading for one in shown}
    told = "" if "accuracy" in named else " Accuracy on each device needs --eval-devices."
    told += (
        ""
        if {"missed", "out of bounds"} & named
        else (" No device missed a round or was out of the others' bounds.")
    )
    caption = (
        f"Each dot is one of {run.config.fleet.devices} devices, the upright line is the median; "
        f"lines begin at 0. Bytes are a device's share of the rounds that it answered.{told}"
    )
    return Figure("device_spread", "How devices differ", caption, canvas)


def _draw(canvas: Canvas, one: Quantity, top: float, color: str) -> None:
    values = one.values.values()
    low, middle, high = min(values), median(values), max(values)
    end, left, right = one.high or high, 10.0, canvas.width - 10
    y = top + LINE_AT
    told = f"{one.text(low)} to {one.text(high)}, median {one.text(middle)}"
    told = f"{one.text(low)} each" if one.text(low) == one.text(high) else told
    canvas.add(
        Text(4, top + 16, one.name, color="ink", bold=True),
        Text(canvas.width - 4, top + 16, told, "end", SMALL),
        Line(((left, y), (right, y)), "grid", 1.5),
    )

    def at(value: float) -> float:
        return left + (right - left) * value / end

    canvas.add(Line(((at(middle), y - 13), (at(middle), y + 13)), "muted", 1.5))
    canvas.add(*_dots(one, at, y, color))


def _dots(one: Quantity, at: Callable[[float], float], y: float, color: str) -> Sequence[Dot]:
    taken: dict[int, int] = {}
    dots = []
    for device, value in one.values.items():
        x = at(value)
        count = taken[round(x / 4)] = taken.get(round(x / 4), -1) + 1
        level = LEVELS[count % len(LEVELS)]
        tip = f"device {device}, {one.heading}: {one.text(value)}"
        dots.append(Dot(x, y + STEP * level, RADIUS, color, tip=tip, opacity=0.6))
    return dots


def rows(run: Run) -> tuple[list[str], list[list[str]]]:
    """Every device in numbers: headings, and a row for each."""
    shown = quantities(run)
    devices = sorted({device for one in shown for device in one.values})
    return ["device", *(one.heading for one in shown)], [
        [str(k), *(one.text(one.values[k]) if k in one.values else "" for one in shown)]
        for k in devices
    ]
