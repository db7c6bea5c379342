"""A torch network and the same network in native code, side by side."""

import copy
import ctypes
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from fedtiny.devices.torch_layers import in_training
from fedtiny.graph.trace import trace
from fedtiny.native.library import Memory, NativeError, Options, Parameter, Rates
from fedtiny.native.model import NativeModel, _Mode

from ..graph.building import Builder
from .reference import Reference

SGD = {"lr": 0.05, "momentum": 0.9, "decay": 5e-4}
ADAM = {"lr": 1e-3, "decay": 1e-4}


def random_mask(size, density, rng):
    """Sorted positions of a random share of a layer's weights."""
    count = int(np.clip(round(size * density), 0, size))
    return np.sort(rng.choice(size, count, replace=False)).astype(np.int32)


def supported_lanes():
    """The widths of vectors that this processor has."""
    net = Builder((1, 1, 1))
    net.linear("fc", net.flatten(0), 2)
    model = NativeModel(net.graph)
    found = []
    for lanes in (4, 8, 16):
        with suppress(NativeError):
            model.plan(Options(lanes=lanes))
            found.append(lanes)
    return found


class Probe(NativeModel):
    """A native network that also gives its logits and the gradients of its last training step."""

    def train(self, images, labels, **how):
        self.images = len(images)
        return super().train(images, labels, **how)

    @property
    def layers(self):
        """Names of all weights of convolutions and linear layers, in order."""
        return tuple(n for n, (_, p) in self._places.items() if p is Parameter.WEIGHT)

    @property
    def taken(self):
        """What preparing took."""
        memory = Memory()
        self._call("taken", ctypes.byref(memory))
        return memory

    def gradient(self, name):
        """The gradient of a tensor; of a weight, at its kept positions."""
        values = np.empty(self._length(name), dtype=np.float32)
        self._call("get_gradient", *self._place(name), values.ctypes.data, values.size)
        return values

    def input_gradient(self):
        """The gradient of the images."""
        values = np.empty((self.images, *self.graph.shapes[0]), dtype=np.float32)
        self._call("get_input_gradient", values.ctypes.data, values.size)
        return values

    def logits(self, images):
        """What the network gives for some images, with running statistics."""
        values = np.empty((len(images), self.graph.shapes[-1][0]), dtype=np.float32)
        self._run(_Mode.FORWARD, images, None, logits=values.ctypes.data)
        return values


@dataclass
class Twins:
    """The torch side is in float64; both have the same kept weights."""

    torch: nn.Module
    native: Probe
    kept: dict

    @classmethod
    def make(cls, model, shape, masks=None, seed=0, **options):
        kept = dict(masks or {})
        model = copy.deepcopy(model)
        state = model.state_dict()
        for name, positions in kept.items():
            bits = torch.zeros(state[name].numel())
            bits[torch.from_numpy(positions.astype(np.int64))] = 1
            state[name].mul_(bits.view_as(state[name]))
        native = Probe(model.graph if isinstance(model, Reference) else trace(model, shape))
        native.prepare(Options(**options), kept)
        twins = cls(model.double(), native, kept)
        for name in twins.tensors():
            native.set(name, twins.of_torch(name, state[name]))
        return twins

    def tensors(self):
        return [n for n, t in self.torch.state_dict().items() if t.is_floating_point()]

    def of_torch(self, name, tensor):
        """The values of a torch tensor that the native side holds."""
        flat = tensor.detach().numpy().reshape(-1)
        return flat[self.kept[name]] if name in self.kept else flat

    def gradients(self, images, labels, *, freeze_norms=False):
        """Both sides' gradients of the mean loss, by name, after one pass in training mode."""
        in_training(self.torch, freeze_bn=freeze_norms).zero_grad()
        inputs = torch.from_numpy(images).double().requires_grad_()
        loss = F.cross_entropy(self.torch(inputs), torch.from_numpy(labels))
        loss.backward()
        score = self.native.train(images, labels, update=False, freeze_norms=freeze_norms)
        pairs = {
            name: (self.of_torch(name, p.grad), self.native.gradient(name))
            for name, p in self.torch.named_parameters()
        }
        pairs["loss"] = (np.array(loss.item()), np.array(score.loss / len(labels)))
        if self.native.options.input_gradient:
            pairs["input"] = (inputs.grad.numpy(), self.native.input_gradient())
        return pairs

    def noise(self, images, labels):
        """How far torch's own gradients in float32 are off: batch norm of few values amplifies."""
        single, double = copy.deepcopy(self.torch).float(), copy.deepcopy(self.torch)
        for model, dtype in ((double.train(), torch.float64), (single.train(), torch.float32)):
            model.zero_grad()
            logits = model(torch.from_numpy(images).to(dtype))
            F.cross_entropy(logits, torch.from_numpy(labels)).backward()
        return {
            name: float((one.grad - two.grad).abs().max())
            for (name, one), two in zip(double.named_parameters(), single.parameters(), strict=True)
        }

    def step(self, images, labels, optimizer, steps=1):
        """Train both sides with one of the two optimizers."""
        parameters = list(self.torch.parameters())
        if optimizer == "sgd":
            theirs = torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=5e-4)
            self.native.start(Rates(**SGD))
        else:
            theirs = torch.optim.Adam(parameters, lr=1e-3, weight_decay=1e-4)
            self.native.start(Rates(**ADAM))
        self.torch.train()
        for _ in range(steps):
            theirs.zero_grad()
            logits = self.torch(torch.from_numpy(images).double())
            F.cross_entropy(logits, torch.from_numpy(labels)).backward()
            self._mask_gradients()
            theirs.step()
            self.native.train(images, labels)

    def _mask_gradients(self):
        for name, parameter in self.torch.named_parameters():
            if name in self.kept:
                bits = torch.zeros_like(parameter).view(-1)
                bits[torch.from_numpy(self.kept[name].astype(np.int64))] = 1
                parameter.grad.mul_(bits.view_as(parameter))

    def states(self):
        """Both sides' tensors, by name."""
        state = self.torch.state_dict()
        return {n: (self.of_torch(n, state[n]), self.native.get(n)) for n in self.tensors()}


def allowed(pairs, tolerance, noise=None):
    """How far the values of each pair may be off: up to a share of its largest value.

    What should vanish is compared with the others: it is the noise of sums of their size. Noise
    that torch has in float32 is allowed tenfold.
    """
    noise = noise or {}
    most = max(noise.values(), default=0.0)
    overall = max(np.abs(e).max(initial=0) for n, (e, _) in pairs.items() if n != "loss")
    scales = {n: max(np.abs(e).max(initial=0), 0.05 * overall, 1e-3) for n, (e, _) in pairs.items()}
    return {name: tolerance * scales[name] + 10 * noise.get(name, most) for name in pairs}


def agree(pairs, tolerance, noise=None):
    """Assert that each pair is equal as far as it must be."""
    limits = allowed(pairs, tolerance, noise)
    for name, (expected, found) in pairs.items():
        worst = np.abs(expected - found).max(initial=0)
        assert worst <= limits[name], f"{name}: off by {worst:.2g}, more than {limits[name]:.2g}"


def batch(rng, count, shape, classes):
    """Random images and labels."""
    images = rng.standard_normal((count, *shape)).astype(np.float32)
    return images, rng.integers(0, classes, count)


def wake_norms(model, seed=0):
    """Give norms scales and shifts that are not 1 and 0."""
    generator = torch.Generator().manual_seed(seed)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d | nn.GroupNorm | nn.LayerNorm):
            with torch.no_grad():
                module.weight.uniform_(0.5, 1.5, generator=generator)
                module.bias.uniform_(-0.5, 0.5, generator=generator)
    return model
