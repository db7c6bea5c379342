"""Drawings as SVG: inside a page, or as a file that stands by itself."""

from collections.abc import Iterable
from html import escape

from fedtiny.drawing import palette
from fedtiny.drawing.canvas import MARGIN, Box, Boxes, Canvas, Dot, Line, Point, Primitive, Words

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"


def inline(canvas: Canvas, title: str) -> str:
    """The drawing for a page that has the palette's rules, with its title for screen readers."""
    view = f"0 0 {_n(canvas.width)} {_n(canvas.height)}"
    return _svg(f'viewBox="{view}"', title, "".join(_shape(shape) for shape in canvas.shapes))


def standalone(canvas: Canvas, title: str) -> str:
    """The drawing as a file: with a ground, a size and its own rules."""
    width, height = canvas.width + 2 * MARGIN, canvas.height + 2 * MARGIN
    size = f'width="{_n(width)}" height="{_n(height)}"'
    view = f'viewBox="{-MARGIN} {-MARGIN} {_n(width)} {_n(height)}"'
    ground = Box(-MARGIN, -MARGIN, width, height, "paper")
    style = f"<style>\ntext {{ font-family: {FONT}; }}\n{palette.rules()}\n</style>\n"
    drawn = "\n".join(_shape(shape) for shape in (ground, *canvas.shapes))
    return _svg(f"{view} {size}", title, f"\n{style}{drawn}\n") + "\n"


def _svg(attributes: str, title: str, content: str) -> str:
    label = f'role="img" aria-label="{escape(title)}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {attributes} {label}>{content}</svg>'


def _shape(shape: Primitive) -> str:
    match shape:
        case Box(x, y, width, height):
            return (
                f'<rect x="{_n(x)}" y="{_n(y)}" width="{_n(width)}" height="{_n(height)}" '
                f'class="f-{shape.color}"{_opacity(shape.opacity)}/>'
            )
        case Boxes(boxes):
            path = "".join(f"M{_n(x)} {_n(y)}h{_n(w)}v{_n(h)}h{_n(-w)}z" for x, y, w, h in boxes)
            return f'<path d="{path}" class="f-{shape.color}"{_opacity(shape.opacity)}/>'
        case Line():
            return _line(shape)
        case Dot():
            return _dot(shape)
        case Words():
            return _words(shape)


def _line(line: Line) -> str:
    dashes = ' stroke-dasharray="5 4"' if line.dashed else ""
    return (
        f'<polyline points="{_points(line.points)}" fill="none" class="s-{line.color}" '
        f'stroke-width="{_n(line.width)}" stroke-linejoin="round" stroke-linecap="round"{dashes}/>'
    )


def _dot(dot: Dot) -> str:
    fill = f"f-paper s-{dot.color}" if dot.hollow else f"f-{dot.color}"
    stroke = ' stroke-width="2"' if dot.hollow else ""
    tip = f"<title>{escape(dot.tip)}</title>" if dot.tip else ""
    if dot.form == "circle":
        place = f'cx="{_n(dot.x)}" cy="{_n(dot.y)}" r="{_n(dot.radius)}"'
        return f'<circle {place} class="{fill}"{stroke}>{tip}</circle>'
    points = _points(dot.corners)
    return f'<polygon points="{points}" class="{fill}"{stroke}>{tip}</polygon>'


def _points(points: Iterable[Point]) -> str:
    return " ".join(f"{_n(x)},{_n(y)}" for x, y in points)


def _words(words: Words) -> str:
    anchor = "" if words.anchor == "start" else f' text-anchor="{words.anchor}"'
    weight = ' font-weight="600"' if words.bold else ""
    turn = f' transform="rotate(-90 {_n(words.x)} {_n(words.y)})"' if words.turned else ""
    return (
        f'<text x="{_n(words.x)}" y="{_n(words.y)}" font-size="{_n(words.size)}" '
        f'class="f-{words.color}"{anchor}{weight}{turn}>{escape(words.text)}</text>'
    )


def _opacity(opacity: float) -> str:
    return "" if opacity == 1 else f' opacity="{_n(opacity)}"'


def _n(number: float) -> str:
    """A length in as few characters as do.

    >>> _n(12.0), _n(0.5), _n(-3.14159)
    ('12', '.5', '-3.14')
    """
    text = f"{number:.2f}".rstrip("0").rstrip(".")
    return text.replace("0.", ".", 1) if text.startswith(("0.", "-0.")) else text
