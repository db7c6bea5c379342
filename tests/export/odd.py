"""Networks that take every step there is, in ways that the shipped ones do not."""

import torch.nn.functional as F  # noqa: N812
from torch import nn


def pools():
    """Padded pools of all kinds, strides and kernels that are not square."""
    return nn.Sequential(
        nn.Conv2d(2, 6, (3, 2), stride=(1, 2), padding=(1, 0)),
        nn.ReLU(),
        nn.MaxPool2d(3, 1, padding=1),
        nn.Conv2d(6, 8, 3, padding=2),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.AvgPool2d((2, 3), (1, 2), padding=1),
        nn.Conv2d(8, 6, 1, padding=1),
        nn.AvgPool2d(3, 2, padding=1, count_include_pad=False),
        nn.AdaptiveAvgPool2d((3, 2)),
        nn.Flatten(),
        nn.Dropout(0.3),
        nn.Linear(36, 12),
        nn.BatchNorm1d(12),
        nn.ReLU(),
        nn.Linear(12, 10, bias=False),
    )


class Tangle(nn.Module):
    """Norms that cannot be folded, a layer that is read twice, sums of sums."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(2, 8, 3, padding=1)
        self.norm0 = nn.BatchNorm2d(8)
        self.left = nn.Conv2d(8, 8, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(8)
        self.right = nn.Conv2d(8, 8, 1)
        self.norm2 = nn.BatchNorm2d(8)
        self.after = nn.Conv2d(8, 8, 3, stride=2)
        self.hidden = nn.Linear(8, 16)
        self.out = nn.Linear(16, 10)

    def forward(self, x):
        start = self.first(x)
        x = F.relu(self.norm0(start))
        x = self.norm2(F.relu(self.norm1(self.left(x)) + self.right(x)) + start)
        x = self.hidden(F.relu(self.after(x)).mean((2, 3)))
        return self.out(F.relu(x))


class LastIsNorm(nn.Module):
    """Logits that come out of a batch norm, and a shortcut from the image."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(2, 2, 3, padding=1)
        self.middle = nn.Conv2d(2, 2, 3, padding=1)
        self.wide = nn.Conv2d(2, 12, 5, stride=3)
        self.out = nn.Linear(12, 10)
        self.norm = nn.BatchNorm1d(10)

    def forward(self, x):
        x = self.middle(F.relu(self.first(x))) + x
        return self.norm(self.out(F.adaptive_avg_pool2d(self.wide(x), 1).flatten(1)))


class Idle(nn.Module):
    """A head for training that the result does not need."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(2, 4, 3)
        self.helper = nn.Linear(4, 3)
        self.out = nn.Linear(4, 10)

    def forward(self, x):
        x = F.adaptive_avg_pool2d(F.relu(self.first(x)), 1).flatten(1)
        F.relu(self.helper(x))
        return self.out(x)


ODD = (pools, Tangle, LastIsNorm, Idle)
