"""The images that calibrate int8 activations, and what quantizing costs in accuracy."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedtiny import config as configs
from fedtiny.data import DataSet, ImageSet, load_own
from fedtiny.errors import ExportError
from fedtiny.export.integer_model import IntegerModel
from fedtiny.export.network import TinyModel
from fedtiny.export.numpy_model import NumpyModel
from fedtiny.export.quantize import quantize
from fedtiny.paths import user_path
from fedtiny.runs import reading
from fedtiny.runs.folder import RunFolder
from fedtiny.runs.inputs import fitting, load_images
from fedtiny.runs.split import checked, load_split

MAX_MEASURED = 2000  # images that accuracy is measured on


@dataclass(frozen=True, eq=False)
class Samples:
    """What calibrates a model, and what its accuracy is measured on."""

    calibrating: ImageSet
    measured: ImageSet
    told: str
    """What the measured ones are, such as test images."""


def samples(
    source: Path, calibrate: Path | None, model: TinyModel, data: DataSet | None = None
) -> Samples:
    """Those of a run: its public set and its test set; or images that are given, for both."""
    chosen = None
    if calibrate is not None:
        chosen = load_own(user_path(calibrate, "--calibrate"), model.classes)
    if source.is_file():
        if chosen is None:
            raise ExportError(
                "a packed model holds no images to calibrate int8 activations on; "
                "give some with --calibrate FILE.npz or a folder of images by class"
            )
        return Samples(chosen, chosen, "calibration images")
    folder = RunFolder.open(source)
    config = configs.resolve(reading.config(folder))
    images = load_images(config, data)
    split, data = checked(load_split(folder), images), fitting(images, config)
    public = data.train.subset(split.public)
    return Samples(public if chosen is None else chosen, data.test, "test images")


def quantized(model: TinyModel, found: Samples) -> tuple[TinyModel, str]:
    """The model with int8 activations, its card with the accuracy of both, and a line on them."""
    made = quantize(model, found.calibrating.images)
    count = min(len(found.measured), MAX_MEASURED)
    chosen = np.linspace(0, len(found.measured) - 1, count).astype(np.int64)
    images, labels = found.measured.images[chosen], found.measured.labels[chosen]
    before, after = (
        float((run(images).argmax(axis=1) == labels).mean())
        for run in (NumpyModel(model), IntegerModel(made))
    )
    card: dict[str, Any] = {
        **model.card,
        "accuracy": after,
        "float_accuracy": before,
        "run_accuracy": model.card.get("accuracy"),
        "accuracy_measured_on": f"{count} {found.told}",
        "activations": "int8",
    }
    remark = (
        f"accuracy {before:.4f} with float32 activations, {after:.4f} with int8, "
        f"on {count} {found.told}"
    )
    return replace(made, card=card), remark
