"""How settings and their values are called in tables and figures."""

from typing import Any

AXES = {"fleet.alpha": "alpha", "selection.pool_size": "pool size", "data": "data set"}
NAMES = {
    "fedavg": "FedAvg",
    "fl_pqsu": "FL-PQSU",
    "snip": "SNIP",
    "synflow": "SynFlow",
    "grasp": "GraSP",
    "prunefl": "PruneFL",
    "feddst": "FedDST",
    "lotteryfl": "LotteryFL",
    "small_model": "Small model",
    "fedtiny": "FedTiny",
    "resnet18": "ResNet18",
    "vgg11": "VGG11",
    "vgg11_small": "VGG11 small",
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "cinic10": "CINIC-10",
    "svhn": "SVHN",
}


def axis(name: str) -> str:
    """The heading of an axis."""
    return AXES.get(name, name)


def value(value: Any) -> str:
    """A value on an axis.

    >>> value("fl_pqsu"), value(0.005), value(100)
    ('FL-PQSU', '0.005', '100')
    """
    if isinstance(value, float | int):
        return f"{value:g}"
    return NAMES.get(value, str(value))


def with_axis(name: str, label: str) -> str:
    """A label that says enough by itself: a bare number gets the name of its axis.

    >>> with_axis("fleet.alpha", "0.5"), with_axis("method", "SNIP")
    ('alpha 0.5', 'SNIP')
    """
    return f"{axis(name)} {label}" if label[:1].isdigit() else label
