"""FLOPs: twice the multiply-adds of convolution and linear layers, each layer at its density."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from fedtiny.cost.workload import Workload
from fedtiny.federation.method import CoarseRequest
from fedtiny.federation.verbs import TRAINING, DeviceLoad, Items, Program, Train
from fedtiny.sparse.mask import Mask


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
    return _measured(work.load, work.averaged) if work.averaged else 0


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


def selection(work: Workload, pool: Sequence[Mask] = ()) -> int:
    """What devices compute before the first round, with a pool as it was drawn if that is told.

    Work is proportional to kept weights: the pool's is the mean of pools of one candidate each.
    """
    loads = [work.under(candidate).load for candidate in pool] or [work.load]
    return sum(_measured(load, asked) for asked in work.coarse for load in loads) // len(loads)


def _measured(load: DeviceLoad, asked: CoarseRequest) -> int:
    return sum(_of_program(asked.program, replace(load, candidates=asked.candidates)).values())


def server_passes(work: Workload) -> dict[str, int]:
    """Images that the server takes through the dense network and back before the first round.

    Scoring is that of layer budgets by flow, with the search for a budget if there was one, and
    the method's own.
    """
    train, iterations = work.config.train, work.config.pruning.iterations
    flow = max(work.flow.passes, iterations if work.method.has_flow_budgets else 0)
    scored = flow + work.method.scored_images(work.public)
    return {"pretraining_passes": train.pretrain_epochs * work.public, "server_passes": scored}


def server(work: Workload) -> Items:
    """The server's own work: before training, and the averaging in a round."""
    gradient = 3 * 2 * work.network.profile.macs
    pretraining, scoring = (gradient * passes for passes in server_passes(work).values())
    values = work.kept + work.network.param_spec.dense_count
    return {
        "pretraining": pretraining,
        "coarse_pruning": scoring,
        "averaging": 2 * work.config.fleet.asked * values,
    }


def _of_program(program: Program, load: DeviceLoad) -> Items:
    items: Counter[str] = Counter()
    for verb in program:
        items.update(verb.flops(load))
    return dict(items)
