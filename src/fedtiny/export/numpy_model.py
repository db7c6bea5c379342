"""A packed model that runs with NumPy alone: no torch, nothing to compile.

>>> model = load("model.packed")  # doctest: +SKIP
>>> model(images).argmax(axis=1)  # doctest: +SKIP
"""

from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtiny.data.transforms import ArrayTransform
from fedtiny.export import checks
from fedtiny.export.arithmetic import Batch, step
from fedtiny.export.loading import shipped
from fedtiny.export.network import Floats, TinyModel, check_images

MAX_AT_ONCE = 64  # images that are computed together
MAX_READ = 1 << 25  # values that the windows of a layer read at a time


def load(path: Path | str) -> "NumpyModel":
    """The model of a packed file, or of a run folder."""
    return NumpyModel(shipped(path))


class NumpyModel:
    """Gives logits for images; `model` has the classes' names, the shape and the model card."""

    def __init__(self, model: TinyModel) -> None:
        self.model = model
        self._prepare = ArrayTransform(model.normalisation.mean, model.normalisation.std)
        self._last_use = _last_uses(model)
        self._at_once = _at_once(model)

    def __call__(self, images: NDArray[Any]) -> Floats:
        """Logits [N, classes] of images [N, C, H, W]: uint8 from 0 to 255, or float from 0 to 1."""
        check_images(images.shape, self.model.shape)
        starts = range(0, len(images), self._at_once)
        parts = [images[start : start + self._at_once] for start in starts]
        logits = [self.logits(self._prepare.normalise(part)) for part in parts]
        return np.concatenate([np.empty((0, len(self.model.classes)), np.float32), *logits])

    def logits(self, normalised: Floats) -> Floats:
        """Logits of images that are normalised already, all at once."""
        given: dict[int, Batch] = {}
        batch = np.ascontiguousarray(normalised.swapaxes(0, 1))
        nodes = self.model.net.graph.nodes
        for number, node in enumerate(nodes):
            read = [given[i] for i in node.inputs] or [batch]
            given[number] = step(self.model.net, node, read)
            for done in {number, *node.inputs}:
                if self._last_use[done] == number:
                    del given[done]
        return given[len(nodes) - 1][:, :, 0, 0].T


def _at_once(model: TinyModel) -> int:
    """How many images can be computed together within the memory of a large one."""
    given = checks.shapes(model.net.graph)
    read, held = checks.largest_read(model.net.graph, given), sum(map(prod, given))
    return max(1, min(MAX_AT_ONCE, MAX_READ // read, checks.MAX_HELD // held))


def _last_uses(model: TinyModel) -> dict[int, int]:
    """The last step that needs what each step gives; the result is needed after all."""
    nodes = model.net.graph.nodes
    reads = {i: number for number, node in enumerate(nodes) for i in (*node.inputs, number)}
    return {**reads, len(nodes) - 1: len(nodes)}
