"""What FLOPs buy: accuracy at the end over the cost of a round, and what no other run beats."""

from collections.abc import Sequence
from dataclasses import dataclass

from fedtiny.drawing import plot as plots
from fedtiny.drawing.canvas import Canvas, Dot, Line
from fedtiny.drawing.plot import Key
from fedtiny.experiments.places import Place
from fedtiny.experiments.quantities import label
from fedtiny.experiments.results import Value
from fedtiny.report.comparison import Group, look, ordered, side_by_side
from fedtiny.report.facts import Figure, flops_number, flops_text
from fedtiny.runs.metrics import number

MARGIN = 1.3  # beside the first and the last value of a logarithmic axis, as a factor


@dataclass(frozen=True)
class Reached:
    """What runs of one method and density cost, and where they ended."""

    place: Place
    flops: float
    accuracy: Value

    @property
    def name(self) -> str:
        """The method, and its density if it has one."""
        method = label(self.place.config.method)
        return method if self.place.dense else f"{method} {self.place.config.density:g}"


def front(group: Group) -> Figure | None:
    """Accuracy at the end over the FLOPs of a plain round: what no other run beats in both."""
    found = reached(group)
    if len(found) < 2:
        return None
    best = pareto(found)
    listed = ", ".join(
        f"{one.name} ({one.accuracy.mean:.4f}, {flops_text(one.flops)})" for one in best
    )
    caption = (
        "Accuracy at the end, the mean over seeds, over the FLOPs of a round that adjusts nothing, "
        f"for a device of mean size. On the front, where no run is as cheap and better: {listed}."
    )
    return Figure("front", "Accuracy over FLOPs of a round", caption, _draw(group, found, best))


def reached(group: Group) -> list[Reached]:
    """Finished runs by method and density, as far as they tell what a plain round costs."""
    runs = []
    for run in ordered(group.runs):
        plain = [number(record, "flops_plain") for record in run.records]
        known = [flops for flops in plain if flops is not None]
        accuracy = number(run.result, "accuracy")
        if known and accuracy is not None:
            runs.append((run, {"accuracy": accuracy, "flops_training": max(known)}))
    results = side_by_side(runs)
    found = []
    for place in results.places:
        cost, end = (results.ours(place, name) for name in ("flops_training", "accuracy"))
        if cost and end:
            found.append(Reached(place, cost.mean, end))
    return found


def pareto(found: Sequence[Reached]) -> list[Reached]:
    """From the cheapest to the dearest: each more accurate than all that cost less."""
    best: list[Reached] = []
    for one in sorted(found, key=lambda one: (one.flops, -one.accuracy.mean)):
        if not best or one.accuracy.mean > best[-1].accuracy.mean:
            best.append(one)
    return best


def _draw(group: Group, found: Sequence[Reached], best: Sequence[Reached]) -> Canvas:
    canvas, methods = Canvas(height=0), dict.fromkeys(one.place.config.method for one in found)
    keys = []
    for method in methods:
        color, form = look(group, method)
        keys.append(Key(label(method), color, "dot", form))
    if len(best) > 1:
        keys.append(Key("front", "muted", "dashed line"))
    top = plots.legend(canvas, keys)
    plot = plots.Plot(canvas, _cost_axis(found, canvas.width), _accuracy_axis(found), top)
    line = tuple(plot.at(one.flops, one.accuracy.mean) for one in best)
    canvas.add(Line(line, "muted", 1.4, dashed=True))
    for one in found:
        color, form = look(group, one.place.config.method)
        x, y = plot.at(one.flops, one.accuracy.mean)
        plots.draw_spread(plot, x, one.accuracy.mean, one.accuracy.spread)
        tip = f"{one.name}: {one.accuracy.mean:.4f}, {flops_text(one.flops)}"
        canvas.add(Dot(x, y, 4.6, color, tip=tip, form=form))
    return canvas


def _cost_axis(found: Sequence[Reached], width: float) -> plots.Axis:
    costs = [one.flops for one in found]
    low, high = min(costs) / MARGIN, max(costs) * MARGIN
    numbers, title = plots.log_ticks(low, high), "FLOPs of a plain round (logarithmic)"
    axis = plots.Axis(low, high, numbers, title, log=True, text=flops_number)
    return plots.with_room(axis, width - 60)


def _accuracy_axis(found: Sequence[Reached]) -> plots.Axis:
    ends = [one.accuracy.mean + side * one.accuracy.spread for one in found for side in (-1, 1)]
    low, high = plots.padded(ends, 0.1)
    return plots.linear(max(0.0, low), min(1.0, high))
