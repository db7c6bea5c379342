"""Every figure of a run."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtiny.drawing import plot as plots
from fedtiny.drawing.canvas import Canvas, Dot, Line, shortened
from fedtiny.drawing.heat import MAX_HEIGHT, MAX_NAME, TALL, Map, Values, heat
from fedtiny.report.facts import Figure, accuracy, cost, density, loss
from fedtiny.report.run import Run
from fedtiny.runs.metrics import number, numbers, strings
from fedtiny.runs.numbering import round_number


def figures(run: Run) -> dict[str, list[Figure]]:
    """Every figure that the run has the data for, by section."""
    made = {
        "How it learned": (accuracy(run), loss(run)),
        "The data on the devices, and what training costs them": (partition(run), cost(run)),
        "How the first mask was chosen": (pool(run), pool_by_layer(run)),
        "Density and adjustments": (
            *(density(run), adjustments(run), layer_densities(run), adjusted_layers(run)),
        ),
    }
    return {title: [f for f in found if f] for title, found in made.items() if any(found)}


def partition(run: Run) -> Figure | None:
    """Training images by device and class."""
    table = run.table
    if table is None or table.ndim != 2 or not table.any():
        return None
    classes = strings(run.about, "classes")
    names = classes if len(classes) == table.shape[1] else [str(c) for c in range(table.shape[1])]
    held = [int((row > 0).sum()) for row in table]
    shown = Map(
        [f"device {device}" for device in range(len(table))],
        [[float(count) for count in row] for row in table],
        names,
        "class",
        [f"{row.sum():,}" for row in table],
        "images",
        form="{:.0f}",
        numbers=True,
    )
    caption = (
        f"Training images of each device by class: {table.sum():,} on {len(table)} devices, "
        f"{table.sum(axis=1).min():,} to {table.sum(axis=1).max():,} each. A device holds "
        f"{min(held)} to {max(held)} of {table.shape[1]} classes; a blank is a class it never sees."
    )
    return Figure("partition", "Who has which images", caption, heat(shown))


def _by_round(
    run: Run, layers: list[str], values: Values, ends: list[str], end_title: str, **look: Any
) -> Canvas:
    """Layers down, rounds across, and a text behind each layer."""
    rows = [layer.removesuffix(".weight") for layer in layers]
    rounds = [str(round_number(record)) for record in run.records]
    return heat(Map(rows, values, rounds, "round", ends, end_title, form="{:.2g}", first=1, **look))


def _layers_of(run: Run, key: str) -> list[str]:
    """Every layer that is named in any round, in order."""
    return list(dict.fromkeys(name for record in run.records for name in numbers(record, key)))


def layer_densities(run: Run) -> Figure | None:
    """Density by layer and round."""
    layers = _layers_of(run, "densities")
    if not layers:
        return None
    by_round = [numbers(record, "densities") for record in run.records]
    values = [[round.get(layer) for round in by_round] for layer in layers]
    found = [value for row in values for value in row if value]
    wide = bool(found) and max(found) > 10 * min(found)
    last = [f"{by_round[-1].get(layer, 0):.4f}" for layer in layers]
    caption = (
        "Density of each prunable layer after each round; the stronger, the denser"
        f"{' (logarithmic)' if wide else ''}. A row of one shade kept its density: "
        "as much was grown as dropped."
    )
    drawn = _by_round(run, layers, values, last, "at the end", log=wide)
    return Figure("layers", "Density by layer and round", caption, drawn)


def adjustments(run: Run) -> Figure | None:
    """What each adjustment grew and dropped, of all layers."""
    grown, dropped = (_totals(run, key) for key in ("grown", "dropped"))
    if not grown and not dropped:
        return None
    caption = (
        f"{len(grown.keys() | dropped.keys())} of {len(run.records)} rounds changed the mask: "
        f"{sum(grown.values()):,} weights were grown (above the line) and "
        f"{sum(dropped.values()):,} dropped (below) in all."
    )
    drawn = _grown_and_dropped(grown, dropped, round_number(run.records[-1]))
    return Figure("adjustments", "What adjustments grew and dropped", caption, drawn)


def _grown_and_dropped(grown: dict[int, int], dropped: dict[int, int], rounds: int) -> Canvas:
    """By round: grown weights above the line, dropped ones below."""
    canvas = Canvas(height=0)
    top = plots.legend(canvas, [plots.Key("grown", "good"), plots.Key("dropped", "bad")])
    high = 1.08 * max([*grown.values(), *dropped.values(), 1])
    low = -1.08 * max([*dropped.values(), 0])
    x = plots.Axis(0.5, rounds + 0.5, plots.ticks(1, rounds, 6, integers=True), "round")
    y = plots.Axis(
        low, high, plots.ticks(low, high), text=lambda number: plots.number_text(abs(number))
    )
    plot = plots.Plot(canvas, x, y, top)
    width = max(1.5, 0.7 * (plot.x.end - plot.x.start) / rounds)
    for counts, sign, color in ((grown, 1, "good"), (dropped, -1, "bad")):
        for round, count in counts.items():
            plot.bar(plot.x.at(round), width, 0, sign * count, color)
    plot.level(0, "muted")
    return canvas


def _totals(run: Run, key: str) -> dict[int, int]:
    totals = {
        round_number(record): int(sum(numbers(record, key).values())) for record in run.records
    }
    return {round: count for round, count in totals.items() if count}


def adjusted_layers(run: Run) -> Figure | None:
    """Which layers changed when, as a share of what they keep."""
    layers, sizes = _layers_of(run, "adjusted"), numbers(run.about, "layers")
    ordered = [layer for layer in sizes if layer in layers]
    if not ordered:
        return None
    values = [
        [_swapped(record, layer, sizes[layer]) for record in run.records] for layer in ordered
    ]
    totals = [
        f"{sum(numbers(record, 'adjusted').get(layer, 0) for record in run.records):,.0f}"
        for layer in ordered
    ]
    caption = (
        "Which layers each adjustment changed, as a share of the weights that the layer keeps; "
        "at the right the number over the whole run. Layers that never changed are left out."
    )
    drawn = _by_round(run, ordered, values, totals, "swapped", color="third")
    return Figure("adjusted_layers", "Where the mask changed", caption, drawn)


def _swapped(record: dict[str, object], layer: str, size: float) -> float | None:
    kept = numbers(record, "densities").get(layer, 0) * size
    changed = numbers(record, "adjusted").get(layer)
    return changed / max(kept, changed) if changed else None


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
        return "the least biased one is chosen"
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
    top = plots.legend(canvas, [plots.Key(told, "second"), plots.Key("others", "dense")])
    places = plots.ticks(1, len(ordered), 6, integers=True)
    x = plots.Axis(0.4, len(ordered) + 0.6, places, "candidates, best first")
    y = plots.linear(*plots.padded(list(losses.values()), 0.12))
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
        canvas.add(Dot(*dot, min(4.5, row / 2.6), "second", tip=f"{name}: {won:.4f}"))
    return canvas
