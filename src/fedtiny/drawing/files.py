"""A drawing as files: SVG always, PNG with the extra `plot`."""

from pathlib import Path

from fedtiny.drawing import svg
from fedtiny.drawing.canvas import Canvas
from fedtiny.drawing.png import png
from fedtiny.errors import FedTinyError, RunError
from fedtiny.files import write_atomically


def write(canvas: Canvas, title: str, stem: Path) -> tuple[list[Path], str]:
    """Write a drawing in both forms; returns the paths, and the reason if there is no PNG."""
    vector, pixels = (stem.with_name(f"{stem.name}.{form}") for form in ("svg", "png"))
    write_atomically(vector, svg.standalone(canvas, title).encode())
    try:
        write_atomically(pixels, png(canvas))
    except RunError:
        raise
    except FedTinyError as error:
        return [vector], str(error)
    return [vector, pixels], ""
