"""Inverted residuals for small images: MobileNetV2, MobileNetV3-small and EfficientNet-Lite0.

The stem and the next stage that would halve the image have stride 1, as is usual for CIFAR. The
width is that of the first layer; all others scale with it, rounded to multiples of 8.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from torch import Tensor, nn

Activation = Callable[[], nn.Module]


def scaled(channels: int, scale: float) -> int:
    """Channels times a scale as a multiple of 8, no more than a tenth below.

    >>> scaled(24, 1), scaled(24, 0.5), scaled(96, 0.25)
    (24, 16, 24)
    """
    wanted = channels * scale
    nearest = max(8, int(wanted + 4) // 8 * 8)
    return nearest + 8 if nearest < 0.9 * wanted else nearest


def convolution(
    channels: int, width: int, kernel: int, stride: int = 1, groups: int = 1
) -> tuple[nn.Module, nn.Module]:
    """A convolution that keeps the size of an image, but for its stride, and batch norm."""
    padding = kernel // 2
    layer = nn.Conv2d(channels, width, kernel, stride, padding, groups=groups, bias=False)
    return layer, nn.BatchNorm2d(width)


class SqueezeExcite(nn.Module):
    """Channels times what the mean of all channels says of each."""

    def __init__(self, channels: int, squeezed: int) -> None:
        super().__init__()
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc1 = nn.Conv2d(channels, squeezed, 1)
        self.activation = nn.ReLU()
        self.fc2 = nn.Conv2d(squeezed, channels, 1)
        self.scale_activation = nn.Hardsigmoid()

    def forward(self, x: Tensor) -> Tensor:
        scale = self.fc2(self.activation(self.fc1(self.avgpool(x))))
        return self.scale_activation(scale) * x  # type: ignore[no-any-return]


class Stage(NamedTuple):
    """Blocks alike: the hidden channels of each, what they give, the kernel, the first's stride."""

    hidden: tuple[int, ...]
    width: int
    kernel: int = 3
    stride: int = 1
    activation: Activation = nn.ReLU6
    excites: bool = False


class InvertedResidual(nn.Module):
    """Expand to hidden channels, convolve each by itself, project back; beside an identity."""

    def __init__(self, channels: int, hidden: int, width: int, stride: int, stage: Stage) -> None:
        super().__init__()
        self.adds = stride == 1 and channels == width
        layers: list[nn.Module] = []
        if hidden != channels:
            layers += [*convolution(channels, hidden, 1), stage.activation()]
        layers += [*convolution(hidden, hidden, stage.kernel, stride, groups=hidden)]
        layers += [stage.activation()]
        if stage.excites:
            layers += [SqueezeExcite(hidden, scaled(hidden, 0.25))]
        layers += [*convolution(hidden, width, 1)]
        self.conv = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.conv(x)
        return x + out if self.adds else out


class MobileNet(nn.Module):
    """A stem, stages of inverted residuals, a last 1x1 convolution, the mean, and a head."""

    def __init__(
        self,
        channels: int,
        first: int,
        stages: Sequence[Stage],
        last: int,
        head: nn.Module,
        activation: Activation = nn.ReLU6,
    ) -> None:
        super().__init__()
        self.stem = nn.Sequential(*convolution(channels, first, 3), activation())
        self.stages = nn.Sequential()
        for stage in stages:
            blocks, stride = nn.Sequential(), stage.stride
            for hidden in stage.hidden:
                blocks.append(InvertedResidual(first, hidden, stage.width, stride, stage))
                first, stride = stage.width, 1
            self.stages.append(blocks)
        self.last = nn.Sequential(*convolution(first, last, 1), activation())
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = head

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(self.last(self.stages(self.stem(x))))
        return self.head(x.flatten(1))  # type: ignore[no-any-return]


def _stages(plan: Sequence[tuple[int, int, int, int, int]], first: int) -> list[Stage]:
    """Stages of (expansion, channels, blocks, stride, kernel), as wide as a first layer of 32."""
    stages, channels = [], first
    for expansion, full, blocks, stride, kernel in plan:
        width = scaled(full, first / 32)
        into = (channels, *[width] * (blocks - 1))
        stages.append(Stage(tuple(expansion * n for n in into), width, kernel, stride))
        channels = width
    return stages


MOBILENET_V2 = (
    (1, 16, 1, 1, 3),
    (6, 24, 2, 1, 3),  # stride 2 for large images
    (6, 32, 3, 2, 3),
    (6, 64, 4, 2, 3),
    (6, 96, 3, 1, 3),
    (6, 160, 3, 2, 3),
    (6, 320, 1, 1, 3),
)
EFFICIENTNET_LITE0 = (
    (1, 16, 1, 1, 3),
    (6, 24, 2, 1, 3),  # stride 2 for large images
    (6, 40, 2, 2, 5),
    (6, 80, 3, 2, 3),
    (6, 112, 3, 1, 5),
    (6, 192, 4, 2, 5),
    (6, 320, 1, 1, 3),
)


def mobilenetv2(channels: int, classes: int, width: int) -> nn.Module:
    """MobileNetV2; a width of 32 is the paper's multiplier 1, and its last layer never narrows."""
    last = scaled(1280, max(1, width / 32))
    return MobileNet(channels, width, _stages(MOBILENET_V2, width), last, nn.Linear(last, classes))


def efficientnet_lite0(channels: int, classes: int, width: int) -> nn.Module:
    """EfficientNet-Lite0: like MobileNetV2, with kernels of 5 and deeper late stages."""
    plan, last = _stages(EFFICIENTNET_LITE0, width), scaled(1280, max(1, width / 32))
    return MobileNet(channels, width, plan, last, nn.Linear(last, classes))


def mobilenetv3_small(channels: int, classes: int, width: int) -> nn.Module:
    """MobileNetV3-small: squeeze-and-excite, and hard-swish in its later stages."""

    def stage(
        hidden: tuple[int, ...], full: int, kernel: int, stride: int, **options: bool
    ) -> Stage:
        swishes = options.get("swishes", True)
        return Stage(
            tuple(scaled(n, width / 16) for n in hidden),
            scaled(full, width / 16),
            kernel,
            stride,
            nn.Hardswish if swishes else nn.ReLU,
            options.get("excites", True),
        )

    stages = [
        stage((16,), 16, 3, 1, swishes=False),  # stride 2 for large images
        stage((72, 88), 24, 3, 2, swishes=False, excites=False),
        stage((96, 240, 240), 40, 5, 2),
        stage((120, 144), 48, 5, 1),
        stage((288, 576, 576), 96, 5, 2),
    ]
    last, hidden = scaled(576, width / 16), scaled(1024, width / 16)
    head = nn.Sequential(nn.Linear(last, hidden), nn.Hardswish(), nn.Linear(hidden, classes))
    return MobileNet(channels, width, stages, last, head, nn.Hardswish)
