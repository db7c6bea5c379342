"""The same operations in every spelling, each a small network of images (4, 8, 6)."""

import math

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

SHAPE = (4, 8, 6)


class Net(nn.Module):
    """A convolution, some function of it, and a linear head."""

    def __init__(self, body, features, filters=4):
        super().__init__()
        self.first = nn.Conv2d(4, filters, 3, padding=1)
        self.body, self.last = body, nn.Linear(features, 3)

    def forward(self, x):
        return self.last(self.body(self.first(x)))


def spelled(features, *bodies):
    """Networks that differ in the spelling of their body; each must give so many features."""
    return [(body, features) for body in bodies]


def flat(function):
    """A function of images, made flat."""
    return lambda x: torch.flatten(function(x), 1)


def unpacked_view(x):
    b, c, h, w = x.shape
    return x.view(b, c * h * w)


def num_flat_features(x):
    """As the first tutorial of PyTorch had it."""
    size = x.size()[1:]  # all dimensions except the batch dimension
    num_features = 1
    for s in size:
        num_features *= s
    return num_features


def by_rank(x):
    if x.dim() == 4 and len(x.shape) == 4 and x.shape[1] != 1:
        x = x.flatten(1)
    return x


def last_of(x):
    first, *rest = x.shape
    return x.view(first, math.prod(rest))


SPELLINGS = {
    "relu": spelled(
        192,
        flat(F.relu),
        flat(torch.relu),
        flat(lambda x: x.relu()),
        flat(lambda x: F.relu(x, inplace=True)),
        flat(lambda x: x.relu_()),
        flat(lambda x: torch.clamp(x, min=0)),
        flat(lambda x: x.clamp(0)),
    ),
    "relu6": spelled(
        192,
        flat(F.relu6),
        flat(lambda x: F.hardtanh(x, 0.0, 6.0)),
        flat(lambda x: torch.clamp(x, 0, 6)),
        flat(lambda x: x.clamp(min=0, max=6)),
    ),
    "sigmoid": spelled(192, flat(torch.sigmoid), flat(lambda x: x.sigmoid()), flat(F.sigmoid)),
    "tanh": spelled(192, flat(torch.tanh), flat(lambda x: x.tanh()), flat(F.tanh)),
    "silu": spelled(192, flat(F.silu), flat(lambda x: F.silu(x, inplace=True))),
    "softmax": spelled(
        192,
        flat(lambda x: F.softmax(x, dim=1)),
        flat(lambda x: torch.softmax(x, 1)),
        flat(lambda x: x.softmax(dim=-3)),
    ),
    "flatten": spelled(
        192,
        lambda x: torch.flatten(x, 1),
        lambda x: x.flatten(1),
        lambda x: x.flatten(start_dim=1),
        lambda x: x.view(x.size(0), -1),
        lambda x: x.view(x.shape[0], -1),
        lambda x: x.reshape(x.size()[0], -1),
        lambda x: x.view(-1, 192),
        lambda x: torch.reshape(x, (-1, 4 * 8 * 6)),
        unpacked_view,
        lambda x: x.view(-1, num_flat_features(x)),
        lambda x: x.reshape(-1, math.prod(x.shape[1:])),
        lambda x: x.view(*x.shape[:1], -1),
        by_rank,
        last_of,
    ),
    "mean over space": spelled(
        4,
        lambda x: x.mean((2, 3)),
        lambda x: x.mean(dim=[2, 3]),
        lambda x: torch.mean(x, dim=(-2, -1)),
        lambda x: x.mean((2, 3), keepdim=True).flatten(1),
        lambda x: F.adaptive_avg_pool2d(x, 1).flatten(1),
        lambda x: F.adaptive_avg_pool2d(x, (1, 1)).squeeze(-1).squeeze(-1),
        lambda x: F.adaptive_avg_pool2d(x, 1).squeeze(),
        lambda x: F.adaptive_avg_pool2d(x, 1)[:, :, 0, 0],
        lambda x: F.adaptive_avg_pool2d(x, 1).view(x.size(0), -1),
        lambda x: x.flatten(2).mean(-1),
        lambda x: x.mean(3).mean(2),
        lambda x: F.avg_pool2d(x, (8, 6)).flatten(1),
        lambda x: F.avg_pool2d(x, x.size()[2:]).reshape(-1, 4),
    ),
    "max pool": spelled(
        48,
        flat(lambda x: F.max_pool2d(x, 2)),
        flat(lambda x: F.max_pool2d(x, (2, 2))),
        flat(lambda x: F.max_pool2d(x, kernel_size=2, stride=2)),
        flat(lambda x: torch.max_pool2d(x, 2)),
        flat(lambda x: F.adaptive_max_pool2d(x, (4, 3))),
    ),
    "add": spelled(
        192,
        flat(lambda x: x + x.relu()),
        flat(lambda x: torch.add(x, x.relu())),
        flat(lambda x: x.add(x.relu())),
        flat(lambda x: x.relu().add_(x)),
    ),
    "multiply": spelled(
        192,
        flat(lambda x: x * x.mean((2, 3), keepdim=True)),
        flat(lambda x: x.mean((2, 3), keepdim=True) * x),
        flat(lambda x: torch.mul(x, F.adaptive_avg_pool2d(x, 1))),
        flat(lambda x: x * F.adaptive_avg_pool2d(x, 1).view(x.size(0), 4, 1, 1)),
        flat(lambda x: x * F.adaptive_avg_pool2d(x, 1).flatten(1)[:, :, None, None]),
        flat(lambda x: x * F.adaptive_avg_pool2d(x, 1).expand_as(x)),
        flat(lambda x: x * x.mean((2, 3)).unsqueeze(-1).unsqueeze(-1)),
    ),
    "a factor": spelled(
        192,
        flat(lambda x: x * 0.5 + 3),
        flat(lambda x: 0.5 * x + 3),
        flat(lambda x: x / 2 + 3),
        flat(lambda x: torch.add(x.mul(0.5), 3)),
        flat(lambda x: x / 2 - -3),
    ),
    "concat": spelled(
        384,
        flat(lambda x: torch.cat([x, x.relu()], 1)),
        flat(lambda x: torch.cat((x, x.relu()), dim=1)),
        flat(lambda x: torch.concat([x, x.relu()], dim=-3)),
    ),
    "concat of three": spelled(576, flat(lambda x: torch.cat([x, x.relu(), x.tanh()], 1))),
    "upsample": spelled(
        768,
        flat(lambda x: F.interpolate(x, scale_factor=2)),
        flat(lambda x: F.interpolate(x, size=(16, 12), mode="nearest")),
    ),
    "dropout": spelled(192, flat(lambda x: F.dropout(x, 0.3, training=False))),
    "half of the channels": spelled(
        96,
        flat(lambda x: x.chunk(2, 1)[1]),
        flat(lambda x: torch.chunk(x, 2, dim=1)[1]),
        flat(lambda x: x.split(2, dim=1)[1]),
        flat(lambda x: x[:, 2:]),
        flat(lambda x: x[:, 2:, ...]),
        flat(lambda x: x.narrow(1, 2, 2)),
    ),
    "channel shuffle": spelled(
        192,
        flat(
            lambda x: (
                x.view(x.size(0), 2, 2, 8, 6).transpose(1, 2).contiguous().view(x.size(0), -1, 8, 6)
            )
        ),
        flat(lambda x: F.channel_shuffle(x, 2)),
    ),
    "pixels first": spelled(
        192,
        lambda x: x.permute(0, 2, 3, 1).flatten(1),
        lambda x: torch.permute(x, (0, 2, 3, 1)).reshape(x.size(0), -1),
        lambda x: x.flatten(2).transpose(1, 2).flatten(1),
        lambda x: x.flatten(2).transpose(-1, -2).reshape(x.shape[0], 192),
    ),
    "matmul": spelled(
        16,
        flat(lambda x: x.flatten(2) @ x.flatten(2).transpose(1, 2)),
        flat(lambda x: torch.matmul(x.flatten(2), x.flatten(2).transpose(1, 2))),
        flat(lambda x: torch.bmm(x.flatten(2), x.flatten(2).permute(0, 2, 1))),
    ),
    "attention": spelled(
        192,
        flat(lambda x: F.scaled_dot_product_attention(x, x, x)),
        flat(lambda x: (x @ x.transpose(-2, -1) / 6**0.5).softmax(dim=-1) @ x),
        flat(lambda x: F.softmax(x @ x.mT * 6**-0.5, -1) @ x),
    ),
}
