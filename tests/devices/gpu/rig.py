"""Networks, engines and lanes of the GPU simulator around the tiny fleet, on a CPU."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from hypothesis import strategies as st
from torch import nn

from fedtiny.config import GpuConfig
from fedtiny.devices.engine import Engine
from fedtiny.devices.gpu.engine import GpuEngine, Shared
from fedtiny.devices.gpu.image_store import ImageStore
from fedtiny.devices.gpu.layout import Layout
from fedtiny.devices.gpu.network import Network
from fedtiny.devices.gpu.stream_executor import StreamExecutor
from fedtiny.devices.node import answer
from fedtiny.federation.messages import Request, pool_arrays
from fedtiny.models import analyze
from fedtiny.sparse.candidates import CandidatePool
from fedtiny.sparse.densities import uniform_noise
from fedtiny.sparse.mask import Mask
from fedtiny.sparse.theta import Theta

from ..tiny import CLASSES, SIDE, Lab, PlainNet, Smooth, TinyNet

CPU = torch.device("cpu")
SHAPE = (1, SIDE, SIDE)
DENSE = {"kernels": "dense", "precision": "fp32", "compile": False}
NEAR = {"rtol": 1e-4, "atol": 1e-5}
MIDDLES = {
    "3x3": lambda: nn.Conv2d(3, 3, 3, padding=1, bias=False),
    "1x1": lambda: nn.Conv2d(3, 3, 1),
    "5x3": lambda: nn.Conv2d(3, 3, (5, 3), padding=(2, 1)),
    "1x3 in groups": lambda: nn.Conv2d(3, 3, (1, 3), padding=(0, 1), groups=3, bias=False),
    "norm": lambda: nn.BatchNorm2d(3),
    "linear": lambda: nn.Linear(SIDE, SIDE),
    "layer norm": lambda: nn.LayerNorm(SIDE),
    "relu": nn.ReLU,
}


class Own(nn.Module):
    """A network of one's own: odd layers, and parameters that belong to no layer."""

    def __init__(self, middles: list[str]) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.linspace(0.5, 1.5, 3)[:, None, None])
        self.stem = nn.Conv2d(1, 3, 3, padding=1)
        self.middle = nn.Sequential(*(MIDDLES[name]() for name in middles))
        self.line = nn.Conv1d(3, 5, 3)
        self.offset = nn.Parameter(torch.tensor(0.1))
        self.head = nn.Linear(5, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.middle(self.stem(x) * self.gain) + self.offset
        return self.head(torch.tanh(self.line(x.flatten(2))).mean(2))


class Dropping(TinyNet):
    def forward(self, x):
        return super().forward(F.dropout(x, 0.3, self.training))


class Noisy(TinyNet):
    def forward(self, x):
        return super().forward(x + 0.01 * torch.randn_like(x))


class Leaky(TinyNet):
    def __init__(self):
        super().__init__()
        self.leak = nn.RReLU()

    def forward(self, x):
        return super().forward(self.leak(x))


DRAWING = (Dropping, Noisy, Leaky)

NETWORKS: Mapping[str, type[nn.Module]] = {
    "tiny": TinyNet,
    "plain": PlainNet,
    "smooth": Smooth,
    "own": lambda: Own(["5x3", "norm", "relu", "linear", "1x1", "layer norm", "1x3 in groups"]),
}

networks = st.lists(st.sampled_from(sorted(MIDDLES)), max_size=4).map(Own)


@st.composite
def masks(draw: st.DrawFn, param_spec) -> Mask:
    """Any mask, layers that keep all or nothing among them."""
    kept = {}
    for name, size in param_spec.sizes.items():
        density = draw(st.sampled_from([0.0, 0.02, 0.3, 0.9, 1.0]))
        noise = np.random.default_rng(draw(st.integers(0, 9))).random(size)
        kept[name] = np.flatnonzero(noise < density)
    return Mask(param_spec, kept)


def first_values(model: nn.Module, mask: Mask) -> Theta:
    """What a model has at the start, under a mask."""
    state = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    return Theta.from_tensors(state, mask)


def noise(mask: Mask, seed: int = 0) -> Theta:
    """Random values under a mask; variances are positive."""
    count = mask.count + mask.param_spec.dense_count
    values = np.random.default_rng(seed).normal(size=count).astype(np.float32)
    theta = Theta(mask, values)
    variances = [name for name in mask.param_spec.dense if name.endswith("running_var")]
    return theta.with_dense({name: np.abs(theta.tensor(name)) + 0.5 for name in variances})


def network_of(
    model: nn.Module, channels_last: bool = True, dtype: torch.dtype = torch.float32
) -> Network:
    param_spec = analyze(model, SHAPE)
    return Network(model, Layout.of(model, param_spec, channels_last), CPU, dtype)


def put(network: Network, theta: Theta) -> None:
    """Make room for a theta, and compute with it."""
    placed = network.place(theta)
    network.reserve(len(placed.slots))
    network.put(placed)


def engine_of(
    bench: Lab, *, channels_last: bool = True, dtype: torch.dtype = torch.float32
) -> GpuEngine:
    """What the bench's engine does, as a lane of a GPU does it."""
    transform = bench.engine.transform
    image_store = ImageStore([bench.data.train, bench.data.test], transform, CPU, channels_last)
    layout = Layout.of(bench.model, bench.param_spec, channels_last)
    network = Network(bench.model, layout, CPU, dtype)
    shared = Shared(image_store, bench.config.train, rounds=bench.config.rounds)
    return GpuEngine(network, shared, stream=None, graphs=False)


def both(bench: Lab, **named: object) -> tuple[Engine, GpuEngine]:
    """The reference engine and the GPU's."""
    return bench.engine, engine_of(bench, **named)


def lanes_of(
    bench: Lab,
    lanes: int | None,
    *,
    device: torch.device = CPU,
    **named: object,
) -> StreamExecutor:
    """Lanes that play the bench's devices."""
    config = replace(
        bench.config,
        gpu=GpuConfig(**(DENSE | {"lanes": lanes} | named)),
        fleet=replace(bench.config.fleet, devices=len(bench.shards)),
    )
    spec, images = replace(bench.spec, config=config), (bench.data.train, bench.data.test)
    return StreamExecutor(bench.model, spec, images, device)


def order(bench, *program, theta=None, round=0, arrays=None):
    return Request("train", "fedtiny", round, program, theta or bench.theta(), arrays or {})


def answers(bench, request, device=0, **named):
    """What either engine answers to one request."""
    return tuple(answer(e, request, bench.shards[device], seed=0) for e in both(bench, **named))


def assert_near(ours, theirs, **near):
    """Whether two replies say the same but for rounding."""
    near = NEAR | near
    assert (ours.device, ours.samples) == (theirs.device, theirs.samples)
    assert ours.metrics.keys() == theirs.metrics.keys()
    for name, value in theirs.metrics.items():
        assert ours.metrics[name] == pytest.approx(value, rel=near["rtol"], abs=near["atol"]), name
    if theirs.theta is not None:
        assert ours.theta.mask == theirs.theta.mask
        np.testing.assert_allclose(ours.theta.vector, theirs.theta.vector, **near)
    assert ours.arrays.keys() == theirs.arrays.keys()
    for name, values in theirs.arrays.items():
        assert (ours.arrays[name].dtype, ours.arrays[name].shape) == (values.dtype, values.shape)
        np.testing.assert_allclose(ours.arrays[name], values, **near, err_msg=name)
    assert ours.gradients.keys() == theirs.gradients.keys()
    for name, top in theirs.gradients.items():
        assert ours.gradients[name].indices.tolist() == top.indices.tolist()
        np.testing.assert_allclose(ours.gradients[name].values, top.values, **near)


def pool_of(bench, candidates=3, density=0.3):
    counts = uniform_noise(bench.param_spec, density, candidates, np.random.default_rng(0))
    return CandidatePool.cut(bench.start, counts)


def select(bench, *program, arrays=None):
    pool = pool_of(bench)
    return order(bench, *program, theta=pool.theta, arrays=pool_arrays(pool.counts, arrays))
