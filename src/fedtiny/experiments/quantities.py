"""What can be shown of a run: how it is called, worked out and written."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from fedtiny.runs import formatting

MB = 1e6

Numbers = Mapping[str, float]
"""Everything that is known of a finished run, by name."""


def scientific(value: float) -> str:
    """As the paper writes it.

    >>> scientific(8.331e13)
    '8.33E13'
    """
    return f"{value:.2E}".replace("E+", "E")


@dataclass(frozen=True)
class Quantity:
    """A number of a run, and of the paper."""

    label: str
    of: Callable[[Numbers], float]
    show: Callable[[float], str]
    unit: str = ""
    quoted: Callable[[str], str] | None = None
    """How the paper's own digits are written; default: like ours."""
    reference: str | None = None
    """A quantity that a figure draws beside this one, as a line."""

    def text(self, printed: float | str) -> str:
        """A value of the paper's."""
        if isinstance(printed, str) and self.quoted:
            return self.quoted(printed)
        return self.show(float(printed))


def _megabytes(name: str) -> Callable[[Numbers], float]:
    return lambda numbers: numbers[name] / MB


def _plain(name: str) -> Callable[[Numbers], float]:
    return lambda numbers: numbers[name]


def _decimals(value: float) -> str:
    return f"{value:.2f}" if value < 1000 else f"{value:,.0f}"


def _size(value: float) -> str:
    return formatting.size(value) if value else ""


QUANTITIES = {
    "accuracy": Quantity("accuracy", _plain("accuracy"), "{:.4f}".format),
    "flops_ratio": Quantity(
        "max FLOPs", _plain("flops_ratio"), "{:.3f}x".format, quoted="{}x".format
    ),
    "memory_mb": Quantity("memory, MB", _megabytes("memory_paper"), _decimals, "MB", quoted=str),
    "selection_share": Quantity(
        "selection / dense model",
        lambda numbers: numbers["selection_bytes_paper"] / numbers["dense_model_bytes"],
        "{:.0%}".format,
    ),
    "selection_mb_paper": Quantity(
        "selection, MB (paper's way)",
        _megabytes("selection_bytes_paper"),
        _decimals,
        "MB",
        reference="dense_mb",
    ),
    "selection_mb": Quantity(
        "selection, MB (fedtiny)", _megabytes("selection_bytes_down"), _decimals, "MB"
    ),
    "dense_mb": Quantity("dense model, MB", _megabytes("dense_model_bytes"), _decimals, "MB"),
    "selection_flops": Quantity(
        "FLOPs of selection", _plain("selection_flops"), scientific, "FLOPs", quoted=str
    ),
    "flops_training": Quantity(
        "FLOPs of a training round", _plain("flops_training"), scientific, "FLOPs", quoted=str
    ),
    "flops": Quantity("FLOPs of a round", _plain("flops_round"), scientific, "FLOPs"),
    "flops_share": Quantity("FLOPs", _plain("flops_ratio"), "{:.3f}x".format),
    "memory": Quantity("memory", _plain("memory_paper"), formatting.size),
    "bytes_round": Quantity("bytes", _plain("bytes_round"), formatting.size),
    "selection_bytes": Quantity("select", _plain("selection_bytes"), _size),
}
