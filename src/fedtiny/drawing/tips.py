"""What a drawing tells of the point or the area that is pointed at or tapped, without a script.

Tips are drawn last, above all shapes: a place that is not seen, and a label that its hover or its
focus shows. They are no stops of the tab key: what they tell stands in tables too.
"""

from html import escape

from fedtiny.drawing.canvas import SMALL, Area, Canvas, Dot, shortened, text_width
from fedtiny.drawing.palette import COLORS

REACH = 9.0  # pixels around a point that show its tip
LINE, MARGIN = 15.0, 6.0
LIGHT, DARK = zip(COLORS["ink"], COLORS["paper"], strict=True)


def _colors(box: str, text: str) -> str:
    return f".tell rect {{ fill: {box}; rx: 4px; }} .tell text {{ fill: {text}; }}"


RULES = "\n".join(
    (
        ".tip { outline: none; } .hit { fill: transparent; }",
        f".tell {{ visibility: hidden; pointer-events: none; font-size: {SMALL:g}px; }}",
        ".tip:hover .hit { fill: #808080; fill-opacity: .16; }",
        ".tip:hover .tell { visibility: visible; }",
        "@media (hover: none) { .tip:focus .tell { visibility: visible; } }",
        "@media print { .tell { visibility: hidden !important; } }",
        _colors(*LIGHT),
        f"@media screen and (prefers-color-scheme: dark) {{ {_colors(*DARK)} }}",
    )
)


def tips(canvas: Canvas) -> str:
    """All tips of a drawing, as SVG."""
    return "".join(_tip(canvas, s) for s in canvas.shapes if isinstance(s, Dot | Area) and s.tip)


def _tip(canvas: Canvas, shape: Dot | Area) -> str:
    if isinstance(shape, Dot):
        place = f'<circle class="hit" cx="{shape.x:.1f}" cy="{shape.y:.1f}" r="{REACH:g}"/>'
        middle, top, bottom = shape.x, shape.y - REACH, shape.y + REACH
    else:
        place = _box(shape.x, shape.y, shape.width, shape.height, 'class="hit" ')
        middle, top, bottom = shape.x + shape.width / 2, shape.y, shape.y + shape.height
    lines = [shortened(line, canvas.width - 2 * MARGIN) for line in shape.tip.split("\n")]
    label = _label(canvas, lines, middle, top, bottom)
    return f'<g class="tip" tabindex="-1">{place}<g class="tell">{label}</g></g>'


def _box(x: float, y: float, width: float, height: float, more: str = "") -> str:
    return f'<rect {more}x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"/>'


def _label(canvas: Canvas, lines: list[str], middle: float, top: float, bottom: float) -> str:
    """Lines of text in a box: above if there is room, else below, else over the place itself."""
    width = max(text_width(line, SMALL) for line in lines) + 2 * MARGIN
    height = LINE * len(lines) + MARGIN
    x = min(max(0.0, middle - width / 2), max(0.0, canvas.width - width))
    y = top - height - 2
    if y < 0:
        y = bottom + 2 if bottom + 2 + height <= canvas.height else 0.0
    texts = (
        f'<text x="{x + MARGIN:.1f}" y="{y + LINE * number - 1:.1f}">{escape(line)}</text>'
        for number, line in enumerate(lines, start=1)
    )
    return _box(x, y, width, height) + "".join(texts)
