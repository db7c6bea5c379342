"""VGG11 with batch norm, with a large head or a small one."""

from torch import Tensor, nn

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
