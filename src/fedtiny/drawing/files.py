"""A drawing as files: SVG always, PNG by matplotlib with the extra `plot`."""

import io
from collections.abc import Iterable
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedtiny.drawing import palette
from fedtiny.drawing.canvas import MARGIN, Area, Boxes, Canvas, Dot, Line, Point, Primitive, Text
from fedtiny.drawing.tips import RULES, tips
from fedtiny.errors import FedTinyError, RunError
from fedtiny.extras import require
from fedtiny.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"
PIXELS_PER_INCH = 100
SCALE = 2  # pixels of the file for a pixel of the drawing
POINTS = 72 / PIXELS_PER_INCH
ALIGN = {"start": "left", "middle": "center", "end": "right"}


def write(canvas: Canvas, title: str, stem: Path) -> tuple[list[Path], str]:
    """Write a drawing in both forms; returns the paths, and the reason if there is no PNG."""
    vector, pixels = (stem.with_name(f"{stem.name}.{form}") for form in ("svg", "png"))
    write_atomically(vector, standalone(canvas, title).encode())
    try:
        write_atomically(pixels, png(canvas))
    except RunError:
        raise
    except FedTinyError as error:
        return [vector], str(error)
    return [vector, pixels], ""


def inline(canvas: Canvas, title: str) -> str:
    """The drawing for a page that has the rules of figures, with its title for screen readers."""
    view = f"0 0 {_n(canvas.width)} {_n(canvas.height)}"
    drawn = "".join(map(_shape, canvas.shapes))
    return _svg(f'viewBox="{view}"', title, drawn + tips(canvas))


def rules() -> str:
    """The style rules of figures: colors on light and on dark, and tips."""
    return f"{palette.rules()}\n{RULES}"


def standalone(canvas: Canvas, title: str) -> str:
    """The drawing as a file: with a ground, a size and its own rules."""
    width, height = canvas.width + 2 * MARGIN, canvas.height + 2 * MARGIN
    size = f'width="{_n(width)}" height="{_n(height)}"'
    view = f'viewBox="{-MARGIN} {-MARGIN} {_n(width)} {_n(height)}"'
    ground = Boxes(((-MARGIN, -MARGIN, width, height),), "paper")
    style = f"<style>\ntext {{ font-family: {FONT}; }}\n{rules()}\n</style>\n"
    drawn = "\n".join(map(_shape, (ground, *canvas.shapes)))
    return _svg(f"{view} {size}", title, f"\n{style}{drawn}\n{tips(canvas)}\n") + "\n"


def _svg(attributes: str, title: str, content: str) -> str:
    label = f'role="img" aria-label="{escape(title)}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {attributes} {label}>{content}</svg>'


def _shape(shape: Primitive) -> str:
    match shape:
        case Boxes(boxes, color, opacity):
            path = "".join(f"M{_n(x)} {_n(y)}h{_n(w)}v{_n(h)}h{_n(-w)}z" for x, y, w, h in boxes)
            return f'<path d="{path}" class="f-{color}"{_faint(opacity)}/>'
        case Line(points, color, width, dashed, opacity):
            dashes = ' stroke-dasharray="5 4"' if dashed else ""
            return (
                f'<polyline points="{_points(points)}" fill="none" class="s-{color}" '
                f'stroke-width="{_n(width)}" stroke-linejoin="round" '
                f'stroke-linecap="round"{dashes}{_faint(opacity)}/>'
            )
        case Dot():
            return _dot(shape)
        case Text():
            return _text(shape)
        case Area():
            return ""  # is drawn with the tips


def _faint(opacity: float) -> str:
    return "" if opacity == 1 else f' opacity="{_n(opacity)}"'


def _dot(dot: Dot) -> str:
    look = f'class="f-{dot.color}"'
    if dot.hollow:
        look = f'class="f-paper s-{dot.color}" stroke-width="2"'
    look += _faint(dot.opacity)
    if dot.form == "circle":
        place = f'cx="{_n(dot.x)}" cy="{_n(dot.y)}" r="{_n(dot.radius)}"'
        return f"<circle {place} {look}/>"
    return f'<polygon points="{_points(dot.corners)}" {look}/>'


def _text(text: Text) -> str:
    anchor = "" if text.anchor == "start" else f' text-anchor="{text.anchor}"'
    weight = ' font-weight="600"' if text.bold else ""
    turn = f' transform="rotate(-90 {_n(text.x)} {_n(text.y)})"' if text.turned else ""
    return (
        f'<text x="{_n(text.x)}" y="{_n(text.y)}" font-size="{_n(text.size)}" '
        f'class="f-{text.color}"{anchor}{weight}{turn}>{escape(text.text)}</text>'
    )


def _points(points: Iterable[Point]) -> str:
    return " ".join(f"{_n(x)},{_n(y)}" for x, y in points)


def _n(number: float) -> str:
    """A length in as few characters as do.

    >>> _n(12.0), _n(0.5), _n(-3.14159)
    ('12', '.5', '-3.14')
    """
    text = f"{number:.2f}".rstrip("0").rstrip(".")
    return text.replace("0.", ".", 1) if text.startswith(("0.", "-0.")) else text


def png(canvas: Canvas) -> bytes:
    """The drawing on white."""
    figures = require("matplotlib.figure", extra="plot")
    agg = require("matplotlib.backends.backend_agg", extra="plot")
    width, height = canvas.width + 2 * MARGIN, canvas.height + 2 * MARGIN
    inches = (width / PIXELS_PER_INCH, height / PIXELS_PER_INCH)
    figure = figures.Figure(figsize=inches, dpi=PIXELS_PER_INCH * SCALE, facecolor="white")
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(-MARGIN, width - MARGIN), ylim=(height - MARGIN, -MARGIN))
    axes.axis("off")
    for order, shape in enumerate(canvas.shapes):
        if not isinstance(shape, Area):
            on_white, _ = palette.COLORS[shape.color]
            _draw(axes, shape, on_white, order)
    out = io.BytesIO()
    agg.FigureCanvasAgg(figure).print_png(out, metadata={"Software": None})
    return out.getvalue()


def _draw(axes: "Axes", shape: Primitive, color: str, order: int) -> None:
    look: dict[str, Any]
    polygons = require("matplotlib.collections", extra="plot").PolyCollection
    match shape:
        case Boxes(boxes, _, opacity):
            corners = [((x, y), (x + w, y), (x + w, y + h), (x, y + h)) for x, y, w, h in boxes]
            axes.add_collection(polygons(corners, lw=0, fc=color, alpha=opacity, zorder=order))
        case Line(points, _, width, dashed, opacity):
            xs, ys = zip(*points, strict=True)
            look = {"color": color, "lw": width * POINTS, "alpha": opacity, "zorder": order}
            axes.plot(xs, ys, "--" if dashed else "-", **look)
        case Dot(x, y, radius, _, hollow):
            face, edge = ("white", 2 * POINTS) if hollow else (color, 0)
            look = {"alpha": shape.opacity, "zorder": order}
            if shape.form == "circle":
                look |= {"ms": 2 * radius * POINTS, "mfc": face, "mec": color, "mew": edge}
                axes.plot(x, y, "o", **look)
            else:
                look |= {"fc": face, "ec": color, "lw": edge}
                axes.add_collection(polygons([shape.corners], **look))
        case Text():
            _write(axes, shape, color, order)


def _write(axes: "Axes", text: Text, color: str, order: int) -> None:
    """Text as it stands: a dollar sign starts no formula."""
    axes.text(
        text.x,
        text.y,
        text.text,
        color=color,
        fontsize=text.size * POINTS,
        ha=ALIGN[text.anchor],
        va="baseline",
        weight="bold" if text.bold else "normal",
        rotation=90 if text.turned else 0,
        rotation_mode="anchor",
        parse_math=False,
        zorder=order,
    )
