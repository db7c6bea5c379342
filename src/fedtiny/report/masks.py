"""How the mask changed: density by layer, and what adjustments grew and dropped."""

from fedtiny.report.bars import grown_and_dropped
from fedtiny.report.figure import Figure, layers_of, rounds_of, short
from fedtiny.report.heat import Map, heat
from fedtiny.report.run import Run, numbers


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
        form="{:.2g}", first=1, colour="third",
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
