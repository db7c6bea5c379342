"""The images of the data sets that are known by name, for costs without the data itself."""

from fedtiny.data.hub import KNOWN
from fedtiny.models.param_spec import Shape

IMAGES: dict[str, tuple[Shape, int]] = {
    "digits": ((1, 8, 8), 10),
    **{name: ((3, 32, 32), known.n_classes) for name, known in KNOWN.items()},
}
"""Shape (channels, height, width) and number of classes."""
