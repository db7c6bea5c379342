"""The charts of a report: lines over rounds and densities, bars, and the selection pool."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from fedtiny.drawing.canvas import SMALL, Box, Canvas, Dot, Line, Words, shortened, text_width
from fedtiny.drawing.plot import (
    BELOW,
    AxisScale,
    Key,
    Plot,
    PlotAxis,
    Series,
    draw_series,
    draw_x,
    legend,
    log_ticks,
    number_text,
    padded,
    ticks,
)

ROW, BAR = 66.0, 15.0  # pixels of a pair of bars, and of one of them
LAYER = 20.0  # pixels of a layer


def over_rounds(series: Sequence[Series], high: float) -> Canvas:
    """Values by round, from 0 to the given one; rounds count from 1."""
    canvas = Canvas(height=0)
    top = legend(canvas, [one.key for one in series])
    xs = [x for one in series for x, _ in one.points]
    low, high = min(xs), max(max(xs), min(xs) + 1)
    x = PlotAxis(low, high, ticks(low, high, 6, whole=True), "round")
    draw_series(Plot(canvas, x, PlotAxis(0, high or 1.0, ticks(0, high or 1.0)), top), series)
    return canvas


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
    for number, cost in enumerate(shown):
        _draw_pair(canvas, cost, top + number * ROW)
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
    canvas.add(Words(4, top + 16, cost.name, color="ink", bold=True))
    canvas.add(Words(canvas.width - 4, top + 16, told, "end", color="ink"))
    for number, (value, color) in enumerate(((cost.ours, "accent"), (cost.dense, "dense"))):
        y, width = top + 23 + number * (BAR + 3), max(1.5, value * per_unit)
        canvas.add(Box(4, y, width, BAR, color))
        canvas.add(Words(4 + width + 6, y + 12, cost.text(value), size=SMALL))


def grown_and_dropped(grown: dict[int, int], dropped: dict[int, int], rounds: int) -> Canvas:
    """By round: grown weights above the line, dropped ones below."""
    canvas = Canvas(height=0)
    top = legend(canvas, [Key("grown", "good"), Key("dropped", "bad")])
    high = 1.08 * max([*grown.values(), *dropped.values(), 1])
    low = -1.08 * max([*dropped.values(), 0])
    x = PlotAxis(0.5, rounds + 0.5, ticks(1, rounds, 6, whole=True), "round")
    y = PlotAxis(low, high, ticks(low, high), text=lambda number: number_text(abs(number)))
    plot = Plot(canvas, x, y, top)
    width = max(1.5, 0.7 * (plot.x.end - plot.x.start) / rounds)
    signed = ((grown, 1, "good"), (dropped, -1, "bad"))
    for counts, sign, color in signed:
        for round, count in counts.items():
            ends = sorted((plot.y.at(0), plot.y.at(sign * count)))
            left = plot.x.at(round) - width / 2
            canvas.add(Box(left, ends[0], width, ends[1] - ends[0], color))
    plot.level(0, "muted")
    return canvas


def pool_losses(losses: Mapping[int, float], chosen: int) -> Canvas:
    """Candidates, by number from 0, from the best to the worst; the chosen one is marked."""
    canvas = Canvas(height=0)
    ordered = sorted(losses, key=lambda candidate: losses[candidate])
    winner = chosen if chosen in losses else ordered[0]
    told = f"chosen: candidate {winner + 1}, loss {losses[winner]:.4g}"
    top = legend(canvas, [Key(told, "second"), Key("others", "dense")])
    low, high = padded(list(losses.values()), 0.12)
    numbers = ticks(1, len(ordered), 6, whole=True)
    x = PlotAxis(0.4, len(ordered) + 0.6, numbers, "candidates, best first")
    plot = Plot(canvas, x, PlotAxis(low, high, ticks(low, high)), top, height=220)
    radius = max(2.0, min(5.0, 120 / len(ordered)))
    for place, candidate in enumerate(ordered, start=1):
        at, won = plot.at(place, losses[candidate]), candidate == chosen
        tip = f"candidate {candidate + 1}: loss {losses[candidate]:.4f}"
        if won:
            canvas.add(Dot(*at, radius + 4, "second", hollow=True))
        canvas.add(Dot(*at, radius, "second" if won else "dense", tip=tip))
    return canvas


def pool_layers(names: Sequence[str], densities: Sequence[Sequence[float]], chosen: int) -> Canvas:
    """By layer: from the least to the most dense of all candidates, and the chosen one."""
    canvas = Canvas()
    top = legend(canvas, [Key("all candidates", "dense"), Key("chosen", "second", "dot")])
    left = min(112.0, 8 + max(text_width(name, SMALL) for name in names))
    row = max(9.0, min(LAYER, 520 / len(names)))
    bottom = top + row * len(names)
    canvas.height = bottom + BELOW
    columns = list(zip(*densities, strict=True))
    values = [value for column in columns for value in column if value > 0]
    low, high = min(values) / 1.15, max(values) * 1.15
    x = AxisScale(low, high, left, canvas.width - 12, log=True)
    numbers = log_ticks(low, high)
    for number in numbers:
        canvas.add(Line(((x.at(number), top - 4), (x.at(number), bottom)), "grid", 1))
    draw_x(canvas, x, bottom, PlotAxis(low, high, numbers, "density of the layer (logarithmic)"))
    for number, (name, column) in enumerate(zip(names, columns, strict=True)):
        at = top + (number + 0.5) * row
        present, won = [value for value in column if value > 0] or [low], column[chosen]
        tip = f"{name}: {won:.4f}"
        canvas.add(
            Line(((x.at(min(present)), at), (x.at(max(present)), at)), "dense", 4),
            Dot(x.at(max(won, low)), at, min(4.5, row / 2.6), "second", tip=tip),
        )
        if row >= 11 or number % 2 == 0:
            canvas.add(Words(left - 6, at + 4, shortened(name, left - 8), "end", SMALL))
    return canvas
