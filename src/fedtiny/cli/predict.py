"""fedtiny predict: needs NumPy and Pillow, and no torch."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import tyro
from numpy.typing import NDArray
from rich.console import Console
from rich.markup import escape

from fedtiny.cli.main import fail
from fedtiny.errors import ExportError, FedTinyError
from fedtiny.export import numpy_model
from fedtiny.export.numpy_model import NumpyModel, read_image
from fedtiny.graph.arrays import Floats
from fedtiny.process import peak_resident_bytes
from fedtiny.runs import formatting


@dataclass(frozen=True)
class Arguments:
    """Classify images with a packed model, on a machine with NumPy and Pillow."""

    model: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(name="MODEL")]
    """A packed model, or a run folder; one without a packed model needs torch."""
    images: Annotated[tyro.conf.Positional[tuple[Path, ...]], tyro.conf.arg(name="IMAGE")]
    """Image files, of any size; they are brought to the model's."""
    top: int = 3
    """How many classes to show."""


def command(arguments: list[str]) -> int:
    """Parse and classify."""
    parsed = tyro.cli(Arguments, prog="fedtiny predict", args=arguments)
    if not parsed.images:
        raise ExportError("name at least one image: fedtiny predict MODEL image.png ...")
    if parsed.top < 1:
        raise ExportError(f"--top must be 1 or more, not {parsed.top}")
    model = numpy_model.load(parsed.model)
    model(np.zeros((1, *model.model.shape), dtype=np.uint8))
    console = Console(highlight=False, soft_wrap=True)
    unreadable = 0
    for path in parsed.images:
        try:
            image = read_image(path, model.model.shape)
        except FedTinyError as error:
            unreadable += 1
            fail(str(error))
        else:
            _show(path, image, model, parsed.top, console)
    console.print(f"[dim]resident memory {formatting.size(peak_resident_bytes())} at most[/dim]")
    return 1 if unreadable else 0


def _show(
    path: Path, image: NDArray[np.uint8], model: NumpyModel, top: int, console: Console
) -> None:
    started = time.perf_counter()
    (logits,) = model(image[np.newaxis])
    elapsed = 1000 * (time.perf_counter() - started)
    shares = shares_of(logits)
    best = np.argsort(-shares)[:top]
    best_classes = "  ".join(f"{escape(model.model.classes[i])} {shares[i]:.1%}" for i in best)
    console.print(f"{escape(str(path))}: [bold]{best_classes}[/bold]  [dim]{elapsed:.1f} ms[/dim]")


def shares_of(logits: Floats) -> Floats:
    """Softmax: how sure the model is of each class."""
    raised = np.exp(logits - logits.max())
    shares: Floats = raised / raised.sum()
    return shares
