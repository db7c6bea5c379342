"""Every figure of a run."""

import numpy as np
from numpy.typing import NDArray

from fedtiny.drawing.heat import Map, heat
from fedtiny.report.charts import grown_and_dropped, pairs, pool_layers, pool_losses
from fedtiny.report.facts import costs
from fedtiny.report.figure import Figure, accuracy, density, layers_of, loss, rounds_of, short
from fedtiny.report.run import Run, number, numbers, strings


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
        f"from {least:.3f} to {most:.3f}; the least biased one is chosen."
        + (f" {lost} more had no finite loss." if lost else "")
    )
    return Figure("pool", "The selection pool", caption, pool_losses(losses, chosen))


def pool_by_layer(run: Run) -> Figure | None:
    """How the chosen candidate spreads its weights over the layers."""
    found, names = _pool(run), strings(run.selection.get("selection"), "layers")
    densities = _pool_densities(run, names)
    if not found or densities is None or found[1] >= len(densities):
        return None
    caption = (
        "What a candidate is: a density for each layer. The bar spans all candidates, the dot is "
        "the chosen one."
    )
    drawn = pool_layers([short(name) for name in names], densities.tolist(), found[1])
    return Figure("pool_layers", "The chosen candidate by layer", caption, drawn)


def _pool_densities(run: Run, names: list[str]) -> NDArray[np.float64] | None:
    """By candidate and layer; nothing if counts or sizes are not known."""
    sizes, selection = numbers(run.about, "layers"), run.selection.get("selection")
    counts = selection.get("layer_counts") if isinstance(selection, dict) else None
    try:
        densities = np.array(counts, dtype=np.float64) / [sizes[name] for name in names]
    except (KeyError, TypeError, ValueError):
        return None
    usable = densities.ndim == 2 and bool((densities > 0).any()) and np.isfinite(densities).all()
    return densities if usable else None


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


def layer_densities(run: Run) -> Figure | None:
    """Density by layer and round."""
    layers = layers_of(run, "densities")
    if not layers:
        return None
    by_round = [numbers(record, "densities") for record in run.records]
    values = [[round.get(layer) for round in by_round] for layer in layers]
    found = [value for row in values for value in row if value]
    wide = bool(found) and max(found) > 10 * min(found)
    last = [f"{by_round[-1].get(layer, 0):.4f}" for layer in layers]
    shown = Map(
        [short(layer) for layer in layers], values, rounds_of(run), "round", last, "at the end",
        form="{:.2g}", first=1, log=wide,
    )  # fmt: skip
    caption = (
        "Density of each prunable layer after each round; the stronger, the denser"
        f"{' (logarithmic)' if wide else ''}. A row of one shade kept its density: "
        "as much was grown as dropped."
    )
    return Figure("layers", "Density by layer and round", caption, heat(shown))


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
    drawn = grown_and_dropped(grown, dropped, run.records[-1]["round"] + 1)
    return Figure("adjustments", "What adjustments grew and dropped", caption, drawn)


def _totals(run: Run, key: str) -> dict[int, int]:
    totals = {
        record["round"] + 1: int(sum(numbers(record, key).values())) for record in run.records
    }
    return {round: count for round, count in totals.items() if count}


def adjusted_layers(run: Run) -> Figure | None:
    """Which layers changed when, as a share of what they keep."""
    layers, sizes = layers_of(run, "adjusted"), numbers(run.about, "layers")
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
    shown = Map(
        [short(layer) for layer in ordered], values, rounds_of(run), "round", totals, "swapped",
        form="{:.2g}", first=1, color="third",
    )  # fmt: skip
    caption = (
        "Which layers each adjustment changed, as a share of the weights that the layer keeps; "
        "at the right the number over the whole run. Layers that never changed are left out."
    )
    return Figure("adjusted_layers", "Where the mask changed", caption, heat(shown))


def _swapped(record: dict[str, object], layer: str, size: float) -> float | None:
    kept = numbers(record, "densities").get(layer, 0) * size
    changed = numbers(record, "adjusted").get(layer)
    return changed / max(kept, changed) if changed else None
