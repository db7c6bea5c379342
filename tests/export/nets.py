"""Sparse models with random values and batch-norm statistics, in torch and as theta."""

import itertools
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import nn

from fedtiny import models
from fedtiny.data.transforms import Preparation
from fedtiny.export.network import TinyModel, lower
from fedtiny.graph.ir import Graph
from fedtiny.graph.trace import trace
from fedtiny.models import ParamSpec
from fedtiny.sparse.mask import Mask
from fedtiny.sparse.theta import Theta

SHIPPED = {
    "resnet18": ((3, 16, 16), 8),
    "vgg11": ((1, 32, 32), 4),
    "vgg11_small": ((3, 32, 32), 8),
    "small": ((1, 8, 8), 16),
}
DENSITIES = (1.0, 0.1, 0.01, 0.001)


@dataclass
class Sparse:
    """A torch network and the same as an export takes it."""

    torch: nn.Module
    graph: Graph
    theta: Theta
    shape: tuple[int, ...]

    def images(self, count=5, seed=0):
        rng = np.random.default_rng(seed)
        return rng.standard_normal((count, *self.shape)).astype(np.float32)

    def logits(self, images):
        """Those of the torch network, in float64."""
        with torch.no_grad():
            return self.torch.double().eval()(torch.from_numpy(images).double()).numpy()


def shipped(name, density, seed=0, classes=10):
    """A shipped network, narrow, under a random mask."""
    shape, width = SHIPPED[name]
    return sparse(models.build(name, shape, classes, width=width, seed=seed), shape, density, seed)


def sparse(network, shape, density, seed=0):
    """Any network under a random mask, with random batch norm and a random bias."""
    rng = np.random.default_rng(seed)
    param_spec = models.analyze(network, shape)
    mask = random_mask(param_spec, density, rng)
    state = {n: _random(n, t, rng) for n, t in network.state_dict().items()}
    theta = Theta.from_tensors({n: t.numpy() for n, t in state.items()}, mask)
    network.load_state_dict(
        state | {n: torch.from_numpy(a.copy()) for n, a in theta.tensors().items()}
    )
    return Sparse(network, trace(network, shape), theta, shape)


def measured(network, shape, density, seed=0):
    """Any network under a random mask, its batch norms with the statistics of random images.

    With random statistics, or those of channels that are nearly dead, a deep network magnifies the
    rounding of float32 to anything.
    """
    made, drawn = sparse(network, shape, density, seed), torch.Generator().manual_seed(seed)
    norms = [m for m in network.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    for norm in norms:
        norm.momentum = 1.0
        nn.init.normal_(norm.weight, 1, 0.1, generator=drawn)
        nn.init.normal_(norm.bias, 0, 0.1, generator=drawn)
    with torch.no_grad():
        network.train()(torch.from_numpy(made.images(64, seed=1)))
    for norm in norms:
        norm.running_var.clamp_(min=0.3)
    state = {name: tensor.numpy() for name, tensor in network.state_dict().items()}
    return replace(made, theta=Theta.from_tensors(state, made.theta.mask))


def random_mask(param_spec: ParamSpec, density, rng):
    """Each layer keeps a random share of its weights; one of few weights may keep none."""
    return Mask(
        param_spec,
        {
            layer: np.sort(rng.choice(size, rng.binomial(size, density), replace=False))
            for layer, size in param_spec.sizes.items()
        },
    )


def _random(name, tensor, rng):
    if not tensor.is_floating_point():
        return tensor
    values = rng.standard_normal(tensor.shape)
    if name.endswith("running_var"):
        values = np.exp(0.5 * values)
    elif tensor.ndim == 1:
        values *= 0.5
        if name.endswith("weight"):
            values += 1
    else:
        values /= np.sqrt(max(1, tensor[0].numel() / 8))
    return torch.from_numpy(values.astype(np.float32)).reshape(tensor.shape)


def assert_close(found, expected, relative=1e-5):
    """Within a share of the largest logit."""
    np.testing.assert_allclose(found, expected, rtol=0, atol=relative * np.abs(expected).max())


def tiny_model(made, *, fold=True, remove_dead=True):
    """What is shipped of a sparse model, with all that goes with it."""
    net = lower(made.graph, made.theta, fold=fold, remove_dead=remove_dead)
    mean, std = (
        tuple(itertools.islice(itertools.cycle(values), made.shape[0]))
        for values in ((0.25, 0.5, 0.4), (0.3, 0.2, 0.25))
    )
    reads = "values" if net.graph.shapes[0][1] == 1 else "bytes"
    card = {"method": "fedtiny"}
    return TinyModel(net, Preparation(mean, std), tuple("abcdefghij"), card, reads=reads)
