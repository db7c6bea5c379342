"""A drawing that a page or a notebook shows."""

from dataclasses import dataclass
from pathlib import Path

from fedtiny.drawing import files
from fedtiny.drawing.canvas import Canvas
from fedtiny.errors import ConfigError
from fedtiny.files import make_folder, write_atomically


@dataclass(frozen=True, repr=False)
class Figure:
    """A drawing with its name (of the files), its title and what it says; notebooks show it.

    Example:
        >>> Figure("empty", "Nothing", "Nothing is drawn.", Canvas(20, 10)).save("it.svg").name
        'it.svg'
    """

    name: str
    """The name of its files, as in `accuracy`."""
    title: str
    """What it shows, in a few words."""
    caption: str
    """What it says, in sentences."""
    canvas: Canvas
    """What is drawn."""

    def __repr__(self) -> str:
        return f"<Figure {self.name!r}: {self.title}>"

    def _repr_svg_(self) -> str:
        """What a notebook shows."""
        return files.standalone(self.canvas, self.title)

    def save(self, path: Path | str) -> Path:
        """Write it to a file.

        Args:
            path: Where to; its ending says the format: .svg, or .png with the extra `plot`.

        Returns:
            The file.
        """
        place = Path(path)
        if place.suffix not in (".svg", ".png"):
            raise ConfigError(f"a figure is written as .svg or .png, not as {place.name!r}")
        content = self._repr_svg_().encode() if place.suffix == ".svg" else files.png(self.canvas)
        make_folder(place.parent)
        write_atomically(place, content)
        return place
