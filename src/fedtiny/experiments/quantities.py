"""How settings are called and what can be shown of a run: names, labels, numbers and their text."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fedtiny.runs import formatting

AXES = {"fleet.alpha": "alpha", "selection.pool_size": "pool size", "data": "data set"}
NAMES = {
    "fedavg": "FedAvg",
    "fl_pqsu": "FL-PQSU",
    "snip": "SNIP",
    "synflow": "SynFlow",
    "grasp": "GraSP",
    "prunefl": "PruneFL",
    "feddst": "FedDST",
    "fedsgc": "FedSGC",
    "set": "SET",
    "fedrts": "FedRTS",
    "fedfit": "Fedfit",
    "fedmef": "FedMef",
    "ssfl": "SSFL",
    "lotteryfl": "LotteryFL",
    "small_model": "Small model",
    "fedtiny": "FedTiny",
    "fedtiny_flow": "FedTiny-Flow",
    "resnet18": "ResNet18",
    "vgg11": "VGG11",
    "vgg11_small": "VGG11 small",
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "cinic10": "CINIC-10",
    "svhn": "SVHN",
}


def axis_label(name: str) -> str:
    """The heading of an axis."""
    return AXES.get(name, name)


def label(value: Any) -> str:
    """A value on an axis.

    >>> label("fl_pqsu"), label(0.005), label(100)
    ('FL-PQSU', '0.005', '100')
    """
    if isinstance(value, float | int):
        return f"{value:g}"
    return NAMES.get(value, str(value))


def with_axis(name: str, text: str) -> str:
    """A label that says enough by itself: a bare number gets the name of its axis.

    >>> with_axis("fleet.alpha", "0.5"), with_axis("method", "SNIP")
    ('alpha 0.5', 'SNIP')
    """
    return f"{axis_label(name)} {text}" if text[:1].isdigit() else text


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
    name: str
    show: Callable[[float], str]
    unit: str = ""
    share_of: str | None = None
    """The number that it is a share of."""
    times: str | None = None
    """The number that it is multiplied with: a share, for one of the whole."""
    quoted: Callable[[str], str] | None = None
    """How the paper's own digits are written; default: like ours."""
    reference: str | None = None
    """A quantity that a figure draws beside this one, as a line."""

    def of(self, numbers: Numbers) -> float:
        """The quantity of a run."""
        unit = numbers[self.share_of] if self.share_of else 1e6 if self.unit == "MB" else 1
        return numbers[self.name] / unit * (numbers[self.times] if self.times else 1)

    def text(self, printed: float | str) -> str:
        """A value of the paper's."""
        if isinstance(printed, str) and self.quoted:
            return self.quoted(printed)
        return self.show(float(printed))


def _decimals(value: float) -> str:
    return f"{value:.2f}" if value < 1000 else f"{value:,.0f}"


def _if_any(value: float) -> str:
    return f"{value:.2g}" if 0 < value < 10 else f"{value:,.0f}" if value else ""


_ratio = "{:.3f}x".format
_fine_ratio = "{:.2%}".format
QUANTITIES = {
    "accuracy": Quantity("accuracy", "accuracy", "{:.4f}".format),
    "flops_ratio": Quantity("max FLOPs", "flops_ratio", _ratio, quoted="{}x".format),
    "memory_mb": Quantity("memory, MB", "memory_paper", _decimals, "MB", quoted=str),
    "selection_share": Quantity(
        "selection / dense model",
        "selection_bytes_paper",
        "{:.0%}".format,
        share_of="dense_model_bytes",
    ),
    "selection_mb_paper": Quantity(
        "selection, MB (paper's way)",
        "selection_bytes_paper",
        _decimals,
        "MB",
        reference="dense_mb",
    ),
    "selection_mb": Quantity("selection, MB (fedtiny)", "selection_bytes_down", _decimals, "MB"),
    "dense_mb": Quantity("dense model, MB", "dense_model_bytes", _decimals, "MB"),
    "selection_flops": Quantity(
        "FLOPs of selection", "selection_flops", scientific, "FLOPs", quoted=str
    ),
    "flops_training": Quantity(
        "FLOPs of a training round", "flops_training", scientific, "FLOPs", quoted=str
    ),
    "flops": Quantity("FLOPs of a round", "flops_round", scientific, "FLOPs"),
    "flops_plain": Quantity(
        "FLOPs", "flops_training", _fine_ratio, share_of="flops_round", times="flops_ratio"
    ),
    "flops_share": Quantity("FLOPs", "flops_ratio", _ratio),
    "memory": Quantity("memory", "memory_paper", formatting.size),
    "bytes_round": Quantity("bytes", "bytes_round", formatting.size),
    "selection_bytes": Quantity(
        "select", "selection_bytes", lambda value: formatting.size(value) if value else ""
    ),
    "selection_rounds": Quantity(
        "select rounds", "selection_flops", _if_any, share_of="flops_training"
    ),
    "server_passes": Quantity("server passes", "server_passes", _if_any),
    "pretraining_passes": Quantity("pretraining passes", "pretraining_passes", _if_any),
}
