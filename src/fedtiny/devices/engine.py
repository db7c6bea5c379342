"""How a device computes: the verbs and the optimizers that every engine has."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import tanh
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fedtiny.config import TrainConfig
from fedtiny.devices.device_data import DeviceData
from fedtiny.devices.lr_schedule import lr_factor
from fedtiny.errors import DivergedError
from fedtiny.federation.bn_statistics import freezes_bn
from fedtiny.federation.verbs import BnStatistics
from fedtiny.models.param_spec import Shape
from fedtiny.randomness import SERVER, generator
from fedtiny.sparse.candidates import CandidatePool
from fedtiny.sparse.mask import Indices, Mask
from fedtiny.sparse.theta import Theta
from fedtiny.sparse.vector import SparseVector

Metrics = dict[str, float]
Arrays = Mapping[str, NDArray[np.float32]]
Places = NDArray[np.intp]

MOMENTUM = 0.1  # of running batch-norm statistics, if several passes are asked for


@dataclass(frozen=True)
class RngKey:
    """Who computes and when: the key of every random draw."""

    seed: int
    round: int
    device: int
    part: int = 0
    """Which of several trainings within one program."""

    def generator(self, purpose: str) -> np.random.Generator:
        """The draws for one purpose at this moment."""
        key = f"{purpose} {self.part}" if self.part else purpose
        return generator(self.seed, key, round=self.round, device=self.device)


class Engine(Protocol):
    """A model that can be given any parameters, trained on any shard and measured."""

    def load(self, theta: Theta) -> None:
        """Install parameters and their mask."""

    def theta(self) -> Theta:
        """The parameters as they are now."""

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
        """Train under the mask with a fresh optimizer; gives the mean loss.

        On request also the mean over all batches of each prunable layer's full gradient. FedProx
        holds the weights near those that were `received`; without them it does not. Weights that
        are `extruded`, given by their places in theta's vector, are penalized (`Extrusion`).
        """

    def top_gradients(
        self,
        shard: DeviceData,
        rng_key: RngKey,
        *,
        counts: Mapping[str, int],
        epsilon: float = 0.0,
        fisher: bool = False,
    ) -> dict[str, SparseVector]:
        """The largest gradients of pruned weights on one mini-batch; changes nothing.

        Batch norm computes with this epsilon at least, which bounds by how much it enlarges the
        gradient of a filter that gives nothing. On request each gradient g is divided by
        sqrt(2 F), so that its square is Fedfit's score g^2 / (2 F). The Fisher information is
        F = (mean of the input's squares) (mean over images of the squares of the output's
        gradient, summed over pixels), of the weight's channel and filter.
        """

    def gradients_at(
        self,
        shard: DeviceData,
        rng_key: RngKey,
        *,
        positions: Mapping[str, Indices],
        epsilon: float = 0.0,
        fisher: bool = False,
    ) -> Arrays:
        """The gradients of these weights on the same mini-batch; changes nothing.

        On request each is divided as those of `top_gradients` are.
        """

    def bn_statistics(self, shard: DeviceData, pool: CandidatePool, how: BnStatistics) -> Arrays:
        """Batch-norm statistics of each candidate on the development set, a row each.

        Beside `running_mean`, either `running_var` or, to be pooled exactly, `running_square`.
        """

    def losses(
        self, shard: DeviceData, pool: CandidatePool, statistics: Arrays
    ) -> NDArray[np.float32]:
        """Loss of each candidate on the development set, under the given statistics."""

    def evaluate(self, shard: DeviceData) -> Metrics:
        """Loss and accuracy on all of a shard."""


def finite(loss: float, rng_key: RngKey) -> float:
    """The mean loss of a local training, which must be a number."""
    if not np.isfinite(loss):
        if rng_key.device == SERVER:
            raise DivergedError(
                f"training diverged on the server's public set: its loss is {loss}; start anew "
                "with a lower --train.lr",
                retryable=False,
            )
        raise DivergedError(
            f"training diverged on device {rng_key.device} in round {rng_key.round + 1}: its loss "
            f"is {loss}; lower --train.lr"
        )
    return loss


@dataclass(frozen=True)
class Extrusion:
    """FedMef's way of emptying weights that are about to be dropped, over so many local steps.

    The loss has penalty |w|^2 of them beside it. The learning rate is raised as long as they are
    large and few steps are done: to (2T - 2t) / (2T - t) (2 sigmoid(|w|) - 1) of the highest rate
    that a round has had, where that is above the rate of this one.
    """

    steps: int
    highest_rate: float = 1.0
    """As a multiple of this round's: the first round's, or that after a warm-up."""
    penalty: float = 1e-4

    def rate(self, step: int, norm: float) -> float:
        """The learning rate of a step, counted from 0, as a multiple of the round's.

        >>> Extrusion(10, highest_rate=4).rate(0, norm=1e9), Extrusion(10).rate(0, norm=1e9)
        (4.0, 1.0)
        """
        left = (2 * self.steps - 2 * step) / (2 * self.steps - step)
        return max(1.0, left * tanh(norm / 2) * self.highest_rate)  # 2 sigmoid(x) - 1 = tanh(x / 2)


@dataclass(frozen=True)
class Adam:
    """Adam with decay added to the gradient."""

    lr: float = 1e-3
    weight_decay: float = 1e-4
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    decay_norms: bool = True
    """Whether tensors of one dimension (batch norm, biases) decay too."""
    proximal_mu: float = 0.0
    """FedProx: mu (w - w_received) is added to the gradient."""
    freeze_bn: bool = False
    """FixBN: batch norm computes with its running statistics, which stay."""


@dataclass(frozen=True)
class Sgd:
    """Stochastic gradient descent with momentum; decay is added to the gradient."""

    lr: float = 0.05
    weight_decay: float = 5e-4
    momentum: float = 0.9
    decay_norms: bool = True
    proximal_mu: float = 0.0
    freeze_bn: bool = False


Rule = Adam | Sgd


def rule_of_round(config: TrainConfig, round: int, rounds: int) -> Rule:
    """How a device trains in a round; the optimizer starts anew."""
    rule = optimizer(config, lr_factor(config, round, rounds))
    return replace(rule, freeze_bn=freezes_bn(config, round, rounds))


def optimizer(config: TrainConfig, factor: float = 1.0) -> Rule:
    """The optimizer that a config names, with its rate times a factor."""
    chosen: Rule = Sgd() if config.optimizer == "sgd" else Adam()
    lr = chosen.lr if config.lr is None else config.lr
    decay = chosen.weight_decay if config.weight_decay is None else config.weight_decay
    norms, mu = config.decay_norms, config.proximal_mu
    return replace(chosen, lr=lr * factor, weight_decay=decay, decay_norms=norms, proximal_mu=mu)


def is_decayed(shape: Shape, rule: Rule) -> bool:
    """Whether a tensor of this shape takes part in weight decay."""
    return rule.decay_norms or len(shape) > 1


def under(mask: Mask, theta: Theta) -> Theta:
    """A theta under the mask that a device has come to; what it grew was zero before."""
    return theta if theta.mask == mask else theta.remasked(mask)
