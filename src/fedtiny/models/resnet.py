"""ResNet18 for images of CIFAR size."""

from typing import ClassVar

import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn


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
    """Four stages of two residual blocks; widths w, 2w, 4w, 8w."""

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


def resnet18(channels: int, classes: int, width: int) -> nn.Module:
    """ResNet18 whose first stage has `width` channels (64 in the paper)."""
    return ResNet18(channels, classes, width)
