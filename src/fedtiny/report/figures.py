"""Every figure of a run."""

from fedtiny.report.figure import Figure
from fedtiny.report.learning import accuracy, density, loss
from fedtiny.report.masks import adjusted_layers, adjustments, layer_densities
from fedtiny.report.run import Run
from fedtiny.report.setting import cost, partition, pool, pool_by_layer


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
