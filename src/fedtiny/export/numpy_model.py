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
from fedtiny.export.loading import shipped
from fedtiny.export.network import TinyModel, check_images
from fedtiny.graph.arithmetic import Batch, step
from fedtiny.graph.ir import UNTRUSTED
from fedtiny.graph.weights import Floats

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
        self._last_reads = model.net.graph.last_reads
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
        outputs: dict[int, Batch] = {}
        batch = np.ascontiguousarray(normalised.swapaxes(0, 1))
        nodes = self.model.net.graph.nodes
        for number, node in enumerate(nodes):
            read = [outputs[i] for i in node.inputs] or [batch]
            outputs[number] = step(self.model.net, node, read)
            for done in {number, *node.inputs}:
                if self._last_reads[done] == number:
                    del outputs[done]
        return outputs[len(nodes) - 1][:, :, 0, 0].T


def _at_once(model: TinyModel) -> int:
    """How many images can be computed together within the memory of a large one."""
    graph = model.net.graph
    held = sum(map(prod, graph.shapes))
    return max(1, min(MAX_AT_ONCE, MAX_READ // graph.largest_read, UNTRUSTED.held // held))
