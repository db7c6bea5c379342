"""How the first mask was chosen: the candidates and their losses."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from fedtiny.drawing import plot as plots
from fedtiny.drawing.canvas import Canvas, Dot, Line, shortened
from fedtiny.drawing.figure import Figure
from fedtiny.drawing.heat import MAX_HEIGHT, MAX_NAME, TALL
from fedtiny.report.run import Run
from fedtiny.runs.metrics import number, numbers, strings


def pool(run: Run) -> Figure | None:
    """The loss of every candidate, the winner marked."""
    found = _pool(run)
    if not found:
        return None
    losses, chosen = found
    least, most = min(losses.values()), max(losses.values())
    lost = len(run.selection["selection"]["losses"]) - len(losses)
    caption = (
        f"Loss of each of {len(losses)} candidates on the devices' own data before training, "
        f"from {least:.3f} to {most:.3f}; {_how_chosen(run)}."
        + (f" {lost} more had no finite loss." if lost else "")
    )
    return Figure("pool", "The selection pool", caption, _draw_losses(losses, chosen))


def _how_chosen(run: Run) -> str:
    tied = run.selection["selection"].get("tied")
    if not isinstance(tied, list) or len(tied) < 2:
        return "the one with the lowest loss is chosen"
    return f"{len(tied)} cannot be told apart, and the best connected of them is chosen"


def _pool(run: Run) -> tuple[dict[int, float], int] | None:
    """The losses of candidates by number from 0, and the chosen one."""
    found = run.selection.get("selection")
    losses = found.get("losses") if isinstance(found, dict) else None
    chosen = number(found, "chosen")
    if not isinstance(losses, list) or chosen is None:
        return None
    values = {place: number({"loss": loss}, "loss") for place, loss in enumerate(losses)}
    known = {place: loss for place, loss in values.items() if loss is not None}
    return (known, int(chosen)) if known else None


def _draw_losses(losses: Mapping[int, float], chosen: int) -> Canvas:
    """Candidates, by number from 0, from the best to the worst; the chosen one is marked."""
    canvas = Canvas(height=0)
    ordered = sorted(losses, key=lambda candidate: losses[candidate])
    winner = chosen if chosen in losses else ordered[0]
    told = f"chosen: candidate {winner + 1}, loss {losses[winner]:.4g}"
    keys = [plots.Key(told, "second", "dot"), plots.Key("others", "dense", "dot")]
    top = plots.legend(canvas, keys)
    places = plots.ticks(1, len(ordered), 6, integers=True)
    x = plots.Axis(0.4, len(ordered) + 0.6, places, "candidates, best first")
    y = plots.linear(*plots.padded(list(losses.values()), 0.12), "loss")
    plot = plots.Plot(canvas, x, y, top, height=220)
    radius = max(2.0, min(5.0, 120 / len(ordered)))
    for place, candidate in enumerate(ordered, start=1):
        at, won = plot.at(place, losses[candidate]), candidate == chosen
        tip = f"candidate {candidate + 1}: loss {losses[candidate]:.4f}"
        if won:
            canvas.add(Dot(*at, radius + 4, "second", hollow=True))
        canvas.add(Dot(*at, radius, "second" if won else "dense", tip=tip))
    return canvas


def pool_by_layer(run: Run) -> Figure | None:
    """How the chosen candidate spreads its weights over the layers."""
    found, names = _pool(run), strings(run.selection.get("selection"), "layers")
    densities = _densities(run, names)
    if not found or densities is None or found[1] >= len(densities):
        return None
    caption = (
        "What a candidate is: a density for each layer. The bar spans all candidates, the dot is "
        "the chosen one."
    )
    drawn = _draw_layers([name.removesuffix(".weight") for name in names], densities.T, found[1])
    return Figure("pool_layers", "The chosen candidate by layer", caption, drawn)


def _densities(run: Run, names: list[str]) -> NDArray[np.float64] | None:
    """By candidate and layer; nothing if counts or sizes are not known."""
    sizes, selection = numbers(run.about, "layers"), run.selection.get("selection")
    counts = selection.get("layer_counts") if isinstance(selection, dict) else None
    try:
        kept = np.array(counts, dtype=np.float64)
        full = np.array([sizes[name] for name in names])
    except (KeyError, TypeError, ValueError):
        return None
    if kept.ndim != 2 or kept.shape[1] != len(full) or not full.all():
        return None
    densities: NDArray[np.float64] = kept / full
    return densities if (densities > 0).any() and np.isfinite(densities).all() else None


def _draw_layers(names: Sequence[str], by_layer: NDArray[np.float64], chosen: int) -> Canvas:
    """By layer: from the least to the most dense of all candidates, and the chosen one."""
    canvas = Canvas(height=0)
    top = plots.legend(
        canvas, [plots.Key("all candidates", "dense"), plots.Key("chosen", "second", "dot")]
    )
    row = max(9.0, min(TALL, MAX_HEIGHT / len(names)))
    values = by_layer[by_layer > 0]
    low, high = float(values.min()) / 1.15, float(values.max()) * 1.15
    x = plots.Axis(
        low, high, plots.log_ticks(low, high), "density of the layer (logarithmic)", log=True
    )
    every = 1 if row >= 11 else 2
    y = plots.Axis(
        len(names) - 0.5,
        -0.5,
        range(0, len(names), every),
        "layer",
        text=lambda layer: shortened(names[round(layer)], MAX_NAME),
    )
    plot = plots.Plot(canvas, x, y, top, height=row * len(names))
    for place in x.numbers:
        at = plot.x.at(place)
        canvas.add(Line(((at, plot.y.end), (at, plot.y.start)), "grid", 1))
    for place, (name, column) in enumerate(zip(names, by_layer.tolist(), strict=True)):
        present, won = [value for value in column if value > 0] or [low], column[chosen]
        ends = (plot.at(min(present), place), plot.at(max(present), place))
        dot = plot.at(max(won, low), place)
        canvas.add(Line(ends, "dense", 4))
        canvas.add(Dot(*dot, min(4.5, row / 2.6), "second", tip=f"{name}: density {won:.4f}"))
    return canvas
