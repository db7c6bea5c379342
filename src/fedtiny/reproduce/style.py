"""How figures look: fonts, colours and markers."""

from typing import Any

COLOURS = {
    "FedTiny": "#c8102e",
    "FedAvg": "#333333",
    "FL-PQSU": "#8c8c8c",
    "SNIP": "#e69f00",
    "SynFlow": "#56b4e9",
    "PruneFL": "#0072b2",
    "FedDST": "#009e73",
    "LotteryFL": "#9467bd",
    "Small model": "#a6761d",
}
OTHERS = ("#0072b2", "#e69f00", "#9467bd", "#c8102e", "#009e73", "#56b4e9", "#a6761d", "#8c8c8c")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
GREY, GREEN = "#777777", "#2e8b57"
RC: dict[str, Any] = {
    "font.family": "sans-serif",
    "font.size": 11,
    "axes.titlesize": 12,
    "axes.labelsize": 11,
    "xtick.labelsize": 9.5,
    "ytick.labelsize": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": "#e3e3e3",
    "grid.linewidth": 0.8,
    "legend.frameon": False,
    "legend.fontsize": 10,
    "lines.linewidth": 1.8,
    "lines.markersize": 6,
    "savefig.dpi": 160,
    "svg.hashsalt": "fedtiny",
}


def colour(label: str, number: int) -> str:
    """A method has the same colour in every figure; anything else is numbered."""
    return COLOURS.get(label, OTHERS[number % len(OTHERS)])


def marker(number: int) -> str:
    """A marker to tell lines apart without colour."""
    return MARKERS[number % len(MARKERS)]
