"""Networks without shortcuts: for keywords (DS-CNN), sensors, tables; SqueezeNet and LeNet-5."""

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

Shape = tuple[int, ...]


def ds_cnn(channels: int, classes: int, width: int) -> nn.Module:
    """Depthwise separable convolutions for spectrograms, as in MLPerf Tiny, without dropout."""
    stem = nn.Conv2d(channels, width, (10, 4), stride=2, padding=(5, 1), bias=False)
    layers: list[nn.Module] = [stem, nn.BatchNorm2d(width), nn.ReLU()]
    for _ in range(4):
        for kernel, groups in ((3, width), (1, 1)):
            own = nn.Conv2d(width, width, kernel, padding=kernel // 2, groups=groups, bias=False)
            layers += [own, nn.BatchNorm2d(width), nn.ReLU()]
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, classes)]
    return nn.Sequential(*layers)


def cnn1d(channels: int, classes: int, width: int) -> nn.Module:
    """Four convolutions over time, of w, 2w, 4w and 4w channels, and a linear head."""
    layers: list[nn.Module] = []
    for multiple, kernel, stride in ((1, 7, 1), (2, 5, 2), (4, 3, 2), (4, 3, 2)):
        out = multiple * width
        layers += [nn.Conv1d(channels, out, kernel, stride, kernel // 2, bias=False)]
        layers += [nn.BatchNorm1d(out), nn.ReLU()]
        channels = out
    layers += [nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(channels, classes)]
    return nn.Sequential(*layers)


def mlp(features: int, classes: int, width: int) -> nn.Module:
    """Three hidden layers of w values with batch norm, for tables."""
    layers: list[nn.Module] = []
    for into in (features, width, width):
        layers += [nn.Linear(into, width, bias=False), nn.BatchNorm1d(width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(width, classes))


class Fire(nn.Module):
    """A 1x1 convolution, then a 1x1 and a 3x3 one side by side; each with batch norm."""

    def __init__(self, channels: int, squeezed: int, expanded: int) -> None:
        super().__init__()
        self.squeeze = _normed(channels, squeezed, 1)
        self.expand1x1 = _normed(squeezed, expanded, 1)
        self.expand3x3 = _normed(squeezed, expanded, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.squeeze(x)
        return torch.cat([self.expand1x1(x), self.expand3x3(x)], dim=1)


def squeezenet(channels: int, classes: int, width: int) -> nn.Module:
    """SqueezeNet 1.1 for small images: a stem of stride 1, batch norm, and a linear head."""
    layers: list[nn.Module] = [_normed(channels, width, 3)]
    channels = width
    for halves, squeezed, expanded in (
        *((True, 1, 4), (False, 1, 4), (True, 2, 8), (False, 2, 8)),
        *((True, 3, 12), (False, 3, 12), (False, 4, 16), (False, 4, 16)),
    ):
        if halves:
            layers.append(nn.MaxPool2d(3, stride=2, ceil_mode=True))
        own = max(1, squeezed * width // 4), max(1, expanded * width // 4)
        layers.append(Fire(channels, *own))
        channels = 2 * own[1]
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes)]
    return nn.Sequential(*layers)


def _normed(channels: int, width: int, kernel: int) -> nn.Sequential:
    layer = nn.Conv2d(channels, width, kernel, padding=kernel // 2, bias=False)
    return nn.Sequential(layer, nn.BatchNorm2d(width), nn.ReLU())


class LeNet5(nn.Module):
    """LeNet-5 as PyTorch's tutorial spells it: w and 8w/3 filters, 20w and 14w hidden values."""

    def __init__(self, shape: Shape, classes: int, width: int) -> None:
        super().__init__()
        channels, *sides = shape
        rows, columns = (((side - 4) // 2 - 4) // 2 for side in sides)
        filters = 8 * width // 3
        self.conv1 = nn.Conv2d(channels, width, 5)
        self.conv2 = nn.Conv2d(width, filters, 5)
        self.fc1 = nn.Linear(filters * rows * columns, 20 * width)
        self.fc2 = nn.Linear(20 * width, 14 * width)
        self.fc3 = nn.Linear(14 * width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.conv1(x)), (2, 2))
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = x.view(x.size(0), -1)
        x = F.relu(self.fc1(x))
        x = F.relu(self.fc2(x))
        return self.fc3(x)  # type: ignore[no-any-return]
