"""FLOPs: twice the multiply-adds of convolution and linear layers, each layer at its density."""

from collections import Counter
from dataclasses import replace

from fedtiny.cost.workload import Workload
from fedtiny.federation.method import CoarseRequest
from fedtiny.federation.verbs import TRAINING, DeviceLoad, Items, Program, Train


def dense_round(work: Workload) -> int:
    """A round of training the large network with all its weights: what ratios are taken to."""
    images = work.samples * work.config.train.local_epochs
    return 3 * 2 * work.large.profile.macs * images


def of_round(work: Workload, round: int) -> Items:
    """Everything that a device computes in a round, by name."""
    items = _of_program(work.program(round), work.load)
    last = round == work.config.rounds - 1
    return {**items, "average_statistics": averaged(work)} if last and work.averaged else items


def averaged(work: Workload) -> int:
    """What devices compute after the last round, if the final model is an average."""
    return _measured(work, work.averaged) if work.averaged else 0


def plain(work: Workload) -> int:
    """A round that adjusts nothing."""
    return sum(of_round(work, work.plain_round).values())


def costliest_round(work: Workload) -> int:
    """The first round that takes the most FLOPs."""
    return max(work.programs, key=lambda round: sum(of_round(work, round).values()))


def training(items: Items) -> int:
    """The part of a round that is local training, as the paper counts it."""
    return sum(items.get(name, 0) for name in TRAINING)


def never_computed(work: Workload, round: int) -> int:
    """The gradient to the images themselves, which the paper counts and no device needs."""
    epochs = sum(verb.epochs for verb in work.program(round) if isinstance(verb, Train))
    return epochs * work.samples * work.load.layers[0].forward


def selection(work: Workload) -> int:
    """What devices compute before the first round."""
    return sum(_measured(work, asked) for asked in work.coarse)


def _measured(work: Workload, asked: CoarseRequest) -> int:
    load = replace(work.load, candidates=asked.candidates)
    return sum(_of_program(asked.program, load).values())


def server(work: Workload) -> Items:
    """The server's own work: before training, and the averaging in a round."""
    gradient = 3 * 2 * work.network.profile.macs
    epochs = work.config.train.pretrain_epochs
    values = work.kept + work.network.param_spec.dense_count
    return {
        "pretraining": epochs * work.public * gradient,
        "coarse_pruning": work.method.scored_images(work.public) * gradient,
        "averaging": 2 * work.config.fleet.asked * values,
    }


def _of_program(program: Program, load: DeviceLoad) -> Items:
    items: Counter[str] = Counter()
    for verb in program:
        items.update(verb.flops(load))
    return dict(items)
