"""Lines in several panels under one legend, on values that can be compared."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fedtiny.drawing import plot as plots
from fedtiny.drawing.canvas import Canvas, Text
from fedtiny.drawing.plot import Axis, Key, Plot
from fedtiny.drawing.series import Series, draw_series

WIDTH = 400.0  # pixels of a panel
MAX_ACROSS = 2
TITLE = 26.0
GAP = 14.0  # between rows of panels
WIDE = 10  # times as far as the shortest: lines that end so far apart need a logarithmic axis


@dataclass(frozen=True)
class Panel:
    """One pair of axes: its title, and what lies between them."""

    title: str
    lines: Sequence[Series]


@dataclass(frozen=True)
class Abscissa:
    """What the lines of all panels go over, from 0."""

    title: str
    text: Callable[[float], str] = plots.number_text
    integers: bool = False
    """Whole numbers, never on a logarithmic axis."""
    told: Callable[[float], str] | None = None
    """A number with its unit, as a tip tells it; default: the title and the number."""

    def axis(self, lines: Sequence[Series], log: bool, width: float) -> Axis:
        """As far as the longest line goes, with as many numbers as there is room for."""
        xs = [x for line in lines for x, _ in line.points]
        low, high, title = min(xs) if log else 0.0, max(xs), self.title
        if log:
            numbers, title = plots.log_ticks(low, high), f"{title} (logarithmic)"
        else:
            numbers = plots.ticks(low, high, 6 if self.integers else 5, self.integers)
        axis = Axis(low, high, numbers, title, log, self.text, told=self.told)
        return plots.with_room(axis, width - 60)


def draw_shares(
    canvas: Canvas, panels: Sequence[Panel], x: Abscissa, keys: Sequence[Key] = (), top: float = 0.0
) -> None:
    """Accuracies over x, in as many panels across as the canvas has room for."""
    across = max(1, int(canvas.width / WIDTH))
    width, lines = canvas.width / across, [line for panel in panels for line in panel.lines]
    named = {line.name: _key(line) for line in lines if not line.hollow}
    top = plots.legend(canvas, [*named.values(), *keys], top)
    low, high = plots.padded([value for line in lines for _, value in line.points])
    y = plots.linear(max(0.0, low), min(1.0, high), "accuracy")
    ends = [line.points[-1][0] for line in lines]
    log = not x.integers and min(ends) > 0 and max(ends) > WIDE * min(ends)
    above = TITLE if any(panel.title for panel in panels) else 0.0
    for number, panel in enumerate(panels):
        row, column = divmod(number, across)
        left, under = column * width, top + row * (above + plots.HEIGHT + plots.BELOW + GAP)
        canvas.add(Text(left + width / 2, under + 14, panel.title, "middle", color="ink"))
        axis = x.axis(panel.lines, log, width)
        plot = Plot(canvas, axis, y, under + above, left=left, right=left + width)
        draw_series(plot, panel.lines)


def _key(line: Series) -> Key:
    mark: plots.Mark = "dashed line" if line.dashed else "line, dot"
    return Key(line.name, line.color, mark, line.form, line.opacity)
