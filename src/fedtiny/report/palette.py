"""Colours by role, for a light and for a dark page."""

from fedtiny.reproduce import style

LIGHT = {
    "ink": "#1a1f26",
    "muted": "#5a6472",
    "grid": "#e2e6eb",
    "paper": "#ffffff",
    "accent": "#1f5fd0",
    "second": "#c2500a",
    "third": "#0b7a6b",
    "dense": "#a3acb8",
    "good": "#0b7a6b",
    "bad": "#c2500a",
}
DARK = {
    "ink": "#e8ebef",
    "muted": "#a2acb9",
    "grid": "#2e3641",
    "paper": "#171c23",
    "accent": "#74a7ff",
    "second": "#ffa561",
    "third": "#4fd1bd",
    "dense": "#667180",
    "good": "#4fd1bd",
    "bad": "#ffa561",
}
SERIES = {f"series{number}": colour for number, colour in enumerate(style.COLOURS.values())}
DARK_SERIES = dict(
    zip(
        SERIES,
        (
            *("#ff6b81", "#d0d5db", "#9aa4b1", "#f5b73d", "#7cc8f5", "#5aa9e6", "#3ecf9f"),
            *("#bd9bea", "#d3a44a"),
        ),
        strict=True,
    )
)
METHODS = {label: f"series{number}" for number, label in enumerate(style.COLOURS)}


def series(label: str, number: int) -> str:
    """A method has the same colour in every figure; anything else is numbered."""
    return METHODS.get(label, f"series{number % len(SERIES)}")


def light(role: str) -> str:
    """A role's colour on white."""
    return (LIGHT | SERIES)[role]


def rules() -> str:
    """The style rules of figures: each role as a fill and as a stroke, light and dark."""
    dark = _rules(DARK | DARK_SERIES)
    return f"{_rules(LIGHT | SERIES)}\n@media (prefers-color-scheme: dark) {{\n{dark}\n}}"


def _rules(colours: dict[str, str]) -> str:
    return "\n".join(
        f".f-{role} {{ fill: {colour}; }} .s-{role} {{ stroke: {colour}; }}"
        for role, colour in colours.items()
    )
