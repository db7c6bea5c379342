"""What a cost buys: accuracy at the end of many runs over it, and what no other run beats."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from fedtiny.drawing import plot as plots
from fedtiny.drawing.canvas import Canvas, Dot, Line
from fedtiny.drawing.figure import Figure
from fedtiny.drawing.plot import Key
from fedtiny.drawing.series import draw_spread
from fedtiny.experiments.pareto import MARGIN, SAME, front
from fedtiny.experiments.quantities import label
from fedtiny.experiments.results import Value
from fedtiny.report.comparison import Group, look, ordered, side_by_side, unusual
from fedtiny.report.costs import flops_number, flops_text
from fedtiny.report.curves import bytes_so_far
from fedtiny.report.run import Run
from fedtiny.runs import formatting
from fedtiny.runs.metrics import number

MAX_LISTED = 8  # runs of the front that the caption names


@dataclass(frozen=True)
class Price:
    """What a run costs, and how it is called."""

    name: str
    title: str
    meaning: str
    axis: str
    of: Callable[[Run], float | None]
    text: Callable[[float], str]
    told: Callable[[float], str]


@dataclass(frozen=True)
class Reached:
    """What runs of one method and density cost, and where they ended."""

    name: str
    method: str
    cost: float
    accuracy: Value


def costliest_flops(run: Run) -> float | None:
    """The FLOPs of the costliest round."""
    found = (number(record, "flops") for record in run.records)
    return max((flops for flops in found if flops is not None), default=None)


def plain_flops(run: Run) -> float | None:
    """The most FLOPs of a round that adjusts nothing."""
    found = (number(record, "flops_plain") for record in run.records)
    return max((flops for flops in found if flops is not None), default=None)


def bytes_in_all(run: Run) -> float | None:
    """What a device that answers in every round moves in the whole run."""
    found = bytes_so_far(run)
    return found[-1] if found else None


def packed_size(run: Run) -> float | None:
    """Bytes of the packed model."""
    return None if run.packed_bytes is None else float(run.packed_bytes)


def sent_size(run: Run) -> float | None:
    """Bytes of the model in a message."""
    return number(run.result, "model_bytes")


PRICES = (
    Price(
        "front",
        "Accuracy over FLOPs of a round",
        "the FLOPs of the costliest round, for a device of mean size",
        "FLOPs of the costliest round",
        *(costliest_flops, flops_number, flops_text),
    ),
    Price(
        "front_by_bytes",
        "Accuracy over bytes of a device",
        "what a device that answers in every round moves in the whole run, selection included",
        "bytes of a device in the run",
        *(bytes_in_all, formatting.size, formatting.size),
    ),
)


PLAIN = Price(
    "front_by_plain_flops",
    "Accuracy over FLOPs of a plain round",
    "the FLOPs of a round that adjusts nothing, for a device of mean size",
    "FLOPs of a plain round",
    *(plain_flops, flops_number, flops_text),
)
PACKED = Price(
    "front_by_size",
    "Accuracy over model size",
    "the size of the model (its packed file)",
    "size of the packed model",
    *(packed_size, formatting.size, formatting.size),
)
AS_SENT = replace(
    PACKED,
    title="Accuracy over model size, as sent",
    meaning="the size of the model as it is sent to a device (not all runs have a packed file)",
    axis="size of the model, as sent",
    of=sent_size,
)


def fronts(groups: Sequence[Group]) -> list[Figure]:
    """Accuracy over every cost that two kinds of runs tell."""
    done = [run for group in groups for run in group.runs if run.finished]
    size = PACKED if all(run.packed_bytes for run in done) else AS_SENT
    told = [run for run in done if plain_flops(run)]
    adjusting = any(plain_flops(run) != costliest_flops(run) for run in told)
    prices = (PLAIN, *PRICES, size) if adjusting else (*PRICES, size)
    return [figure for price in prices if (figure := _front(groups, price))]


def _front(groups: Sequence[Group], price: Price) -> Figure | None:
    found = reached(groups, price)
    if len(found) < 2:
        return None
    best = best_of(found)
    listed = [f"{one.name} ({one.accuracy.mean:.4f}, {price.told(one.cost)})" for one in best]
    more = f" and {len(listed) - MAX_LISTED} more" if len(listed) > MAX_LISTED else ""
    caption = (
        f"Accuracy at the end, the mean over seeds, over {price.meaning}. On the Pareto front, "
        f"where no run as cheap, to {SAME:.0%}, is better: {', '.join(listed[:MAX_LISTED])}{more}."
    )
    runs = [run for group in groups for run in group.runs]
    return Figure(price.name, price.title, caption, _draw(runs, price, found, best))


def reached(groups: Sequence[Group], price: Price) -> list[Reached]:
    """Finished runs by settings, method and density, as far as they tell the cost."""
    found = []
    for group in groups:
        runs = []
        for run in ordered(group.runs):
            cost, accuracy = price.of(run), number(run.result, "accuracy")
            if cost and accuracy is not None:
                runs.append((run, {"accuracy": accuracy, "flops_training": cost}))
        results = side_by_side(runs)
        others = unusual(group, groups)
        also = f", {others}" if others else ""
        for place in results.places:
            paid, end = (results.ours(place, name) for name in ("flops_training", "accuracy"))
            method, density = place.config.method, place.config.density
            name = label(method) if place.dense else f"{label(method)} {density:g}"
            if paid and end:
                found.append(Reached(name + also, method, paid.mean, end))
    return found


def best_of(found: Sequence[Reached]) -> list[Reached]:
    """The Pareto front."""
    return front(found, lambda one: one.cost, lambda one: one.accuracy.mean)


def _draw(
    runs: Sequence[Run], price: Price, found: Sequence[Reached], best: Sequence[Reached]
) -> Canvas:
    canvas, methods = Canvas(height=0), dict.fromkeys(one.method for one in found)
    keys = []
    for method in methods:
        color, form = look(runs, method)
        keys.append(Key(label(method), color, "dot", form))
    if len(best) > 1:
        keys.append(Key("front", "muted", "dashed line"))
    top = plots.legend(canvas, keys)
    axis = _cost_axis(price, [one.cost for one in found], canvas.width)
    plot = plots.Plot(canvas, axis, _accuracy_axis(found), top)
    line = tuple(plot.at(one.cost, one.accuracy.mean) for one in best)
    canvas.add(Line(line, "muted", 1.4, dashed=True))
    for one in found:
        color, form = look(runs, one.method)
        x, y = plot.at(one.cost, one.accuracy.mean)
        draw_spread(plot, x, one.accuracy.mean, one.accuracy.spread)
        tip = f"{one.name}: {plot.y.tell(one.accuracy.mean)}, {price.told(one.cost)}"
        canvas.add(Dot(x, y, 4.6, color, tip=tip, form=form))
    return canvas


def _cost_axis(price: Price, costs: Sequence[float], width: float) -> plots.Axis:
    low, high = min(costs) / MARGIN, max(costs) * MARGIN
    numbers, title = plots.log_ticks(low, high), f"{price.axis} (logarithmic)"
    axis = plots.Axis(low, high, numbers, title, log=True, text=price.text)
    return plots.with_room(axis, width - 60)


def _accuracy_axis(found: Sequence[Reached]) -> plots.Axis:
    ends = [one.accuracy.mean + side * one.accuracy.spread for one in found for side in (-1, 1)]
    low, high = plots.padded(ends, 0.1)
    return plots.linear(max(0.0, low), min(1.0, high), "accuracy")
