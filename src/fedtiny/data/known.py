"""The named sets of the hub: where they are, and how they are normalised and augmented."""

from dataclasses import dataclass


def _over_255(*values: float) -> tuple[float, ...]:
    return tuple(value / 255 for value in values)


@dataclass(frozen=True)
class KnownSet:
    """A set of 32x32 colour images on the hub; ``config`` is the folder that holds it there."""

    description: str
    repository: str
    config: str
    n_classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    flips: bool = True
    crop_padding: int = 4


KNOWN = {
    "cifar10": KnownSet(
        "60,000 photographs of 10 kinds of animals and vehicles",
        repository="uoft-cs/cifar10",
        config="plain_text",
        n_classes=10,
        mean=_over_255(125.307, 122.950, 113.865),
        std=_over_255(62.993, 62.089, 66.705),
    ),
    "cifar100": KnownSet(
        "60,000 photographs of 100 kinds of things, with their fine labels",
        repository="uoft-cs/cifar100",
        config="cifar100",
        n_classes=100,
        mean=_over_255(129.304, 124.070, 112.434),
        std=_over_255(68.170, 65.392, 70.418),
    ),
    "cinic10": KnownSet(
        "180,000 photographs of CIFAR-10's kinds, most from ImageNet (validation left out)",
        repository="flwrlabs/cinic10",
        config="data",
        n_classes=10,
        mean=(0.47889522, 0.47227842, 0.43047404),
        std=(0.24205776, 0.23828046, 0.25874835),
    ),
    "svhn": KnownSet(
        "99,289 digits cropped from photographs of house numbers",
        repository="ufldl-stanford/svhn",
        config="cropped_digits",
        n_classes=10,
        mean=(0.4377, 0.4438, 0.4728),
        std=(0.1980, 0.2010, 0.1970),
        flips=False,
    ),
}
