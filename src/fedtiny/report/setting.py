"""What a run stands on: the data of its devices, the first mask, and what it costs."""

import numpy as np
from numpy.typing import NDArray

from fedtiny.report.bars import Pair, pairs
from fedtiny.report.costs import costs
from fedtiny.report.figure import Figure, short
from fedtiny.report.heat import Map, heat
from fedtiny.report.pool import Candidate
from fedtiny.report.pool import layers as pool_layers
from fedtiny.report.pool import losses as pool_losses
from fedtiny.report.run import Run, number, numbers, strings


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


def _pool(run: Run) -> tuple[list[Candidate], int] | None:
    found = run.selection.get("selection")
    losses = found.get("losses") if isinstance(found, dict) else None
    chosen = number(found, "chosen")
    if not isinstance(losses, list) or chosen is None:
        return None
    values = {place: number({"loss": loss}, "loss") for place, loss in enumerate(losses)}
    candidates = [Candidate(place, loss) for place, loss in values.items() if loss is not None]
    return (candidates, int(chosen)) if candidates else None


def pool(run: Run) -> Figure | None:
    """The loss of every candidate, the winner marked."""
    found = _pool(run)
    if not found:
        return None
    candidates, chosen = found
    all_losses = [candidate.loss for candidate in candidates]
    lost = len(run.selection["selection"]["losses"]) - len(candidates)
    caption = (
        f"Loss of each of {len(candidates)} candidates on the devices' own data before training, "
        f"from {min(all_losses):.3f} to {max(all_losses):.3f}; the least biased one is chosen."
        + (f" {lost} more had no finite loss." if lost else "")
    )
    return Figure("pool", "The selection pool", caption, pool_losses(candidates, chosen))


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
    """By candidate and layer; nothing where counts or sizes are not known."""
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
    shown = [Pair(c.name, c.ours, c.dense, c.text(c.ours), c.text(c.dense)) for c in found]
    caption = (
        "What training costs one device of mean size, beside federated averaging of the dense "
        "network on the same data. FLOPs and memory are those of the costliest round, by the cost "
        "model; bytes are counted messages, both ways, on the mean of all rounds; the model is "
        "sized as it travels: kept values and coded positions."
    )
    return Figure("cost", "Cost beside a dense run", caption, pairs(shown))
