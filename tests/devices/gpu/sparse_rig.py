"""Sparse kernels beside the dense engine: the same trainings by both, in emulation on a CPU."""

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import nn

from fedtiny.config import Config, ResolvedTrain, TrainConfig, resolve
from fedtiny.data import ImageSet
from fedtiny.data.transforms import Preparation
from fedtiny.devices.device_data import DeviceData
from fedtiny.devices.engine import Adam, RngKey, Sgd, rule_of_round
from fedtiny.devices.gpu.engine import GpuEngine, Shared
from fedtiny.devices.gpu.image_store import Images, ImageStore
from fedtiny.devices.gpu.layout import Layout
from fedtiny.devices.gpu.network import Network
from fedtiny.devices.gpu.sparse.choice import EMULATED_SHARED
from fedtiny.devices.gpu.sparse.network import SparseNetwork
from fedtiny.devices.gpu.sparse.plan import Plan
from fedtiny.devices.gpu.sparse.trainer import Trained, Trainer, Training
from fedtiny.graph.ir import Graph
from fedtiny.graph.trace import trace
from fedtiny.models import ParamSpec, analyze
from fedtiny.sparse.mask import Mask
from fedtiny.sparse.theta import Theta

from .rig import CPU, first_values

CLASSES = 3


def noise_images(shape: tuple[int, ...], count: int = 48) -> ImageSet:
    """Noise in three classes."""
    draw = np.random.default_rng(0)
    images = draw.integers(0, 256, (count, *shape)).astype(np.uint8)
    return ImageSet(images, draw.integers(0, CLASSES, count), ("a", "b", "c"))


@dataclass
class Both:
    """One network, trained by the sparse kernels and by a lane's engine."""

    model: nn.Module
    shape: tuple[int, int, int]
    batch: int
    precision: str = "fp32"
    optimizer: str = "sgd"
    room: int = 3
    limit: int = EMULATED_SHARED
    freeze_bn: float = 1.0
    data: ImageSet = field(init=False)
    graph: Graph = field(init=False)
    param_spec: ParamSpec = field(init=False)
    trainer: Trainer = field(init=False)
    lane: GpuEngine = field(init=False)

    def __post_init__(self) -> None:
        self.data, self.graph = noise_images(self.shape), trace(self.model, self.shape)
        self.param_spec = analyze(self.model, self.shape, self.graph)
        plain = Preparation((0.5,) * self.shape[0], (0.25,) * self.shape[0], 2, True, 3)
        plan = Plan(self.graph, self.param_spec, self.batch, self.precision, self.limit)
        network = SparseNetwork(plan, self.room, CPU, adam=self.optimizer == "adam")
        self.trainer = Trainer(network, Images(self.data, plain, CPU, False), None, False)
        layout = Layout.of(self.model, self.param_spec, False)
        dense = Network(self.model, layout, CPU, torch.float32)
        shared = Shared(ImageStore([self.data], plain, CPU, False), self.config)
        self.lane = GpuEngine(dense, shared, None, False)

    @property
    def config(self) -> ResolvedTrain:
        settings = {"optimizer": self.optimizer, "freeze_bn": self.freeze_bn, **self.sizes}
        return resolve(Config(train=TrainConfig(**settings))).train

    @property
    def sizes(self) -> dict[str, int]:
        return {"batch_size": self.batch, "local_epochs": 1}

    @property
    def rule(self) -> Adam | Sgd:
        return rule_of_round(self.config, 0, 1)

    def mask(self, density: float | dict[str, float], seed: int = 0) -> Mask:
        """A mask that keeps about this share of every layer, or of each by name."""
        draw, kept = np.random.default_rng(seed), {}
        for name, size in self.param_spec.sizes.items():
            share = density if isinstance(density, float) else density.get(name, 0.5)
            kept[name] = np.flatnonzero(draw.random(size) < share)
        return Mask(self.param_spec, kept)

    def theta(self, mask: Mask) -> Theta:
        """The model's first values under a mask, but no bias at the kink of a ReLU."""
        theta, draw = first_values(self.model, mask), np.random.default_rng(1)
        biases = {n: s for n, s in self.param_spec.dense.items() if n.endswith("bias")}
        return theta.with_dense({n: draw.normal(0, 0.2, s) for n, s in biases.items()})

    def trainings(self, *steps: int, epochs: int = 1) -> list[Training]:
        """Of devices that take so many steps an epoch each."""
        return [
            Training(
                DeviceData(k, self.data, np.arange(k, k + self.batch * n + k % 2), np.arange(4)),
                RngKey(0, 0, k),
                epochs,
            )
            for k, n in enumerate(steps)
        ]

    def sparse(self, theta: Theta, trainings: list[Training]) -> list[Trained]:
        return self.trainer.train(theta, trainings, self.rule)

    def dense(self, theta: Theta, training: Training) -> Trained:
        self.lane.load(theta)
        metrics, _ = self.lane.train(training.shard, training.rng_key, epochs=training.epochs)
        return Trained(self.lane.theta().vector, metrics["loss"])

    def assert_same(self, mask: Mask, *steps: int, near: float = 2e-3) -> None:
        """Both train to the same, but for rounding: off by so much of what training changed."""
        theta, trainings = self.theta(mask), self.trainings(*(steps or (2, 1, 1)))
        for training, ours in zip(trainings, self.sparse(theta, trainings), strict=True):
            theirs = self.dense(theta, training)
            np.testing.assert_allclose(ours.loss, theirs.loss, rtol=near)
            for name, part in theta.places.items():
                before, wanted = theta.vector[part], theirs.vector[part]
                off = np.linalg.norm(ours.vector[part] - wanted)
                most = near * np.linalg.norm(wanted - before) + 1e-6 * np.linalg.norm(wanted)
                assert off <= most + 1e-6, (name, off, most)
