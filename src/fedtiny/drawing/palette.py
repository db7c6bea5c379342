"""Colors by role, for a light and for a dark page, and markers."""

from zlib import crc32

from fedtiny.drawing.canvas import FORMS

METHODS = {
    "FedTiny": ("#c8102e", "#ff6b81"),
    "FedAvg": ("#333333", "#d0d5db"),
    "FL-PQSU": ("#8c8c8c", "#9aa4b1"),
    "SNIP": ("#e69f00", "#f5b73d"),
    "SynFlow": ("#56b4e9", "#7cc8f5"),
    "PruneFL": ("#0072b2", "#5aa9e6"),
    "FedDST": ("#009e73", "#3ecf9f"),
    "LotteryFL": ("#9467bd", "#bd9bea"),
    "Small model": ("#a6761d", "#d3a44a"),
    "FedTiny-Flow": ("#d0108f", "#ff7ad9"),
    "GraSP": ("#6b7a00", "#b6c733"),
    "SET": ("#17868f", "#4fc3cf"),
    "SSFL": ("#cc79a7", "#e8a5c8"),
    "FedSGC": ("#2f3f9e", "#8c9bff"),
    "FedMef": ("#d55e00", "#ff9350"),
    "FedRTS": ("#4c9a2a", "#8fd16a"),
    "Fedfit": ("#5b2a86", "#a97be0"),
}
"""A method has the same color and marker in every figure; the color on light, and on dark."""
ROLES = {label: f"series{number}" for number, label in enumerate(METHODS)}
OTHERS = (
    *(
        ("#46085c", "#c5a3ff"),
        ("#21918c", "#5fd8c4"),
        ("#3a548c", "#86bcff"),
        ("#4ec36b", "#a6e87f"),
    ),
    *(
        ("#46307e", "#a9b4ff"),
        ("#26ad81", "#77e3a5"),
        ("#2c738e", "#6fcbe0"),
        ("#7ad151", "#e3e65c"),
    ),
)
"""Colors of series that are no shipped methods, in turn: none of them is a method's."""
COLORS = {
    "ink": ("#1a1f26", "#e8ebef"),
    "muted": ("#5a6472", "#a2acb9"),
    "grid": ("#e2e6eb", "#2e3641"),
    "paper": ("#ffffff", "#171c23"),
    "accent": ("#1f5fd0", "#74a7ff"),
    "second": ("#c2500a", "#ffa561"),
    "third": ("#0b7a6b", "#4fd1bd"),
    "dense": ("#a3acb8", "#667180"),
    "good": ("#0b7a6b", "#4fd1bd"),
    "bad": ("#c2500a", "#ffa561"),
    **{ROLES[label]: colors for label, colors in METHODS.items()},
    **{f"other{number}": colors for number, colors in enumerate(OTHERS)},
}


def series(label: str, number: int) -> str:
    """The role of a shipped method by its label; anything else is numbered.

    >>> series("FedTiny", 3), series("FedTiny (both)", 3), series("alpha 0.5", 3)
    ('series0', 'series0', 'other3')
    """
    return ROLES.get(_method(label)) or f"other{number % len(OTHERS)}"


def _method(label: str) -> str:
    """What of a label names a method."""
    return label.partition(" (")[0]


def method(label: str) -> str:
    """The role of a method by its label, the same in every figure whatever else is in it."""
    return series(label, crc32(label.encode()))


def form(label: str, number: int) -> str:
    """The marker of a method by its label; anything else is numbered."""
    known, name = list(METHODS), _method(label)
    return FORMS[(known.index(name) if name in METHODS else number) % len(FORMS)]


def rules() -> str:
    """The style rules of figures: each role as a fill and as a stroke, light and dark."""
    light, dark = (
        "\n".join(
            f".f-{role} {{ fill: {colors[ground]}; }} .s-{role} {{ stroke: {colors[ground]}; }}"
            for role, colors in COLORS.items()
        )
        for ground in (0, 1)
    )
    return f"{light}\n@media screen and (prefers-color-scheme: dark) {{\n{dark}\n}}"
