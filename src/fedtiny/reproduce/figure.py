"""An experiment as a figure: ours filled, the paper's hollow."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedtiny.extras import require
from fedtiny.reproduce import labels, style
from fedtiny.reproduce.bars import draw_bars
from fedtiny.reproduce.lines import draw_lines
from fedtiny.reproduce.outcome import Outcome
from fedtiny.reproduce.places import Place, along
from fedtiny.reproduce.quantities import QUANTITIES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = ("svg", "png")
PANEL = {"lines": (4.8, 3.4), "bars": (6.4, 3.4)}  # inches
MAX_PANELS_A_ROW = 2
LEGEND_COLUMNS = 4


@dataclass(frozen=True)
class Panel:
    """One pair of axes: these places, these quantities."""

    title: str
    places: Sequence[Place]
    quantities: tuple[str, ...]


def panels(outcome: Outcome) -> list[Panel]:
    """A panel for each value of the axis that is spread over panels, or for each quantity."""
    layout = outcome.experiment.figure
    if layout.panels is not None:
        axis = layout.panels
        return [
            Panel(at.label, [p for p in outcome.places if p.at[axis].value == at.value], layout.y)
            for at in along(outcome.places, axis)
        ]
    if layout.series is None:
        return [Panel("", outcome.places, layout.y)]
    return [Panel("", outcome.places, (quantity,)) for quantity in layout.y]


def draw(outcome: Outcome) -> "Figure":
    """The whole figure."""
    require("matplotlib", extra="plot").use("Agg")
    pyplot = require("matplotlib.pyplot", extra="plot")
    drawn, layout = panels(outcome), outcome.experiment.figure
    across = min(MAX_PANELS_A_ROW, len(drawn))
    down = -(-len(drawn) // across)
    width, height = PANEL[layout.kind]
    with pyplot.rc_context(style.RC):
        figure, axes = pyplot.subplots(
            down,
            across,
            figsize=(max(6.4, across * width), down * height + 1.1),
            squeeze=False,
            sharey=layout.panels is not None,
            layout="constrained",
        )
        for panel, place in zip(drawn, axes.flat, strict=False):
            _draw_panel(outcome, panel, place)
        for empty in axes.flat[len(drawn) :]:
            empty.set_visible(False)
        _dress(figure, outcome, axes.flat[0])
    made: Figure = figure
    return made


def write(outcome: Outcome, folder: Path) -> list[Path]:
    """Write the figure in every format; gives the paths."""
    pyplot = require("matplotlib.pyplot", extra="plot")
    figure = draw(outcome)
    paths = [folder / f"figure.{form}" for form in FORMATS]
    with pyplot.rc_context(style.RC):
        for path in paths:
            undated = {"Date": None} if path.suffix == ".svg" else None
            temporary = path.with_name(f".{path.name}")
            figure.savefig(temporary, format=path.suffix[1:], metadata=undated)
            temporary.replace(path)
    pyplot.close(figure)
    return paths


def _draw_panel(outcome: Outcome, panel: Panel, axes: "Axes") -> None:
    layout = outcome.experiment.figure
    draw = draw_lines if layout.kind == "lines" else draw_bars
    draw(outcome, panel.places, panel.quantities, axes)
    first, place = QUANTITIES[panel.quantities[0]], axes.get_subplotspec()
    if layout.panels is None or place is None or place.is_first_col():
        axes.set_ylabel(first.unit if len(panel.quantities) > 1 else first.label)
    axes.set_xlabel(labels.axis(layout.x))
    axes.set_title(panel.title)


def _dress(figure: Any, outcome: Outcome, axes: "Axes") -> None:
    """The title, one legend for all panels, and how much of it is finished."""
    figure.suptitle(outcome.experiment.title, fontsize=13)
    handles, names = axes.get_legend_handles_labels()
    named = dict(zip(names, handles, strict=True))
    named["paper"] = named.pop("paper")  # comes last
    done = len(outcome.places) - outcome.missing
    legend = figure.legend(
        named.values(),
        named.keys(),
        loc="outside lower center",
        ncols=min(len(named), LEGEND_COLUMNS),
        title=f"scale {outcome.scale.name}, {done} of {len(outcome.places)} cells finished",
    )
    legend.get_title().set(color=style.GREY, fontsize=9)
