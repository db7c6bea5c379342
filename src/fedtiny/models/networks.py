"""The networks of the paper, and the small dense model that it compares tiny ones with."""

from typing import ClassVar

import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from fedtiny.errors import ModelError
from fedtiny.models.ns_conv import NSResNet18


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions beside an identity, or a 1x1 shortcut where the shape changes."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.shortcut = nn.Sequential()
        if stride != 1 or channels != width:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels, width, 1, stride, bias=False), nn.BatchNorm2d(width)
            )

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out)) + self.shortcut(x)
        return F.relu(out)


class ResNet18(nn.Module):
    """Four stages of two residual blocks; widths w, 2w, 4w, 8w, where w is 64 in the paper."""

    pruning_blocks: ClassVar[tuple[tuple[str, ...], ...]] = (
        ("layer1",),
        ("layer2",),
        ("layer3",),
        ("layer4.0",),
        ("layer4.1",),
    )

    def __init__(self, channels: int, classes: int, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.layer1 = _stage(width, width, stride=1)
        self.layer2 = _stage(width, 2 * width, stride=2)
        self.layer3 = _stage(2 * width, 4 * width, stride=2)
        self.layer4 = _stage(4 * width, 8 * width, stride=2)
        self.fc = nn.Linear(8 * width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(x.mean(dim=(2, 3)))  # type: ignore[no-any-return]


def _stage(channels: int, width: int, stride: int) -> nn.Sequential:
    return nn.Sequential(
        ResidualBlock(channels, width, stride), ResidualBlock(width, width, stride=1)
    )


# Multiples of the width; None is a 2x2 max-pool.
PLAN = (1, None, 2, None, 4, 4, None, 8, 8, None, 8, 8, None)


class VGG11(nn.Module):
    """Eight convolutions with batch norm, then a head."""

    def __init__(self, channels: int, width: int, head: nn.Module) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for multiple in PLAN:
            if multiple is None:
                layers.append(nn.MaxPool2d(2))
                continue
            out = multiple * width
            layers += [nn.Conv2d(channels, out, 3, padding=1), nn.BatchNorm2d(out), nn.ReLU()]
            channels = out
        self.features = nn.Sequential(*layers)
        self.head = head

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))  # type: ignore[no-any-return]


def vgg11(channels: int, classes: int, width: int) -> nn.Module:
    """With the ImageNet head: 7x7 pooling and three linear layers with dropout."""
    hidden = 64 * width
    head = nn.Sequential(
        nn.AdaptiveAvgPool2d(7),
        nn.Flatten(),
        nn.Linear(8 * width * 49, hidden),
        nn.ReLU(),
        nn.Dropout(),
        nn.Linear(hidden, hidden),
        nn.ReLU(),
        nn.Dropout(),
        nn.Linear(hidden, classes),
    )
    return VGG11(channels, width, head)


def vgg11_small(channels: int, classes: int, width: int) -> nn.Module:
    """With the small head: global average pooling and one linear layer."""
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8 * width, classes))
    return VGG11(channels, width, head)


def small(channels: int, classes: int, width: int) -> nn.Module:
    """Three 3x3 convolutions of w, 2w and 4w channels and a linear head."""
    return nn.Sequential(
        *_convolution(channels, width),
        nn.MaxPool2d(2),
        *_convolution(width, 2 * width),
        nn.MaxPool2d(2),
        *_convolution(2 * width, 4 * width),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4 * width, classes),
    )


def _convolution(channels: int, width: int) -> tuple[nn.Module, ...]:
    return (
        nn.Conv2d(channels, width, 3, padding=1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(),
    )


def parameters(channels: int, classes: int, width: int) -> int:
    """Number of parameters of the small model at a width."""
    convolutions = 9 * width * (channels + 2 * width + 8 * width)
    norms = 2 * (width + 2 * width + 4 * width)
    return convolutions + norms + (4 * width + 1) * classes


def width_for(budget: int, channels: int, classes: int) -> int:
    """The widest small model with at most this many parameters."""
    width, least = 1, parameters(channels, classes, width=1)
    if budget < least:
        raise ModelError(
            f"the small model has at least {least} parameters, more than the {budget} asked for"
        )
    while parameters(channels, classes, width + 1) <= budget:
        width += 1
    return width


BUILDERS = {
    "resnet18": ResNet18,
    "resnet18_ns": NSResNet18,
    "vgg11": vgg11,
    "vgg11_small": vgg11_small,
    "small": small,
}
