"""Small networks of the kinds that people put on devices."""

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from ..devices.tiny import CLASSES


def convolution(channels, filters, kernel=1, stride=1, groups=1, activation=nn.ReLU6):
    layers = [
        nn.Conv2d(channels, filters, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(filters),
    ]
    return nn.Sequential(*layers, *([activation()] if activation else []))


class Inverted(nn.Module):
    """An inverted residual; with squeeze-and-excite if asked for."""

    def __init__(self, channels, filters, stride=1, excite=False, activation=nn.ReLU6):
        super().__init__()
        hidden = 3 * channels
        self.expand = convolution(channels, hidden, activation=activation)
        self.depthwise = convolution(hidden, hidden, 3, stride, hidden, activation)
        self.excite = Excite(hidden) if excite else nn.Identity()
        self.project = convolution(hidden, filters, activation=None)
        self.residual = stride == 1 and channels == filters

    def forward(self, x):
        y = self.project(self.excite(self.depthwise(self.expand(x))))
        return x + y if self.residual else y


class Excite(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.reduce, self.expand = nn.Conv2d(channels, 4, 1), nn.Conv2d(4, channels, 1)

    def forward(self, x):
        pooled = F.adaptive_avg_pool2d(x, 1)
        return x * F.hardsigmoid(self.expand(F.relu(self.reduce(pooled))))


class MobileNetV2(nn.Sequential):
    def __init__(self, excite=False, activation=nn.ReLU6):
        how = {"excite": excite, "activation": activation}
        super().__init__(
            convolution(1, 8, 3, activation=activation),
            Inverted(8, 8, **how),
            Inverted(8, 12, 2, **how),
            convolution(12, 16, activation=activation),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(16, CLASSES),
        )


class Fire(nn.Module):
    def __init__(self, channels, squeezed, filters):
        super().__init__()
        self.squeeze = nn.Conv2d(channels, squeezed, 1)
        self.one = nn.Conv2d(squeezed, filters, 1)
        self.three = nn.Conv2d(squeezed, filters, 3, padding=1)

    def forward(self, x):
        x = F.relu(self.squeeze(x))
        return torch.cat((F.relu(self.one(x)), F.relu(self.three(x))), 1)


def squeeze_net():
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.ReLU(),
        Fire(8, 4, 6),
        nn.MaxPool2d(3, 2, ceil_mode=True),
        Fire(12, 4, 8),
        nn.Conv2d(16, CLASSES, 1),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )


def group_norm_net():
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1, bias=False),
        nn.GroupNorm(4, 8),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3, 2, padding=1, bias=False),
        nn.GroupNorm(1, 16),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, CLASSES),
    )


class Signal(nn.Module):
    """Reads the image as one row of values."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv1d(1, 8, 5, 2, padding=2)
        self.norm = nn.BatchNorm1d(8)
        self.deep = nn.Conv1d(8, 8, 3, padding=2, dilation=2, groups=8)
        self.point = nn.Conv1d(8, 12, 1)
        self.head = nn.Linear(12, CLASSES)

    def forward(self, x):
        x = F.relu(self.norm(self.stem(x.flatten(2))))
        x = F.max_pool1d(F.leaky_relu(self.point(F.silu(self.deep(x)))), 2)
        return self.head(x.mean(-1))


class LeNet(nn.Module):
    """In the spelling of PyTorch's tutorial."""

    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 6, 3, padding=1), nn.Conv2d(6, 8, 3)
        self.fc1, self.fc2 = nn.Linear(8, 12), nn.Linear(12, CLASSES)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), (2, 2))
        x = F.max_pool2d(torch.tanh(self.conv2(x)), 2)
        return self.fc2(F.relu(self.fc1(x.view(x.size(0), -1))))


NETWORKS = {
    "mobilenetv2": MobileNetV2,
    "squeeze and excite": lambda: MobileNetV2(excite=True, activation=nn.Hardswish),
    "squeezenet": squeeze_net,
    "group norm": group_norm_net,
    "signal": Signal,
    "lenet": LeNet,
}
