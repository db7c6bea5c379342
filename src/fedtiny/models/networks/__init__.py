"""Networks by name: each is built for a shape of inputs, a number of classes and a width."""

from collections.abc import Callable

from torch import nn

from fedtiny.models.networks.mobilenet import efficientnet_lite0, mobilenetv2, mobilenetv3_small
from fedtiny.models.networks.plain import LeNet5, cnn1d, ds_cnn, mlp, squeezenet
from fedtiny.models.networks.resnet import ResidualBlock as ResidualBlock
from fedtiny.models.networks.resnet import ResNet18, resnet8, resnet18_gn, resnet20, resnet56
from fedtiny.models.networks.small import parameters as parameters
from fedtiny.models.networks.small import small
from fedtiny.models.networks.small import width_for as width_for
from fedtiny.models.networks.vgg import vgg11, vgg11_small
from fedtiny.models.networks.vit import VitTiny
from fedtiny.models.ns_conv import NSResNet18

OfChannels = Callable[[int, int, int], nn.Module]
OfShape = Callable[[tuple[int, ...], int, int], nn.Module]

BUILDERS: dict[str, OfChannels] = {
    "resnet18": ResNet18,
    "resnet18_gn": resnet18_gn,
    "resnet18_ns": NSResNet18,
    "resnet8": resnet8,
    "resnet20": resnet20,
    "resnet56": resnet56,
    "vgg11": vgg11,
    "vgg11_small": vgg11_small,
    "mobilenetv2": mobilenetv2,
    "mobilenetv3_small": mobilenetv3_small,
    "efficientnet_lite0": efficientnet_lite0,
    "squeezenet": squeezenet,
    "ds_cnn": ds_cnn,
    "cnn1d": cnn1d,
    "mlp": mlp,
    "small": small,
}
SIZED_BUILDERS: dict[str, OfShape] = {"lenet5": LeNet5, "vit_tiny": VitTiny}
"""Those whose layers depend on the size of an image too."""


def build(name: str, shape: tuple[int, ...], classes: int, width: int) -> nn.Module:
    """The network of that name, with the values that torch's generator gives it."""
    if name in SIZED_BUILDERS:
        return SIZED_BUILDERS[name](shape, classes, width)
    return BUILDERS[name](shape[0], classes, width)
