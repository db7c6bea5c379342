"""Image files as what a model takes."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtiny.errors import DataError, ExportError
from fedtiny.extras import require

MODES = {1: "L", 3: "RGB", 4: "RGBA"}
MAX_PIXELS = 1 << 26
WITHOUT_A_RANGE = ("I", "F")  # whole numbers of 32 bits, and floats
DEEP_AS_INTEGERS = ("PNG", "PPM")  # whose 16 bits some versions of Pillow hold in 32


def read_image(path: Path, shape: tuple[int, int, int]) -> NDArray[np.uint8]:
    """The image of a file, of any size and colours, as [C, H, W] of this shape."""
    channels, height, width = shape
    if channels not in MODES:
        raise ExportError(f"the model takes images of {channels} channels, which no image file has")
    pillow = require("PIL.Image", extra="data")
    try:
        with pillow.open(path) as file:
            if file.width * file.height > MAX_PIXELS:
                raise DataError(f"{path} has more than {MAX_PIXELS} pixels")
            image = _in_bytes(file, path).convert(MODES[channels])
            if image.size != (width, height):
                image = image.resize((width, height), pillow.Resampling.BILINEAR)
    except (OSError, ValueError, SyntaxError, pillow.DecompressionBombError) as error:
        raise DataError(f"{path} cannot be read as an image: {_why(error)}") from error
    pixels: NDArray[np.uint8] = np.asarray(image, dtype=np.uint8).reshape(height, width, channels)
    return np.ascontiguousarray(pixels.transpose(2, 0, 1))


def _in_bytes(file: Any, path: Path) -> Any:
    """The same picture with pixels of 0 to 255; Pillow alone would cut off what is brighter."""
    deep = file.mode.startswith("I;16") or (file.mode == "I" and file.format in DEEP_AS_INTEGERS)
    if deep:
        pixels = np.asarray(file).clip(0, 65535).astype(np.uint32)
        return require("PIL.Image", extra="data").fromarray(
            ((pixels + 128) // 257).astype(np.uint8)
        )
    if file.mode in WITHOUT_A_RANGE:
        raise DataError(f"{path} does not say how bright its numbers are; save it in 8 or 16 bits")
    return file


def _why(error: BaseException) -> str:
    why = getattr(error, "strerror", None) or str(error)
    return " ".join(str(why).split())
