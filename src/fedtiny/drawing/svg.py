"""Drawings as SVG: inside a page, or as a file that stands by itself."""

from collections.abc import Iterable
from html import escape

from fedtiny.drawing import palette
from fedtiny.drawing.canvas import MARGIN, Boxes, Canvas, Dot, Line, Point, Primitive, Text

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"


def inline(canvas: Canvas, title: str) -> str:
    """The drawing for a page that has the palette's rules, with its title for screen readers."""
    view = f"0 0 {_n(canvas.width)} {_n(canvas.height)}"
    return _svg(f'viewBox="{view}"', title, "".join(map(_shape, canvas.shapes)))


def standalone(canvas: Canvas, title: str) -> str:
    """The drawing as a file: with a ground, a size and its own rules."""
    width, height = canvas.width + 2 * MARGIN, canvas.height + 2 * MARGIN
    size = f'width="{_n(width)}" height="{_n(height)}"'
    view = f'viewBox="{-MARGIN} {-MARGIN} {_n(width)} {_n(height)}"'
    ground = Boxes(((-MARGIN, -MARGIN, width, height),), "paper")
    style = f"<style>\ntext {{ font-family: {FONT}; }}\n{palette.rules()}\n</style>\n"
    drawn = "\n".join(map(_shape, (ground, *canvas.shapes)))
    return _svg(f"{view} {size}", title, f"\n{style}{drawn}\n") + "\n"


def _svg(attributes: str, title: str, content: str) -> str:
    label = f'role="img" aria-label="{escape(title)}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {attributes} {label}>{content}</svg>'


def _shape(shape: Primitive) -> str:
    match shape:
        case Boxes(boxes, color, opacity):
            path = "".join(f"M{_n(x)} {_n(y)}h{_n(w)}v{_n(h)}h{_n(-w)}z" for x, y, w, h in boxes)
            faint = "" if opacity == 1 else f' opacity="{_n(opacity)}"'
            return f'<path d="{path}" class="f-{color}"{faint}/>'
        case Line(points, color, width, dashed):
            dashes = ' stroke-dasharray="5 4"' if dashed else ""
            return (
                f'<polyline points="{_points(points)}" fill="none" class="s-{color}" '
                f'stroke-width="{_n(width)}" stroke-linejoin="round" '
                f'stroke-linecap="round"{dashes}/>'
            )
        case Dot():
            return _dot(shape)
        case Text():
            return _text(shape)


def _dot(dot: Dot) -> str:
    look = f'class="f-{dot.color}"'
    if dot.hollow:
        look = f'class="f-paper s-{dot.color}" stroke-width="2"'
    tip = f"<title>{escape(dot.tip)}</title>" if dot.tip else ""
    if dot.form == "circle":
        place = f'cx="{_n(dot.x)}" cy="{_n(dot.y)}" r="{_n(dot.radius)}"'
        return f"<circle {place} {look}>{tip}</circle>"
    return f'<polygon points="{_points(dot.corners)}" {look}>{tip}</polygon>'


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
