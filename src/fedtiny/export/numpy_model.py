"""A packed model that runs with NumPy alone, and image files as what it takes.

>>> model = load("model.packed")  # doctest: +SKIP
>>> model(images).argmax(axis=1)  # doctest: +SKIP
"""

import io
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtiny.data.images import own_shape
from fedtiny.data.transforms import ArrayTransform
from fedtiny.errors import DataError, ExportError
from fedtiny.export.network import TinyModel, as_samples
from fedtiny.export.packed import shipped
from fedtiny.extras import require
from fedtiny.files import read_file
from fedtiny.graph.arithmetic import FORMS
from fedtiny.graph.arrays import Floats
from fedtiny.graph.ir import UNTRUSTED
from fedtiny.graph.windows import Batch

MAX_AT_ONCE = 64  # images that are computed together
MAX_READ = 1 << 25  # values that the windows of a layer read at a time


def load(path: Path | str) -> "NumpyModel":
    """The model of a packed file, or of a run folder, for NumPy alone.

    Args:
        path: As for :func:`fedtiny.load`.

    Returns:
        The model, which is called with images.

    Raises:
        ExportError: This is no packed model, or a damaged one.

    Example:
        >>> import numpy as np
        >>> config = fedtiny.Config(model="small", width=2, rounds=1, workers=1)
        >>> model = load(fedtiny.run(config, out="runs/plain").export("packed"))
        >>> model(np.zeros((5, 1, 8, 8), dtype=np.uint8)).shape
        (5, 10)
    """
    model = shipped(path)
    if model.activations is None:
        return NumpyModel(model)
    from fedtiny.export.integer_model import IntegerModel

    return IntegerModel(model)


class NumpyModel:
    """A trained model that needs neither torch nor the run: call it with images.

    Args:
        model: What a packed file holds: `classes`, `shape` and the model `card` among it.

    Example:
        >>> config = fedtiny.Config(model="small", width=2, rounds=1, workers=1)
        >>> NumpyModel(load(fedtiny.run(config, out="runs/a").path).model).model.shape
        (1, 8, 8)
    """

    def __init__(self, model: TinyModel) -> None:
        self.model = model
        self._prepare = ArrayTransform(model.normalisation.mean, model.normalisation.std)
        graph = model.net.graph
        self._last_reads = graph.last_reads
        most = UNTRUSTED.held // sum(map(prod, graph.shapes))  # within the memory of a large one
        self._at_once = max(1, min(MAX_AT_ONCE, MAX_READ // graph.largest_read, most))

    def __call__(self, images: NDArray[Any]) -> Floats:
        """Classify images.

        Args:
            images: [N, C, H, W]: whole numbers from 0 to 255, or floats from 0 to 1; of a model of
                sequences, of tables or of images of floats, values as in its training data.

        Returns:
            Logits, [N, classes].
        """
        images = as_samples(np.asarray(images), self.model.shape, self.model.reads)
        starts = range(0, len(images), self._at_once)
        parts = [images[start : start + self._at_once] for start in starts]
        logits = [self._classified(part) for part in parts]
        return np.concatenate([np.empty((0, len(self.model.classes)), np.float32), *logits])

    def _classified(self, images: NDArray[Any]) -> Floats:
        """Logits of images as they come, all at once."""
        return self.logits(self._prepare.normalise(images))

    def logits(self, normalised: Floats) -> Floats:
        """Logits of images that are normalized already, all at once.

        Args:
            normalised: [N, C, H, W].

        Returns:
            Logits, [N, classes].
        """
        with np.errstate(over="ignore", invalid="ignore"):  # as torch, without a word
            return self._logits(normalised)

    def _logits(self, normalised: Floats) -> Floats:
        outputs: dict[int, Batch] = {}
        batch = np.ascontiguousarray(normalised.swapaxes(0, 1))
        nodes = self.model.net.graph.nodes
        for number, node in enumerate(nodes):
            read = [outputs[i] for i in node.inputs] or [batch]
            outputs[number] = FORMS[node.kind](self.model.net, node, *read)
            for done in {number, *node.inputs}:
                if self._last_reads[done] == number:
                    del outputs[done]
        return outputs[len(nodes) - 1][:, :, 0, 0].T


MODES = {1: "L", 3: "RGB", 4: "RGBA"}
MAX_PIXELS = 1 << 26
MAX_BYTES = 1 << 30  # of an image file
WITHOUT_A_RANGE = ("I", "F")  # whole numbers of 32 bits, and floats
DEEP_AS_INTEGERS = ("PNG", "PPM")  # whose 16 bits some versions of Pillow hold in 32


def read_image(path: Path, shape: tuple[int, int, int]) -> NDArray[np.uint8]:
    """The image of a file, of any size and colors, as [C, H, W] of this shape."""
    channels, height, width = shape
    if channels not in MODES or height == 1:
        raise ExportError(
            f"the model takes samples of shape {own_shape(shape)}, which no image file has; in "
            "Python fedtiny.load(MODEL) gives a function of arrays"
        )
    pillow = require("PIL.Image", extra="images")
    try:
        with pillow.open(io.BytesIO(read_file(path, MAX_BYTES))) as file:
            if file.width * file.height > MAX_PIXELS:
                raise DataError(f"{path} has more than {MAX_PIXELS} pixels")
            image = _in_bytes(file, path).convert(MODES[channels])
            if image.size != (width, height):
                image = image.resize((width, height), pillow.Resampling.BILINEAR)
    except pillow.UnidentifiedImageError as error:
        raise DataError(f"{path} cannot be read as an image: its format is not known") from error
    except (OSError, ValueError, SyntaxError, pillow.DecompressionBombError) as error:
        why = " ".join(str(getattr(error, "strerror", None) or error).split())
        raise DataError(f"{path} cannot be read as an image: {why}") from error
    pixels: NDArray[np.uint8] = np.asarray(image, dtype=np.uint8).reshape(height, width, channels)
    return np.ascontiguousarray(pixels.transpose(2, 0, 1))


def _in_bytes(file: Any, path: Path) -> Any:
    """The same picture with pixels of 0 to 255; Pillow alone would cut off what is brighter."""
    as_integers = file.mode == "I" and file.format in DEEP_AS_INTEGERS
    if file.mode.startswith("I;16") or as_integers:
        pixels = np.asarray(file).clip(0, 65535).astype(np.uint32)
        pillow = require("PIL.Image", extra="images")
        return pillow.fromarray(((pixels + 128) // 257).astype(np.uint8))
    if file.mode in WITHOUT_A_RANGE:
        raise DataError(f"{path} does not say how bright its numbers are; save it in 8 or 16 bits")
    return file
