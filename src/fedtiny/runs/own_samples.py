"""The samples that one device has itself, at the shape of a run's."""

import logging
from dataclasses import replace
from pathlib import Path

from fedtiny.config import Config
from fedtiny.data import Columns, ImageSet, load_own
from fedtiny.data.images import Layout, own_shape, resize
from fedtiny.errors import DataError
from fedtiny.models.param_spec import Shape
from fedtiny.runs.inputs import smallest_input

LOG = logging.getLogger("fedtiny.node")


def own_samples(
    path: Path, config: Config, shape: Shape, classes: tuple[str, ...], layout: Layout
) -> ImageSet:
    """What a device has in a file or folder, as the run needs it."""
    asked = config.data
    columns = Columns(asked.label_column, asked.device_column)
    found = load_own(path, classes, layout=asked.layout, columns=columns)
    if found.shape == shape:
        return found
    own, wanted = own_shape(found.shape), own_shape(shape)
    if not _are_resized(path, config, found.shape, shape, layout):
        raise DataError(f"the samples in {path} are {own}, but the run's are {wanted}")
    LOG.warning("the images in %s are %s; they are resized to the run's %s", path, own, wanted)
    return replace(found, images=resize(found.images, shape[1]))


def _are_resized(path: Path, config: Config, found: Shape, wanted: Shape, layout: Layout) -> bool:
    """Whether images of another size are resized: image files are, whose sizes often differ.

    Arrays are resized only as the server's are: up to the smallest size that the model takes.
    """
    channels, height, width = wanted
    if layout != "NCHW" or found[0] != channels or height != width:
        return False
    smallest = smallest_input(config)
    return path.suffix != ".npz" or (height == smallest and min(found[1:]) < smallest)
