"""A network without batch norm that keeps few activations for the backward pass (FedMef).

Convolutions standardize their weights in place of what they give. What the backward pass reads of
a layer's input is pruned to its largest values (scaled activation pruning), and of a ReLU one bit a
value is kept. The forward pass is exact.
"""

from math import ceil
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

KEPT_ACTIVATIONS = 0.3  # 1 - gamma
LEAST_VARIANCE = 1e-4
BITS = 8
FILTER = (1, 2, 3)  # the dimensions of one filter


class NSConv2d(nn.Conv2d):
    """A convolution whose filters have mean 0 and variance 1 / fan-in, times a gain each.

    Pruned weights count as zeros and stay zero: w' = (w - mean) / sqrt(max(var fan-in, 1e-4)) gain
    where w is not zero. A weight that was just grown is zero, so it is used from the second step
    on; the first one moves it by way of the mean.
    """

    def __init__(self, channels: int, filters: int, kernel: int, stride: int = 1) -> None:
        super().__init__(channels, filters, kernel, stride, padding=kernel // 2)
        self.gain = nn.Parameter(torch.ones(filters, 1, 1, 1))

    def forward(self, input: Tensor) -> Tensor:
        if not torch.is_grad_enabled():
            weight = standardized(self.weight, self.gain).to(input.dtype)
            bias = None if self.bias is None else self.bias.to(input.dtype)
            return F.conv2d(input, weight, bias, self.stride, self.padding)
        found: Tensor = _SparseConvolution.apply(  # type: ignore[no-untyped-call]
            input, self.weight, self.gain, self.bias, self.stride, self.padding
        )
        return found


def standardized(weight: Tensor, gain: Tensor) -> Tensor:
    """The weights that the layer computes with."""
    centered, scale, _ = _parts(weight)
    return torch.where(weight != 0, centered * scale * gain.float(), 0.0)


def standardized_gradients(weight: Tensor, gain: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of weight and gain, from that of the weights that the layer computes with."""
    centered, scale, clamped = _parts(weight)
    masked = torch.where(weight != 0, gradient.float(), 0.0)
    of_gain = (masked * centered * scale).sum(dim=FILTER, keepdim=True)
    masked = masked * gain.float()
    through_scale = (masked * centered).sum(dim=FILTER, keepdim=True) * scale**2
    through_scale = torch.where(clamped, 0.0, through_scale)
    own = masked - masked.mean(dim=FILTER, keepdim=True) - through_scale * centered
    return (own * scale).to(weight.dtype), of_gain.to(gain.dtype)


def _parts(weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """What is left without the mean, the scale of each filter, and whether it is at its bound."""
    own = weight.float()
    var, mean = torch.var_mean(own, dim=FILTER, correction=0, keepdim=True)
    total = var * own[0].numel()
    return own - mean, torch.rsqrt(total.clamp(min=LEAST_VARIANCE)), total < LEAST_VARIANCE


class BitReLU(nn.Module):
    """ReLU that keeps one bit a value for the backward pass."""

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = _BitReLU.apply(x)  # type: ignore[no-untyped-call]
        return found


class _SparseConvolution(torch.autograd.Function):
    """A convolution whose weight gradient is that of its input's largest values.

    Beside these and their places, one bit a value, nothing is kept: weights are standardized anew.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, gain: Tensor, bias: Tensor, stride: Any, padding: Any
    ) -> Tensor:
        flat = x.reshape(-1)
        count = ceil(KEPT_ACTIVATIONS * flat.numel())
        places = flat.abs().topk(count, sorted=False).indices.sort().values
        bits = torch.zeros_like(flat, dtype=torch.bool).index_fill_(0, places, True)
        ctx.save_for_backward(flat[places], _packed(bits), weight, gain)
        ctx.shape, ctx.stride, ctx.padding = x.shape, stride, padding
        used = standardized(weight, gain).to(x.dtype)
        return F.conv2d(x, used, bias.to(x.dtype), stride, padding)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        values, packed, weight, gain = ctx.saved_tensors
        flat = torch.zeros(ctx.shape.numel(), dtype=values.dtype, device=values.device)
        x = flat.masked_scatter_(_unpacked(packed, flat.numel()), values).view(ctx.shape)
        needs_input = ctx.needs_input_grad[0]
        of_input, of_used, of_bias = torch.ops.aten.convolution_backward(
            *(gradients[0].to(x.dtype).contiguous(), x, standardized(weight, gain).to(x.dtype)),
            *([len(weight)], ctx.stride, ctx.padding, (1, 1), False, (0, 0), 1),
            (needs_input, True, True),
        )
        of_weight, of_gain = standardized_gradients(weight, gain, of_used)
        return of_input, of_weight, of_gain, of_bias.to(weight.dtype), None, None


class _BitReLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(_packed((x > 0).reshape(-1)))
        return F.relu(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (gradient,) = gradients
        positive = _unpacked(ctx.saved_tensors[0], gradient.numel()).view(gradient.shape)
        return torch.where(positive, gradient, 0.0)


def _packed(bits: Tensor) -> Tensor:
    """Eight bits a byte, the first one lowest."""
    padded = F.pad(bits.to(torch.uint8), (0, -bits.numel() % BITS)).view(-1, BITS)
    places = torch.arange(BITS, dtype=torch.uint8, device=bits.device)
    return (padded << places).sum(dim=1, dtype=torch.uint8)


def _unpacked(packed: Tensor, count: int) -> Tensor:
    places = torch.arange(BITS, dtype=torch.uint8, device=packed.device)
    return ((packed[:, None] >> places) & 1).to(torch.bool).reshape(-1)[:count]


class NSBlock(nn.Module):
    """Two 3x3 convolutions beside an identity, or a 1x1 shortcut where the shape changes."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.relu1 = NSConv2d(channels, width, 3, stride), BitReLU()
        self.conv2, self.relu2 = NSConv2d(width, width, 3), BitReLU()
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels != width:
            self.shortcut = NSConv2d(channels, width, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        out = self.conv2(self.relu1(self.conv1(x)))
        return self.relu2(out + self.shortcut(x))  # type: ignore[no-any-return]


class NSResNet18(nn.Module):
    """ResNet18 of such convolutions; blocks and widths are those of ResNet18."""

    pruning_blocks = (("layer1",), ("layer2",), ("layer3",), ("layer4.0",), ("layer4.1",))

    def __init__(self, channels: int, classes: int, width: int) -> None:
        super().__init__()
        self.conv1, self.relu = NSConv2d(channels, width, 3), BitReLU()
        self.layer1 = _stage(width, width, stride=1)
        self.layer2 = _stage(width, 2 * width, stride=2)
        self.layer3 = _stage(2 * width, 4 * width, stride=2)
        self.layer4 = _stage(4 * width, 8 * width, stride=2)
        self.fc = nn.Linear(8 * width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.conv1(x))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(x.mean(dim=(2, 3)))  # type: ignore[no-any-return]


def _stage(channels: int, width: int, stride: int) -> nn.Sequential:
    return nn.Sequential(NSBlock(channels, width, stride), NSBlock(width, width, stride=1))
