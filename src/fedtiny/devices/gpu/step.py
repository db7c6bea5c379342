"""One local step: fetch a batch, forward, backward, masked update; recorded where it can be."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.func import functional_call

from fedtiny.devices.engine import Adam, Extrusion, Rule, Sgd
from fedtiny.devices.gpu.image_store import COLUMNS, Images
from fedtiny.devices.gpu.kernels import CapturedGraph, fused, rounding
from fedtiny.devices.gpu.network import Network, precision
from fedtiny.devices.gpu.stand_ins import NEXT, playable
from fedtiny.devices.torch_layers import frozen_statistics, in_training, norms
from fedtiny.errors import ModelError
from fedtiny.sparse.theta import Theta

PLANNED = 1024  # steps whose batches are planned at a time
WARM_UPS = 3  # steps before one is recorded


class Update:
    """Adam or SGD as PyTorch computes them, on tensors that stay where they are.

    The number of steps is a tensor too, so that a captured step counts on, and so are the learning
    rate and the values that FedProx holds to, which change from one training to the next. `decayed`
    has 1 for values that weight decay takes part in, where it does not in all. `advance` comes
    before every step.
    """

    def __init__(self, rule: Rule, vector: Tensor, decayed: Tensor | None = None) -> None:
        self.rule = rule
        self.decay = rule.weight_decay if decayed is None else rule.weight_decay * decayed
        self.lr = torch.full((1,), rule.lr, dtype=torch.float64, device=vector.device)
        self.anchor = torch.zeros_like(vector) if rule.proximal_mu else None
        self.mu = torch.zeros(1, device=vector.device)
        self.first = torch.zeros_like(vector)
        self.second = torch.zeros_like(vector) if isinstance(rule, Adam) else torch.empty(0)
        self.steps = torch.zeros(1, dtype=torch.float64, device=vector.device)
        self.size = torch.zeros_like(self.lr)
        self.scale = torch.zeros(1, device=vector.device)

    def reset(self, lr: float | None = None, anchor: Tensor | None = None) -> None:
        """Begin a local training at this rate; FedProx holds to the anchor, if there is one."""
        for tensor in (self.first, self.second, self.steps):
            tensor.zero_()
        self.lr.fill_(self.rule.lr if lr is None else lr)
        self.mu.fill_(0.0 if anchor is None else self.rule.proximal_mu)
        if self.anchor is not None and anchor is not None:
            self.anchor.copy_(anchor)

    def advance(self) -> None:
        """Count a step, and correct Adam's bias for it.

        Compiled with the step, torch would raise to this power anew for every value.
        """
        self.steps += 1
        if isinstance(self.rule, Adam):
            first, second = self.rule.betas
            self.size.copy_(self.lr / (1 - first**self.steps))
            self.scale.copy_(torch.sqrt(1 - second**self.steps))

    def __call__(self, vector: Tensor, gradient: Tensor, rate: Tensor | float = 1.0) -> None:
        """One step, at a multiple of the learning rate."""
        gradient = gradient + self.decay * vector
        if self.anchor is not None:
            gradient = gradient + self.mu * (vector - self.anchor)
        if isinstance(self.rule, Sgd):
            self.first.mul_(self.rule.momentum).add_(gradient)
            vector.sub_((self.lr * rate).float() * self.first)
            return
        first, second = self.rule.betas
        self.first.lerp_(gradient, 1 - first)
        self.second.mul_(second).add_((1 - second) * gradient * gradient)
        size = (self.size * rate).float()
        vector.sub_(size * self.first / (self.second.sqrt() / self.scale + self.rule.eps))


class CompiledLoss:
    """The training loss as a function of a network's tensors, compiled once for all lanes."""

    def __init__(self, model: nn.Module, dtype: torch.dtype, *, freeze_bn: bool = False) -> None:
        self.template = in_training(playable(model), freeze_bn=freeze_bn)
        for norm in norms(self.template).values():
            norm.num_batches_tracked = None
        self.dtype = dtype
        self._compiled = fused(self._loss)

    def __call__(self, network: Network, images: Tensor, labels: Tensor) -> Tensor:
        loss: Tensor = self._compiled(network.tensors(), images, labels)
        return loss

    def _loss(self, tensors: dict[str, Tensor], images: Tensor, labels: Tensor) -> Tensor:
        with precision(images.device, self.dtype):
            logits = functional_call(self.template, tensors, (images,))
        return F.cross_entropy(logits.float(), labels)


def plain_loss(
    network: Network, images: Tensor, labels: Tensor, *, freeze_bn: bool = False
) -> Tensor:
    """The training loss, operation by operation."""
    with network.computing() as module:
        logits = in_training(module, freeze_bn=freeze_bn)(images)
    return F.cross_entropy(logits.float(), labels)


Loss = Callable[[Network, Tensor, Tensor], Tensor]


@contextmanager
def _compile_advice() -> Iterator[None]:
    """Say what to do where torch.compile cannot take the network, forward or backward."""
    try:
        yield
    except (
        torch._dynamo.exc.TorchDynamoException,
        torch._dynamo.exc.FailOnRecompileLimitHit,
    ) as error:
        raise ModelError(
            "torch.compile cannot take this network; use --gpu.no-compile or --simulator reference"
        ) from error


@dataclass(frozen=True)
class Kind:
    """What sort of step: its batch size, whether full gradients are summed up (PruneFL), whether
    some weights are extruded (FedMef), and whether batch norm is frozen (FixBN)."""

    batch: int
    sums: bool = False
    extrudes: bool = False
    freeze_bn: bool = False


class Marks:
    """The weights that are extruded, in tensors that stay where they are."""

    def __init__(self, vector: Tensor) -> None:
        self.marks = torch.zeros_like(vector)
        self.steps = torch.ones(1, dtype=torch.float64, device=vector.device)
        self.highest_rate = torch.ones(1, dtype=torch.float64, device=vector.device)

    def reset(self, extrusion: Extrusion, places: Tensor) -> None:
        """Begin a local training in which what lies at these places is extruded."""
        self.penalty = extrusion.penalty
        self.marks.zero_().index_fill_(0, places, 1)
        self.steps.fill_(extrusion.steps)
        self.highest_rate.fill_(extrusion.highest_rate)

    def __call__(self, vector: Tensor, gradient: Tensor, step: Tensor) -> tuple[Tensor, Tensor]:
        """The gradient with that of the penalty, and the rate, as `Extrusion` has them."""
        values = self.marks * vector
        left = (2 * self.steps - 2 * step) / (2 * self.steps - step)
        rate = left * torch.tanh(values.double().norm() / 2) * self.highest_rate
        return gradient + 2 * self.penalty * values, rate.clamp(min=1.0).float()


class Step:
    """A local step of one kind on one network, ready to be run again and again.

    All it reads and writes stays in place: the plan of batches, the counter that says which is
    next, the optimizer's state. Recorded as a CUDA graph it is one launch.
    """

    def __init__(
        self,
        kind: Kind,
        network: Network,
        rule: Rule,
        images: Images,
        compiled_loss: Loss | None = None,
        tf32: bool | None = None,
    ) -> None:
        self.network = network
        self.tf32 = tf32
        self.loss_of = compiled_loss or partial(plain_loss, freeze_bn=kind.freeze_bn)
        self.images = images
        device = network.device
        self.plan = torch.zeros(PLANNED, kind.batch, COLUMNS, dtype=torch.int32, device=device)
        self.next = torch.zeros(1, dtype=torch.int64, device=device)
        self.loss = torch.zeros((), dtype=torch.float64, device=device)
        self.update = Update(rule, network.vector, network.decayed(rule))
        self.extruded = Marks(network.vector) if kind.extrudes else None
        if self.extruded is not None:
            self.extruded.reset(Extrusion(1), self.next[:0])
        size = len(network.flat) if kind.sums else 0
        self.sums = torch.zeros(size, device=device)
        self.leaves = {n: t for n, t in network.tensors().items() if t.requires_grad}
        self.gaps = [
            torch.zeros(n, dtype=network.dtype, device=device) for n in network.layout.gaps()
        ]
        self.idle = self._idle()
        self.moving = network.marked(self.idle) if self.idle else None
        self._cut = fused(self._batch) if compiled_loss else None
        self._advance = fused(self.update.advance) if compiled_loss else None
        self._apply = fused(self._updated) if compiled_loss else None
        self._captured: CapturedGraph[None] | None = None

    def _idle(self) -> dict[str, Tensor]:
        """Parameters that are frozen or that the loss does not use, with the gradient zero."""
        with frozen_statistics(self.network.module):
            loss = plain_loss(self.network, *self._batch())
        found = torch.autograd.grad(loss, list(self.leaves.values()), allow_unused=True)
        moved = {n for n, gradient in zip(self.leaves, found, strict=True) if gradient is not None}
        parameters = self.network.module.named_parameters()
        return {name: torch.zeros_like(p) for name, p in parameters if name not in moved}

    def reset(self, seed: int, lr: float | None = None, received: Theta | None = None) -> None:
        """Begin a local training at this rate, whose dropout is drawn from this seed."""
        anchor = None
        if received is not None and self.update.rule.proximal_mu:
            anchor = self.network.vector_of(received)
        self.update.reset(lr, anchor)
        self.loss.zero_()
        self.sums.zero_()
        self.network.set_keys(seed)

    def run(self, batches: Tensor) -> None:
        """Take a step on each of the planned batches."""
        for part in batches.split(PLANNED):
            self.plan[: len(part)].copy_(part)
            self.next.zero_()
            if self._captured:
                self._captured.repeat(len(part))
                continue
            with rounding(self.tf32):
                for _ in range(len(part)):
                    self.once()

    def once(self) -> None:
        """Take one step, operation by operation."""
        with _compile_advice():
            images, labels = (self._cut or self._batch)()
            loss = self.loss_of(self.network, images, labels)
            leaves = {name: leaf for name, leaf in self.leaves.items() if name not in self.idle}
            gradients = torch.autograd.grad(loss, list(leaves.values()))
            named = {**self.idle, **dict(zip(leaves, gradients, strict=True))}
            with torch.no_grad():
                (self._advance or self.update.advance)()
                (self._apply or self._updated)(named, loss.detach())

    def _batch(self) -> tuple[Tensor, Tensor]:
        images, labels = self.images.cut(self.plan.index_select(0, self.next)[0])
        return images.to(self.network.dtype), labels

    def _updated(self, gradients: Mapping[str, Tensor], loss: Tensor) -> None:
        network = self.network
        before = network.vector.clone() if self.moving is not None else None
        gradient = self._gradient(gradients)
        rate: Tensor | float = 1.0
        if self.extruded is not None:
            gradient, rate = self.extruded(network.vector, gradient, self.update.steps - 1)
        self.update(network.vector, gradient, rate)
        if self.moving is not None and before is not None:
            moving = network.at_vector(self.moving)
            network.vector.copy_(torch.where(moving, network.vector, before))
        network.spread()
        self.loss += loss
        self.next += 1
        for key in network.keys:
            key += NEXT

    def _gradient(self, gradients: Mapping[str, Tensor]) -> Tensor:
        """The gradient of the network's vector, in fp32; full gradients are summed up if asked."""
        layout, network = self.network.layout, self.network
        own = [gradients[name].reshape(-1) for name in layout.own]
        parts = []
        for name, gap in zip(layout.weights, self.gaps, strict=True):
            parts += [layout.flattened(name, gradients[name]), gap]
        if network.full and not len(self.sums):
            return torch.cat([*own, *(part.to(torch.float32) for part in parts)])
        flat = torch.cat(parts)
        if len(self.sums):
            self.sums += flat
        return torch.cat([*own, network.gathered(flat).to(torch.float32)])

    def record(self, stream: torch.cuda.Stream) -> None:
        """Record the step on this stream; the network's values are spoiled by it."""
        self.next.zero_()
        self._captured = CapturedGraph(self.once, stream, WARM_UPS, self.tf32)
