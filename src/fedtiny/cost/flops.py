"""FLOPs: twice the multiply-adds of convolution and linear layers, each layer at its density."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedtiny.cost.workload import Workload

if TYPE_CHECKING:
    from fedtiny.models.profile import LayerProfile

Items = dict[str, int]

HESSIAN_GRADIENTS = 3  # a gradient, and its own backward pass at twice the price


@dataclass(frozen=True)
class LayerFlops:
    """A layer's share, for one image, with `kept` of its weights."""

    name: str
    kept: int
    forward: int
    input_gradient: int
    weight_gradient: int
    dense: int
    """Any one of the three with all weights."""

    @property
    def training(self) -> int:
        """Forward and backward, as the paper counts: the input layer's gradient is included."""
        return self.forward + self.input_gradient + self.weight_gradient


def by_layer(work: Workload) -> tuple[LayerFlops, ...]:
    """The layers of the network that a device trains, in the order it runs them."""
    return tuple(_layer(layer, work.counts) for layer in work.network.profile.layers)


def dense_round(work: Workload) -> int:
    """A round of training the large network with all its weights: what ratios are taken to."""
    return 3 * 2 * work.large.profile.macs * work.images


def of_round(work: Workload, round: int) -> Items:
    """Everything that a device computes in a round, by name."""
    return training(work) | _adjusting(work, round)


def costliest_round(work: Workload) -> int:
    """The first round that takes the most FLOPs."""
    return max([*work.adjustments, 0], key=lambda round: sum(of_round(work, round).values()))


def training(work: Workload) -> Items:
    """Local training as the paper counts it: every image of every epoch, 3 x forward."""
    layers, images = by_layer(work), work.images
    return {
        "forward": images * sum(layer.forward for layer in layers),
        "input_gradient": images * sum(layer.input_gradient for layer in layers),
        "weight_gradient": images * sum(layer.weight_gradient for layer in layers),
    }


def never_computed(work: Workload) -> int:
    """The gradient to the images themselves, which the paper counts and no device needs."""
    return work.images * by_layer(work)[0].input_gradient


def selection(work: Workload) -> int:
    """Comparing the candidates: passes that measure batch norm, and one for the loss."""
    if not work.selects:
        return 0
    settings = work.config.selection
    passes = 1 + (settings.passes if settings.kind == "adaptive_bn" else 0)
    forward = sum(layer.forward for layer in by_layer(work))
    return work.config.pool_size * passes * work.development * forward


def server(work: Workload) -> Items:
    """The server's own work: before training, and the averaging in a round."""
    gradient = 3 * 2 * work.network.profile.macs
    epochs = work.config.train.pretrain_epochs
    values = work.kept + work.network.param_spec.dense_count
    return {
        "pretraining": epochs * work.public * gradient,
        "coarse_pruning": _scored_images(work) * gradient,
        "averaging": 2 * work.config.fleet.asked * values,
    }


def _scored_images(work: Workload) -> int:
    """Images whose dense gradient the server computes for its pruning score."""
    steps = work.config.pruning.iterations
    by_score = {
        "nothing": 0,
        "gradients": steps * work.public,
        "flow": steps,
        "hessian": HESSIAN_GRADIENTS * work.public,
    }
    return by_score[work.habits.server_score]


def _layer(layer: "LayerProfile", counts: Mapping[str, int]) -> LayerFlops:
    kept = counts.get(layer.weight, layer.size)
    flops = 2 * kept * layer.uses
    return LayerFlops(layer.name, kept, flops, flops, flops, 2 * layer.macs)


def _adjusting(work: Workload, round: int) -> Items:
    """What an adjusting round adds to training."""
    layers = {f"{layer.name}.weight": layer for layer in by_layer(work)}
    swapped = work.swaps(round)
    if not swapped:
        return {}
    if work.habits.adjusts_by == "full_gradients":
        extra = sum(layers[name].dense - layers[name].weight_gradient for name in work.counts)
        return {"full_gradients": work.images * extra}
    return {"top_a_pass": work.batch * _top_a(list(layers.items()), set(swapped))}


def _top_a(layers: list[tuple[str, LayerFlops]], tapped: set[str]) -> int:
    """Forward, back to the earliest layer of the group, and the group's full weight gradients.

    A layer beside the path (a shortcut) counts as on it.
    """
    earliest = next(i for i, (name, _) in enumerate(layers) if name in tapped)
    forward = sum(layer.forward for _, layer in layers)
    back = sum(layer.input_gradient for _, layer in layers[earliest + 1 :])
    return forward + back + sum(layer.dense for name, layer in layers if name in tapped)
