"""The small dense model that the paper compares tiny ones with."""

from torch import nn

from fedtiny.errors import ModelError


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
