"""The reference engine: dense PyTorch tensors times masks."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from math import hypot
from typing import Any

import numpy as np
import torch
import torch._dynamo  # what an optimizer imports at its first step: once, before workers fork
import torch.nn.functional as F  # noqa: N812
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from fedtiny.data import ImageSet
from fedtiny.devices import batches, torch_layers
from fedtiny.devices.device_data import DeviceData
from fedtiny.devices.device_spec import DeviceSpec
from fedtiny.devices.engine import (
    Adam,
    Arrays,
    Extrusion,
    Metrics,
    Places,
    RngKey,
    Rule,
    finite,
    is_decayed,
    rule_of_round,
    under,
)
from fedtiny.devices.lr_schedule import highest_rate
from fedtiny.devices.torch_gradients import feed_gradients, tops_of
from fedtiny.devices.torch_takers import GradientsAt
from fedtiny.federation.bn_statistics import freezes_bn
from fedtiny.federation.verbs import BnStatistics
from fedtiny.sparse.candidates import CandidatePool, CutCandidates
from fedtiny.sparse.mask import Indices, Mask
from fedtiny.sparse.theta import Theta
from fedtiny.sparse.vector import SparseVector

EVALUATION_BATCH = 500


class TorchEngine:
    """One network that plays every device in turn, so memory does not grow with their number."""

    def __init__(self, model: nn.Module, spec: DeviceSpec) -> None:
        self.model = model
        self.param_spec = spec.param_spec
        self.transform = torch_layers.Transform(**asdict(spec.preparation))
        self.config, self.rounds = spec.config.train, spec.config.rounds
        self.device = torch.device("cpu")
        self._tensors = self._own_tensors()
        self._norms = tuple(torch_layers.norms(model).values())
        self._mask = Mask.full(self.param_spec)
        self._positions: dict[str, Tensor] = {}
        self._grad_masks: dict[str, Tensor] = {}
        self._loaded: dict[int, tuple[ImageSet, Tensor, Tensor]] = {}
        self._candidates = CutCandidates()
        self._pool_hooks: list[RemovableHandle] = []

    def _own_tensors(self) -> dict[str, Tensor]:
        state = self.model.state_dict(keep_vars=True)
        return {name: state[name] for name in (*self.param_spec.prunable, *self.param_spec.dense)}

    def to(self, device: torch.device | str) -> None:
        """Compute on another device from now on."""
        theta = self.theta()
        self.device = torch.device(device)
        self.model.to(self.device)
        self._use_deterministic_pools()
        self._tensors = self._own_tensors()
        self._mask = Mask.full(self.param_spec)
        self._positions, self._grad_masks, self._loaded = {}, {}, {}
        self.load(theta)

    def _use_deterministic_pools(self) -> None:
        """On CUDA, let adaptive pooling add in a fixed order."""
        for handle in self._pool_hooks:
            handle.remove()
        self._pool_hooks = (
            torch_layers.deterministic_pools(self.model) if self.device.type == "cuda" else []
        )

    @torch.no_grad()
    def load(self, theta: Theta) -> None:
        if theta.mask is not self._mask:
            self._set_mask(theta.mask)
        vector = torch.from_numpy(theta.vector.copy()).to(self.device)
        for name, tensor in self._tensors.items():
            values = vector[theta.places[name]]
            if name in self._positions:
                tensor.zero_().view(-1)[self._positions[name]] = values
            else:
                tensor.copy_(values.view(tensor.shape))
        for norm in self._norms:
            if norm.num_batches_tracked is not None:
                norm.num_batches_tracked.zero_()

    def _set_mask(self, mask: Mask) -> None:
        self._positions = {
            layer: torch.from_numpy(mask.indices(layer).astype(np.int64)).to(self.device)
            for layer in mask
            if not mask.is_full(layer)
        }
        self._grad_masks = {}
        self._mask = mask

    @torch.no_grad()
    def theta(self) -> Theta:
        parts = [self.kept(name, tensor) for name, tensor in self._tensors.items()]
        return Theta(self._mask, torch.cat(parts).cpu().numpy())

    def kept(self, name: str, tensor: Tensor) -> Tensor:
        """Of a tensor in the shape of a parameter, what belongs to weights that are kept."""
        flat = tensor.reshape(-1)
        return flat[self._positions[name]] if name in self._positions else flat

    def train(
        self,
        shard: DeviceData,
        rng_key: RngKey,
        *,
        epochs: int,
        sum_dense_gradients: bool = False,
        received: Theta | None = None,
        extruded: Places | None = None,
    ) -> tuple[Metrics, Arrays]:
        self._candidates.forget()
        images, labels = self._data(shard.data)
        self._make_grad_masks()
        rule = rule_of_round(self.config, rng_key.round, self.rounds)
        stepping = _torch_optimizer(self.model, rule)
        anchors = self._values(received) if received and rule.proximal_mu else {}
        planned = batches.training_batches(
            shard, rng_key, self.transform, epochs=epochs, most=self.config.batch_size
        )
        steps = batches.training_steps(shard, epochs=epochs, most=self.config.batch_size)
        highest = highest_rate(self.config, rng_key.round, self.rounds)
        extrusion, marked = Extrusion(steps, highest), self._marked(extruded)
        summed = self.prunable() if sum_dense_gradients else {}
        losses: list[Tensor] = []
        sums = {name: torch.zeros_like(weight) for name, weight in summed.items()}
        torch_layers.in_training(self.model, freeze_bn=rule.freeze_bn)
        with self._dropout(batches.dropout_seed(rng_key)):
            for samples, draws in planned:
                batch = torch.from_numpy(samples).to(self.device)
                inputs = self.transform.augment(images[batch], draws)
                stepping.zero_grad()
                batch_loss = F.cross_entropy(self.model(inputs), labels[batch])
                batch_loss.backward()
                for name, weight in summed.items():
                    if weight.grad is not None:
                        sums[name] += weight.grad
                self._mask_gradients()
                self._add_proximal(anchors, rule.proximal_mu)
                if marked:
                    rate = extrusion.rate(len(losses), self._penalize(marked, extrusion.penalty))
                    for group in stepping.param_groups:
                        group["lr"] = rate * rule.lr
                stepping.step()
                losses.append(batch_loss.detach())
        loss = float(torch.stack(losses).mean()) if losses else 0.0
        means = {name: (total / max(len(losses), 1)).cpu().numpy() for name, total in sums.items()}
        return {"loss": finite(loss, rng_key)}, means

    def _values(self, theta: Theta) -> dict[str, Tensor]:
        """The tensors of a theta under the mask of now."""
        tensors = under(self._mask, theta).tensors()
        return {name: torch.tensor(tensor, device=self.device) for name, tensor in tensors.items()}

    @torch.no_grad()
    def _add_proximal(self, anchors: Mapping[str, Tensor], mu: float) -> None:
        """FedProx: mu (w - w_received). A pruned weight is zero in both."""
        for name, anchor in anchors.items():
            gradient = self._tensors[name].grad
            if gradient is not None:
                gradient.add_(self._tensors[name] - anchor, alpha=mu)

    def _marked(self, places: Places | None) -> dict[str, Tensor]:
        """The flat positions of extruded weights by layer."""
        if places is None or not len(places):
            return {}
        ends = np.cumsum([0, *self._mask.counts.values()])
        found = {}
        for number, layer in enumerate(self._mask):
            begin, end = np.searchsorted(places, ends[number : number + 2])
            own = self._mask.indices(layer)[places[begin:end] - ends[number]]
            found[layer] = torch.from_numpy(own.astype(np.int64)).to(self.device)
        return found

    @torch.no_grad()
    def _penalize(self, marked: Mapping[str, Tensor], penalty: float) -> float:
        """Add the gradient of penalty |w|^2 for these weights; gives |w|."""
        norms = [0.0]
        for layer, positions in marked.items():
            tensor = self._tensors[layer]
            values = tensor.view(-1)[positions]
            norms.append(float(torch.linalg.vector_norm(values, dtype=torch.float64)))
            if tensor.grad is not None:
                tensor.grad.view(-1).index_add_(0, positions, values, alpha=2 * penalty)
        return hypot(*norms)

    def prunable(self) -> dict[str, Tensor]:
        """The network's own tensors of prunable weights."""
        return {name: self._tensors[name] for name in self.param_spec.prunable}

    @contextmanager
    def _dropout(self, seed: int) -> Iterator[None]:
        """Dropout drawn from this seed, whatever was drawn before."""
        with torch.random.fork_rng(devices=[self.device] if self.device.type == "cuda" else []):
            torch.manual_seed(seed)
            yield

    def _mask_gradients(self) -> None:
        """Eq. 5: the gradient times the mask. A pruned weight is zero and stays zero."""
        for layer, mask in self._grad_masks.items():
            gradient = self._tensors[layer].grad
            if gradient is not None:
                gradient.mul_(mask)

    def _make_grad_masks(self) -> None:
        """Ones where weights are kept; made when a training first needs them."""
        for layer in self._positions.keys() - self._grad_masks.keys():
            ones = torch.from_numpy(self._mask.array(layer))
            self._grad_masks[layer] = ones.to(self.device, torch.float32)

    def top_gradients(
        self,
        shard: DeviceData,
        rng_key: RngKey,
        *,
        counts: Mapping[str, int],
        epsilon: float = 0.0,
        fisher: bool = False,
    ) -> dict[str, SparseVector]:
        tops = tops_of(self._mask, counts)
        with self._measured_batch(shard, rng_key, epsilon) as (inputs, labels):
            feed_gradients(self.model, inputs, labels, tops, fisher=fisher)
        return {name: top.result() for name, top in tops.items()}

    def gradients_at(
        self,
        shard: DeviceData,
        rng_key: RngKey,
        *,
        positions: Mapping[str, Indices],
        epsilon: float = 0.0,
        fisher: bool = False,
    ) -> Arrays:
        found = {name: GradientsAt(own) for name, own in positions.items()}
        with self._measured_batch(shard, rng_key, epsilon) as (inputs, labels):
            feed_gradients(self.model, inputs, labels, found, fisher=fisher)
        return {name: own.result() for name, own in found.items()}

    @contextmanager
    def _measured_batch(
        self, shard: DeviceData, rng_key: RngKey, epsilon: float
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """The batch of images and labels on which gradients of pruned weights are measured."""
        images, labels = self._data(shard.data)
        most = self.config.batch_size
        (samples, draws), seed = batches.gradient_batch(shard, rng_key, self.transform, most=most)
        batch = torch.from_numpy(samples).to(self.device)
        inputs = self.transform.augment(images[batch], draws)
        freeze_bn = freezes_bn(self.config, rng_key.round, self.rounds)
        torch_layers.in_training(self.model, freeze_bn=freeze_bn)
        with self._dropout(seed), torch_layers.least_epsilon(self.model, epsilon):
            yield inputs, labels[batch]

    def bn_statistics(self, shard: DeviceData, pool: CandidatePool, how: BnStatistics) -> Arrays:
        inputs, _ = self.inputs(shard.data, shard.development)
        parts = inputs.tensor_split(batches.measuring_parts(len(inputs), how.batch_size))
        rows = []
        for candidate in self._candidates.of(pool):
            self.load(candidate)
            if how.second_moment == "square":
                rows.append(torch_layers.measured_moments(self.model, parts))
            else:
                rows.append(torch_layers.measured_statistics(self.model, parts, how.passes))
        return {name: np.stack([row[name] for row in rows]) for name in rows[0]}

    def losses(
        self, shard: DeviceData, pool: CandidatePool, statistics: Arrays
    ) -> NDArray[np.float32]:
        inputs, labels = self.inputs(shard.data, shard.development)
        found = []
        for c, candidate in enumerate(self._candidates.of(pool)):
            self.load(candidate.with_dense({name: rows[c] for name, rows in statistics.items()}))
            found.append(self._measure(inputs, labels)[0] / len(labels))
        return np.array(found, dtype=np.float32)

    def evaluate(self, shard: DeviceData) -> Metrics:
        loss, correct = 0.0, 0
        for start in range(0, len(shard), EVALUATION_BATCH):
            part = shard.indices[start : start + EVALUATION_BATCH]
            batch_loss, batch_correct = self._measure(*self.inputs(shard.data, part))
            loss, correct = loss + batch_loss, correct + batch_correct
        return {"loss": loss / len(shard), "accuracy": correct / len(shard)}

    @torch.no_grad()
    def predict(self, data: ImageSet) -> NDArray[np.int64]:
        """The class that the model finds most likely, for each image."""
        parts = np.array_split(np.arange(len(data)), -(-len(data) // EVALUATION_BATCH))
        found = [self.model.eval()(self.inputs(data, part)[0]).argmax(1).cpu() for part in parts]
        return torch.cat(found).numpy()

    @torch.no_grad()
    def _measure(self, inputs: Tensor, labels: Tensor) -> tuple[float, int]:
        """Summed loss and number of right answers."""
        logits = self.model.eval()(inputs)
        loss = F.cross_entropy(logits, labels, reduction="sum")
        return float(loss), int((logits.argmax(1) == labels).sum())

    def inputs(self, data: ImageSet, indices: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """Some images as the network sees them in testing, with their labels."""
        images, labels = self._data(data)
        batch = torch.from_numpy(indices).to(self.device)
        return self.transform.normalise(images[batch]), labels[batch]

    def _data(self, data: ImageSet) -> tuple[Tensor, Tensor]:
        """The tensors of an image set; on a CPU they share its memory."""
        if id(data) not in self._loaded:
            images, labels = (
                torch.from_numpy(a).to(self.device) for a in (data.images, data.labels)
            )
            self._loaded[id(data)] = (data, images, labels)
        return self._loaded[id(data)][1:]


def _torch_optimizer(model: nn.Module, rule: Rule) -> torch.optim.Optimizer:
    options = asdict(rule)
    del options["decay_norms"], options["proximal_mu"], options["freeze_bn"]
    groups: list[dict[str, Any]] = [{"params": [*model.parameters()]}]
    if not rule.decay_norms:
        flat = [p for p in model.parameters() if not is_decayed(p.shape, rule)]
        rest = [p for p in model.parameters() if is_decayed(p.shape, rule)]
        groups = [{"params": rest}, {"params": flat, "weight_decay": 0.0}]
    kind = torch.optim.Adam if isinstance(rule, Adam) else torch.optim.SGD
    return kind(groups, **options, fused=True)
