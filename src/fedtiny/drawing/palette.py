"""Colors by role, for a light and for a dark page."""

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
}
"""A method has the same color in every figure: on light, and on dark."""
ROLES = {label: f"series{number}" for number, label in enumerate(METHODS)}
OTHERS = ("PruneFL", "SNIP", "LotteryFL", "FedTiny", "FedDST", "SynFlow", "Small model", "FL-PQSU")
"""Whose colors other series take, in turn."""
LIGHT |= {ROLES[label]: light for label, (light, _) in METHODS.items()}
DARK |= {ROLES[label]: dark for label, (_, dark) in METHODS.items()}


def series(label: str, number: int) -> str:
    """The role of a method by its label; anything else is numbered."""
    return ROLES.get(label) or ROLES[OTHERS[number % len(OTHERS)]]


def light(role: str) -> str:
    """A role's color on white."""
    return LIGHT[role]


def rules() -> str:
    """The style rules of figures: each role as a fill and as a stroke, light and dark."""
    return f"{_rules(LIGHT)}\n@media (prefers-color-scheme: dark) {{\n{_rules(DARK)}\n}}"


def _rules(colors: dict[str, str]) -> str:
    return "\n".join(
        f".f-{role} {{ fill: {color}; }} .s-{role} {{ stroke: {color}; }}"
        for role, color in colors.items()
    )
