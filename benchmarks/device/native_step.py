"""A training step in native code, in a process that need not import torch."""

import numpy as np

from fedtiny.graph.ir import Graph
from fedtiny.native.library import Options, Rates
from fedtiny.native.model import NativeModel

from .contender import Contender, Step
from .task import DECAY, LR, MOMENTUM, Task


def step(task: Task, contender: Contender) -> Step:
    """SGD with momentum on the kept weights."""
    model, (images, labels) = _model(task, contender), task.batch()
    return lambda: model.train(images, labels)


def parameter_bytes(task: Task, contender: Contender) -> int:
    """Kept weights and dense tensors, their gradients and momentum; takes no memory."""
    model = NativeModel(Graph.from_plain(task.graph))
    return int(model.plan(_options(task, contender), task.counts(contender.density)).parameters)


def _options(task: Task, contender: Contender) -> Options:
    return Options(
        batch=task.batch_size,
        threads=task.threads,
        storage=contender.storage,
        recompute=contender.recompute,
        remove_dead=contender.remove_dead,
        optimizer="sgd",
    )


def _model(task: Task, contender: Contender) -> NativeModel:
    """Random weights; batch norms as they start."""
    model = NativeModel(Graph.from_plain(task.graph))
    kept, draw = task.mask(contender.density), np.random.default_rng(2)
    model.prepare(_options(task, contender), kept)
    for name, positions in kept.items():
        model.set(name, draw.standard_normal(len(positions)) * 0.05)
    for name, size in task.dense.items():
        if name.removesuffix(".weight") in model.graph.weight_shapes:
            model.set(name, draw.standard_normal(size) * 0.05)
        else:
            is_one = name.endswith((".weight", ".running_var"))
            model.set(name, np.full(size, float(is_one)))
    model.start(Rates(lr=LR, momentum=MOMENTUM, decay=DECAY))
    return model
