"""Residual networks: ResNet18 with batch or group norm, and the ResNets of CIFAR."""

from collections.abc import Callable
from functools import partial
from typing import ClassVar

import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

Norm = Callable[[int], nn.Module]
GROUPS = 2  # of group norm, as in federated learning with it (Reddi et al., 2021)


def group_norm(channels: int) -> nn.Module:
    """Group norm of two groups, or of one where channels are odd."""
    return nn.GroupNorm(GROUPS if channels % GROUPS == 0 else 1, channels)


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions beside an identity, or a 1x1 shortcut where the shape changes."""

    def __init__(self, channels: int, width: int, stride: int, norm: Norm = nn.BatchNorm2d) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 3, stride, padding=1, bias=False)
        self.bn1 = norm(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = norm(width)
        self.shortcut = nn.Sequential()
        if stride != 1 or channels != width:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels, width, 1, stride, bias=False), norm(width)
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

    def __init__(
        self, channels: int, classes: int, width: int, norm: Norm = nn.BatchNorm2d
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 3, padding=1, bias=False)
        self.bn1 = norm(width)
        self.layer1 = _stage(width, width, 2, stride=1, norm=norm)
        self.layer2 = _stage(width, 2 * width, 2, stride=2, norm=norm)
        self.layer3 = _stage(2 * width, 4 * width, 2, stride=2, norm=norm)
        self.layer4 = _stage(4 * width, 8 * width, 2, stride=2, norm=norm)
        self.fc = nn.Linear(8 * width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(x.mean(dim=(2, 3)))  # type: ignore[no-any-return]


resnet18_gn = partial(ResNet18, norm=group_norm)


class CifarResNet(nn.Module):
    """Three stages of n residual blocks, widths w, 2w, 4w: 6n + 2 layers (He et al., 2016).

    Where the shape changes, the shortcut is a 1x1 convolution with batch norm (their option B).
    """

    pruning_blocks: ClassVar[tuple[tuple[str, ...], ...]] = (("layer1",), ("layer2",), ("layer3",))

    def __init__(self, channels: int, classes: int, width: int, blocks: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.layer1 = _stage(width, width, blocks, stride=1)
        self.layer2 = _stage(width, 2 * width, blocks, stride=2)
        self.layer3 = _stage(2 * width, 4 * width, blocks, stride=2)
        self.fc = nn.Linear(4 * width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        return self.fc(x.mean(dim=(2, 3)))  # type: ignore[no-any-return]


resnet8 = partial(CifarResNet, blocks=1)
resnet20 = partial(CifarResNet, blocks=3)
resnet56 = partial(CifarResNet, blocks=9)


def _stage(
    channels: int, width: int, blocks: int, *, stride: int, norm: Norm = nn.BatchNorm2d
) -> nn.Sequential:
    return nn.Sequential(
        ResidualBlock(channels, width, stride, norm),
        *(ResidualBlock(width, width, 1, norm) for _ in range(blocks - 1)),
    )
