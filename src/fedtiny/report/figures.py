"""Every figure of a run."""

from typing import Any

from fedtiny.drawing import plot as plots
from fedtiny.drawing.canvas import Canvas
from fedtiny.drawing.figure import Figure
from fedtiny.drawing.heat import Map, Values, heat
from fedtiny.report.costs import cost
from fedtiny.report.curves import accuracy_curves_of
from fedtiny.report.devices import spread
from fedtiny.report.final import class_accuracy, confusion
from fedtiny.report.learning import accuracy, density, epsilon, loss
from fedtiny.report.pool import pool, pool_by_layer
from fedtiny.report.run import Run
from fedtiny.runs.metrics import numbers


def figures(run: Run) -> dict[str, list[Figure]]:
    """Every figure that the run has the data for, by section."""
    made = {
        "How it learned": (accuracy(run), loss(run), epsilon(run)),
        "The final model on the test set": (confusion(run), class_accuracy(run)),
        "What training cost": (*accuracy_curves_of(run), cost(run)),
        "The devices": (partition(run), spread(run)),
        "How the first mask was chosen": (pool(run), pool_by_layer(run)),
        "Density and adjustments": (
            *(density(run), adjustments(run), layer_densities(run), adjusted_layers(run)),
        ),
    }
    return {title: [f for f in found if f] for title, found in made.items() if any(found)}


def partition(run: Run) -> Figure | None:
    """Training samples by device and class."""
    table = run.table
    if table is None or table.ndim != 2 or not table.any():
        return None
    held = [int((row > 0).sum()) for row in table]
    shown = Map(
        [str(device) for device in range(len(table))],
        [[float(count) for count in row] for row in table],
        run.class_names(table.shape[1]),
        "class",
        "device",
        "samples",
        [f"{row.sum():,}" for row in table],
        "samples",
        form="{:.0f}",
        numbers=True,
    )
    caption = (
        f"Training samples of each device by class: {table.sum():,} on {len(table)} devices, "
        f"{table.sum(axis=1).min():,} to {table.sum(axis=1).max():,} each. A device holds "
        f"{min(held)} to {max(held)} of {table.shape[1]} classes; a blank is a class it never sees."
    )
    return Figure("partition", "Who has which samples", caption, heat(shown))


def _by_round(
    run: Run, layers: list[str], values: Values, ends: list[str], end_title: str, **look: Any
) -> Canvas:
    """Layers down, rounds across, and a text behind each layer."""
    rows = [layer.removesuffix(".weight") for layer in layers]
    rounds = [str(record["round_number"]) for record in run.records]
    sides = ("round", "layer", look.pop("unit"))
    return heat(Map(rows, values, rounds, *sides, ends, end_title, form="{:.2g}", first=1, **look))


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
    drawn = _by_round(run, layers, values, last, "at the end", unit="density", log=wide)
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
    drawn = _grown_and_dropped(grown, dropped, run.records[-1]["round_number"])
    return Figure("adjustments", "What adjustments grew and dropped", caption, drawn)


def _grown_and_dropped(grown: dict[int, int], dropped: dict[int, int], rounds: int) -> Canvas:
    """By round: grown weights above the line, dropped ones below."""
    canvas = Canvas(height=0)
    keys = [plots.Key("grown", "good", "box"), plots.Key("dropped", "bad", "box")]
    top = plots.legend(canvas, keys)
    high = 1.08 * max([*grown.values(), *dropped.values(), 1])
    low = -1.08 * max([*dropped.values(), 0])
    x = plots.Axis(0.5, rounds + 0.5, plots.ticks(1, rounds, 6, integers=True), "round")
    y = plots.Axis(
        low, high, plots.ticks(low, high), "weights", text=lambda n: plots.number_text(abs(n))
    )
    plot = plots.Plot(canvas, x, y, top)
    width = max(1.5, 0.7 * (plot.x.end - plot.x.start) / rounds)
    for told, counts, sign, color in (("grown", grown, 1, "good"), ("dropped", dropped, -1, "bad")):
        for round, count in counts.items():
            tip = f"round {round}: {count:,} weights {told}"
            plot.bar(plot.x.at(round), width, 0, sign * count, color, tip)
    plot.level(0, "muted")
    return canvas


def _totals(run: Run, key: str) -> dict[int, int]:
    totals = {
        record["round_number"]: int(sum(numbers(record, key).values())) for record in run.records
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
    drawn = _by_round(run, ordered, values, totals, "swapped", unit="of the layer", color="third")
    return Figure("adjusted_layers", "Where the mask changed", caption, drawn)


def _swapped(record: dict[str, object], layer: str, size: float) -> float | None:
    kept = numbers(record, "densities").get(layer, 0) * size
    changed = numbers(record, "adjusted").get(layer)
    return changed / max(kept, changed) if changed else None
