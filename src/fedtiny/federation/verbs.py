"""What a device can be asked to do: one class a verb.

A verb has its options (plain JSON on the wire, with its name), knows what an honest reply to it
holds, and what it costs a device. What a device does for it is in `devices/node.py`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from typing import TYPE_CHECKING, Any, Literal

from fedtiny.models.param_spec import ParamSpec
from fedtiny.sparse.mask import Indices, Mask
from fedtiny.sparse.positions import random_pruned
from fedtiny.sparse.top import slab_values
from fedtiny.sparse.vector import INDEX_BYTES, VALUE_BYTES

if TYPE_CHECKING:
    from fedtiny.federation.messages import Request
    from fedtiny.federation.reply_spec import ReplySpec

Items = dict[str, int]
TRAINING = ("forward", "input_gradient", "weight_gradient")
SecondMoment = Literal["var", "square"]


@dataclass(frozen=True)
class LayerFlops:
    """A layer's share of a forward pass of one image, with `kept` of its weights and with all.

    The gradient of its input takes as much, and so does that of its weights.
    """

    name: str
    kept: int
    forward: int
    dense: int

    @property
    def weight(self) -> str:
        """Name of the layer's weight in the state dict."""
        return f"{self.name}.weight"


@dataclass(frozen=True)
class DeviceLoad:
    """A device in training: its network, and how many images it has for what."""

    layers: Sequence[LayerFlops]
    """In the order that the network runs them."""
    param_spec: ParamSpec
    samples: int
    batch: int
    """Images of a mini-batch."""
    development: int
    """Images that measure candidates."""
    candidates: int = 0
    other: int = 0
    """FLOPs of a forward pass of one image that take no weights: those of attention."""

    @property
    def forward(self) -> int:
        """A forward pass of one image."""
        return sum(layer.forward for layer in self.layers) + self.other


class Verb:
    """One thing a device does: a name, and options that are plain JSON.

    fedtiny's own verbs are the classes below. Any other is a third party's, built as it is with a
    name and options: its reply may hold anything, and its costs are not known, unless a subclass
    says them.
    """

    name: str
    phase: Literal["train", "select", "evaluate"] = "train"
    """The part of a run that it belongs to."""

    def __init__(self, name: str, options: Mapping[str, Any] | None = None) -> None:
        self.name = name
        self._options = dict(options or {})

    @property
    def options(self) -> Mapping[str, Any]:
        """What travels beside the name."""
        return self._options

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Verb) and (self.name, self.options) == (other.name, other.options)

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        return f"Verb({self.name!r}, {self.options!r})"

    def expect(self, reply: "ReplySpec", request: "Request") -> None:
        """Add what an honest device answers to what is expected of its reply."""
        reply.open_ended = True

    def flops(self, load: DeviceLoad) -> Items:
        """What a device computes, by name."""
        return {}

    def memory(self, load: DeviceLoad) -> Items:
        """Bytes that a device holds beside those of plain training, by name."""
        return {}


@dataclass(frozen=True, eq=False)
class KnownVerb(Verb):
    """A verb of fedtiny's own: a frozen dataclass whose fields are its options."""

    def __init__(self) -> None:
        """By default a verb has no options."""

    @property
    def options(self) -> Mapping[str, Any]:
        """The fields; an option that is off is left out."""
        values = {field: getattr(self, field.name) for field in fields(self)}
        return {field.name: v for field, v in values.items() if v or field.default is MISSING}


@dataclass(frozen=True, eq=False)
class Train(KnownVerb):
    """Train on the device's own data (Alg. 2, lines 6 to 8).

    On request the device also sums the full gradients of all prunable weights over every batch
    and sends their mean, as PruneFL asks of it. It may `extrude` so many weights a layer, those of
    smallest magnitude as it received them: they are penalized, so that others take over what they
    do before they are dropped (FedMef).
    """

    name = "train"
    epochs: int
    sum_dense_gradients: bool = False
    extrude: Mapping[str, int] | None = None

    def __post_init__(self) -> None:
        if self.extrude is not None:
            object.__setattr__(self, "extrude", dict(self.extrude))

    def expect(self, reply: "ReplySpec", request: "Request") -> None:
        reply.theta = True
        reply.metrics.add("loss")
        if self.sum_dense_gradients:
            reply.arrays |= request.theta.param_spec.prunable

    def flops(self, load: DeviceLoad) -> Items:
        """As the paper counts it: every image of every epoch, 3 x forward."""
        images = self.epochs * load.samples
        items = dict.fromkeys(TRAINING, images * load.forward)
        if self.sum_dense_gradients:
            pruned = sum(layer.dense - layer.forward for layer in load.layers)
            items["full_gradients"] = images * pruned
        return items

    def memory(self, load: DeviceLoad) -> Items:
        marked = {"extruded": INDEX_BYTES * sum(self.extrude.values())} if self.extrude else {}
        if not self.sum_dense_gradients:
            return marked
        sizes = load.param_spec.sizes.values()
        return marked | {
            "gradient_sums": VALUE_BYTES * sum(sizes),
            "gradient_slab": VALUE_BYTES * max(sizes, default=0),
        }


@dataclass(frozen=True, eq=False)
class _LargestGradients(KnownVerb):
    """The largest gradients of pruned weights on one batch, so many a layer.

    Batch norm computes with the given epsilon at least while they are measured.
    """

    counts: Mapping[str, int]
    epsilon: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "counts", dict(self.counts))

    def flops(self, load: DeviceLoad) -> Items:
        """Forward, back to the earliest of the layers, and their full weight gradients.

        A layer beside the path (a shortcut) counts as on it.
        """
        measured = [n for n, layer in enumerate(load.layers) if layer.weight in self.counts]
        if not measured:
            return {}
        back = sum(layer.forward for layer in load.layers[measured[0] + 1 :])
        full = sum(load.layers[n].dense for n in measured)
        return {"top_a_pass": load.batch * (load.forward + back + full + 2 * load.other)}

    def memory(self, load: DeviceLoad) -> Items:
        shapes = load.param_spec.prunable
        slabs = (slab_values(shapes[layer], count) for layer, count in self.counts.items())
        return {
            "top_a_buffer": (VALUE_BYTES + INDEX_BYTES) * sum(self.counts.values()),
            "gradient_slab": VALUE_BYTES * max(slabs, default=0),
        }


@dataclass(frozen=True, eq=False)
class PruneAndGrow(_LargestGradients):
    """Grow and drop so many weights a layer on the device itself, as FedDST does."""

    name = "prune_and_grow"

    def expect(self, reply: "ReplySpec", request: "Request") -> None:
        reply.theta = reply.own_mask = True
        reply.swaps |= self.counts


@dataclass(frozen=True, eq=False)
class CongruentSwap(_LargestGradients):
    """Grow and drop on the device itself, heeding the directions that the server sends (FedSGC).

    Up to this share of the weights that a layer drops have moved against the global model, and as
    many of those it grows would move with it. If `recent`, some pruned weights have a direction
    too: the gradients of these are measured by themselves.
    """

    name = "congruent_swap"
    share: float = 0.0
    recent: bool = False

    def expect(self, reply: "ReplySpec", request: "Request") -> None:
        reply.theta = reply.own_mask = True
        reply.swaps |= self.counts

    def flops(self, load: DeviceLoad) -> Items:
        items = super().flops(load)
        return {name: 2 * count for name, count in items.items()} if self.recent else items

    def memory(self, load: DeviceLoad) -> Items:
        """Beside the buffer: the weights as they were sent, and two bits a weight."""
        prunable = load.param_spec.prunable
        kept = sum(layer.kept for layer in load.layers if layer.weight in prunable)
        return super().memory(load) | {
            "sent_weights": VALUE_BYTES * kept,
            "directions": (2 * kept + 7) // 8,
        }


@dataclass(frozen=True, eq=False)
class TopGradients(_LargestGradients):
    """Find the largest gradients of pruned weights, so many a layer (Alg. 2, line 12).

    With `fisher` each is divided by the root of twice the weight's Fisher information before they
    are compared and sent; with `votes` only their positions are sent.
    """

    name = "top_gradients"
    fisher: bool = False
    votes: bool = False

    def expect(self, reply: "ReplySpec", request: "Request") -> None:
        reply.gradients |= self.counts
        reply.votes = reply.votes or self.votes

    def memory(self, load: DeviceLoad) -> Items:
        """With Fisher information, a value for each channel and filter of a layer."""
        factors = {"fisher_factors": _fisher_bytes(load, self.counts)}
        return super().memory(load) | (factors if self.fisher else {})


@dataclass(frozen=True, eq=False)
class SharedGradients(_LargestGradients):
    """The gradients of so many pruned weights a layer at the positions that a seed names.

    Every device reports the same positions, so only values are sent and their mean is exact.
    """

    name = "shared_gradients"
    seed: int = 0

    def positions(self, request: "Request") -> dict[str, Indices]:
        """The positions that a request asks about."""
        return shared_positions(request.theta.mask, self.counts, self.seed, request.round)

    def expect(self, reply: "ReplySpec", request: "Request") -> None:
        reply.arrays |= {layer: (count,) for layer, count in self.counts.items()}


def _fisher_bytes(load: DeviceLoad, layers: Iterable[str]) -> int:
    shapes = (load.param_spec.prunable[layer] for layer in layers)
    return VALUE_BYTES * max((sum(shape[:2]) for shape in shapes), default=0)


def shared_positions(
    mask: Mask, counts: Mapping[str, int], seed: int, round: int
) -> dict[str, Indices]:
    """The pruned positions whose gradients all devices report in a round."""
    return random_pruned(mask, counts, seed=seed, round=round, purpose="shared gradients")


@dataclass(frozen=True, eq=False)
class DropScores(_LargestGradients):
    """What the loss would gain if each kept weight were dropped, of so many a layer (Fedfit)."""

    name = "drop_scores"

    def expect(self, reply: "ReplySpec", request: "Request") -> None:
        reply.arrays |= {layer: (count,) for layer, count in self.counts.items()}

    def flops(self, load: DeviceLoad) -> Items:
        """Two passes: gradients, and gradients over the root of the Fisher information."""
        return {"drop_score_pass": 2 * sum(super().flops(load).values())}

    def memory(self, load: DeviceLoad) -> Items:
        return {
            "drop_scores": 2 * VALUE_BYTES * sum(self.counts.values()),
            "fisher_factors": _fisher_bytes(load, self.counts),
        }


@dataclass(frozen=True, eq=False)
class Sensitivity(KnownVerb):
    """|gradient x weight| of every weight of a model that is still dense, on one batch (SSFL)."""

    name = "sensitivity"
    phase = "select"

    def expect(self, reply: "ReplySpec", request: "Request") -> None:
        reply.arrays |= request.theta.param_spec.prunable

    def flops(self, load: DeviceLoad) -> Items:
        """Forward and back, with all weights."""
        dense = sum(layer.dense for layer in load.layers) + load.other
        return {"sensitivity": 3 * load.batch * dense}

    def memory(self, load: DeviceLoad) -> Items:
        return {"sensitivity": VALUE_BYTES * load.param_spec.prunable_count}


@dataclass(frozen=True, eq=False)
class BnStatistics(KnownVerb):
    """Measure the batch-norm statistics of every candidate (Alg. 1, line 5).

    The second moment is sent as variance (`var`) or, to be pooled exactly, as E[x^2] (`square`).
    """

    name = "bn_statistics"
    phase = "select"
    batch_size: int
    passes: int = 1
    second_moment: SecondMoment = "var"

    def expect(self, reply: "ReplySpec", request: "Request") -> None:
        second = "running_square" if self.second_moment == "square" else "running_var"
        for name, shape in request.theta.param_spec.statistics.items():
            reply.arrays[name.replace("running_var", second)] = (request.candidates, *shape)

    def flops(self, load: DeviceLoad) -> Items:
        return {"bn_statistics": self.passes * _pool_pass(load)}


@dataclass(frozen=True, eq=False)
class Losses(KnownVerb):
    """Measure the loss of every candidate (Alg. 1, line 21)."""

    name = "losses"
    phase = "select"

    def expect(self, reply: "ReplySpec", request: "Request") -> None:
        reply.arrays["losses"] = (request.candidates,)

    def flops(self, load: DeviceLoad) -> Items:
        return {"losses": _pool_pass(load)}


@dataclass(frozen=True, eq=False)
class Evaluate(KnownVerb):
    """Measure loss and accuracy on the device's own data."""

    name = "evaluate"
    phase = "evaluate"

    def expect(self, reply: "ReplySpec", request: "Request") -> None:
        reply.metrics |= {"loss", "accuracy"}

    def flops(self, load: DeviceLoad) -> Items:
        return {"evaluation": load.samples * load.forward}


def _pool_pass(load: DeviceLoad) -> int:
    """A forward pass of every candidate over the development set."""
    return load.candidates * load.development * load.forward


Program = tuple[Verb, ...]
KNOWN: dict[str, type[KnownVerb]] = {
    kind.name: kind
    for kind in (
        *(Train, PruneAndGrow, CongruentSwap, TopGradients, SharedGradients),
        *(DropScores, Sensitivity),
        *(BnStatistics, Losses, Evaluate),
    )
}


def typed(verb: Verb) -> Verb:
    """A verb as the class of its name, however it was built; a third party's stays as it is."""
    kind = KNOWN.get(verb.name)
    if kind is None or isinstance(verb, kind):
        return verb
    try:
        return kind(**verb.options)
    except (TypeError, ValueError) as error:
        takes = ", ".join(field.name for field in fields(kind)) or "no options"
        options = ascii(dict(verb.options))[:80]
        raise ValueError(f"the verb '{verb.name}' takes {takes}, not {options}") from error
