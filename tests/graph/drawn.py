"""Random modules of every operation, each with the shape of what it reads."""

import torch
import torch.nn.functional as F  # noqa: N812
from hypothesis import strategies as st
from torch import nn

SIDES = st.integers(1, 9)


class Function(nn.Module):
    """A function as a module."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *x):
        return self.function(*x)


class Learned(nn.Module):
    """Adds a learned tensor."""

    def __init__(self, *shape):
        super().__init__()
        self.values = nn.Parameter(torch.randn(*shape))

    def forward(self, x):
        return x + self.values


class Gate(nn.Module):
    """Multiplies with the mean of a layer."""

    def __init__(self, channels):
        super().__init__()
        self.layer = nn.Conv2d(channels, channels, 1)

    def forward(self, x):
        return x * torch.sigmoid(self.layer(x.mean((2, 3), keepdim=True)))


@st.composite
def images(draw, channels=SIDES, least=1):
    return draw(channels), draw(st.integers(least, 9)), draw(st.integers(least, 9))


@st.composite
def convolutions(draw, axes=2, transposed=False):
    groups = draw(st.sampled_from([1, 1, 2, 3]))
    channels, filters = (groups * draw(st.integers(1, 3)) for _ in range(2))
    if draw(st.booleans()) and groups > 1:
        channels = filters = groups  # depthwise
    sides = [draw(st.integers(3, 9)) for _ in range(axes)]
    kernel = [draw(st.integers(1, 3)) for _ in sides]
    dilation = [draw(st.integers(1, 2)) for _ in sides]
    padding = [draw(st.integers(0, d * (k - 1))) for k, d in zip(kernel, dilation, strict=True)]
    stride = [draw(st.integers(1, 3)) for _ in sides]
    need = [d * (k - 1) + 1 for k, d in zip(kernel, dilation, strict=True)]
    sides = [max(side, n) for side, n in zip(sides, need, strict=True)]
    settings = {"dilation": dilation, "groups": groups, "bias": draw(st.booleans())}
    kinds = {1: nn.ConvTranspose1d, 2: nn.ConvTranspose2d} if transposed else {}
    kind = {1: nn.Conv1d, 2: nn.Conv2d, **kinds}[axes]
    if transposed:
        settings["output_padding"] = [draw(st.integers(0, s - 1)) for s in stride]
    elif draw(st.booleans()) and set(stride) == {1}:
        padding = "same"
    layer = kind(channels, filters, kernel, stride, padding, **settings)
    return layer, (channels, *sides)


@st.composite
def padded(draw):
    layer, shape = draw(convolutions())
    around = [draw(st.integers(0, 2)) for _ in range(4)]
    spelled = draw(st.sampled_from([nn.ZeroPad2d(around), Function(lambda x: F.pad(x, around))]))
    return nn.Sequential(spelled, layer), shape


@st.composite
def pools(draw, kind, axes=2):
    kernel = [draw(st.integers(1, 3)) for _ in range(axes)]
    stride = [draw(st.integers(1, 3)) for _ in range(axes)]
    padding = [draw(st.integers(0, k // 2)) for k in kernel]
    settings = {"ceil_mode": draw(st.booleans())}
    if kind in (nn.AvgPool1d, nn.AvgPool2d):
        settings["count_include_pad"] = draw(st.booleans())
        if axes == 1:
            kernel, stride, padding = kernel[0], stride[0], padding[0]
    sides = [draw(st.integers(3, 9)) for _ in range(axes)]
    return kind(kernel, stride, padding, **settings), (draw(SIDES), *sides)


def of_images(make, **limits):
    """A module for each shape of images."""
    return images(**limits).map(lambda shape: (make(shape), shape))


def pointwise(make):
    return of_images(lambda shape: make())


@st.composite
def group_norms(draw):
    groups, each = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    shape = (groups * each, *(draw(SIDES) for _ in range(draw(st.integers(1, 2)))))
    return nn.GroupNorm(groups, shape[0], eps=draw(st.sampled_from([1e-5, 0.1]))), shape


@st.composite
def layer_norms(draw):
    """Over channels that lie last: of rows, of tokens, of pixels."""
    channels, count = draw(st.integers(2, 9)), draw(SIDES)
    norm = nn.LayerNorm(channels)
    if draw(st.booleans()):
        return norm, (count, channels)
    last = Function(lambda x: x.permute(0, 2, 3, 1))
    first = Function(lambda x: x.permute(0, 3, 1, 2))
    return nn.Sequential(last, norm, first), (channels, count, draw(SIDES))


@st.composite
def linears(draw):
    """Over rows, or over the last axis of more."""
    sides = [draw(SIDES) for _ in range(draw(st.integers(1, 3)))]
    return nn.Linear(sides[-1], draw(SIDES), bias=draw(st.booleans())), tuple(sides)


@st.composite
def softmaxes(draw):
    return nn.Softmax(dim=draw(st.sampled_from([1, 2, 3, -1]))), draw(images())


@st.composite
def reshapes(draw):
    channels, rows, columns = draw(images())
    shapes = [(rows, channels, columns), (columns * rows, channels), (channels, rows * columns)]
    shape = draw(st.sampled_from(shapes))
    relu = Function(lambda x: torch.tanh(x.reshape(x.shape[0], *shape)).transpose(1, 2))
    return nn.Sequential(relu, nn.Flatten()), (channels, rows, columns)


@st.composite
def permutes(draw):
    order = draw(st.permutations([1, 2, 3]))
    return Function(lambda x: x.permute(0, *order)), draw(images())


@st.composite
def concats(draw):
    dim = draw(st.integers(1, 3))
    count = draw(st.integers(2, 4))
    parts = (torch.tanh, torch.relu, torch.sigmoid, torch.tanh)[:count]
    return Function(lambda x: torch.cat([part(x) for part in parts], dim)), draw(images())


@st.composite
def slices(draw):
    shape, dim = draw(images(least=2, channels=st.integers(2, 9))), draw(st.integers(1, 3))
    start = draw(st.integers(0, shape[dim - 1] - 1))
    length = draw(st.integers(1, shape[dim - 1] - start))
    return Function(lambda x: x.narrow(dim, start, length)), shape


@st.composite
def upsamples(draw):
    factors = (draw(st.integers(1, 3)), draw(st.integers(1, 3)))
    return nn.Upsample(scale_factor=factors), draw(images())


@st.composite
def matmuls(draw):
    shape = draw(images())
    return Function(lambda x: torch.tanh(x) @ x.transpose(-2, -1)), shape


@st.composite
def attentions(draw):
    scale = draw(st.sampled_from([None, 0.5]))
    function = F.scaled_dot_product_attention
    return Function(lambda x: function(x, torch.tanh(x), x, scale=scale)), draw(images())


@st.composite
def parameters(draw):
    shape = draw(images())
    ones = draw(st.integers(0, 1))
    return Learned(*[1] * ones, *shape), shape


OPERATIONS = {
    "convolution": convolutions(),
    "convolution 1-D": convolutions(axes=1),
    "uneven padding": padded(),
    "transposed convolution": convolutions(transposed=True),
    "transposed convolution 1-D": convolutions(axes=1, transposed=True),
    "linear": linears(),
    "batch norm": of_images(lambda shape: nn.BatchNorm2d(shape[0], eps=0.01)),
    "batch norm 1-D": st.tuples(SIDES, SIDES).map(lambda s: (nn.BatchNorm1d(s[0]), s)),
    "group norm": group_norms(),
    "layer norm": layer_norms(),
    "relu": pointwise(nn.ReLU),
    "relu6": pointwise(lambda: nn.Sequential(Function(lambda x: 4 * x), nn.ReLU6())),
    "leaky relu": st.sampled_from([0.01, 0.3]).flatmap(
        lambda s: pointwise(lambda: nn.LeakyReLU(s))
    ),
    "silu": pointwise(nn.SiLU),
    "hard swish": pointwise(lambda: nn.Sequential(Function(lambda x: 3 * x), nn.Hardswish())),
    "hard sigmoid": pointwise(lambda: nn.Sequential(Function(lambda x: 3 * x), nn.Hardsigmoid())),
    "sigmoid": pointwise(nn.Sigmoid),
    "tanh": pointwise(nn.Tanh),
    "gelu": st.sampled_from(["none", "tanh"]).flatmap(lambda a: pointwise(lambda: nn.GELU(a))),
    "softmax": softmaxes(),
    "add": pointwise(lambda: Function(lambda x: torch.tanh(x) + x)),
    "multiply": pointwise(lambda: Function(lambda x: torch.tanh(x) * x)),
    "multiply by channel": of_images(lambda shape: Gate(shape[0])),
    "concat": concats(),
    "max pool": pools(nn.MaxPool2d),
    "max pool 1-D": pools(nn.MaxPool1d, axes=1),
    "mean pool": pools(nn.AvgPool2d),
    "mean pool 1-D": pools(nn.AvgPool1d, axes=1),
    "adaptive pool": st.tuples(SIDES, SIDES).flatmap(
        lambda size: pointwise(lambda: nn.AdaptiveAvgPool2d(size))
    ),
    "mean over space": pointwise(lambda: Function(lambda x: x.mean((2, 3)))),
    "flatten": pointwise(nn.Flatten),
    "dropout": pointwise(nn.Dropout),
    "reshape": reshapes(),
    "permute": permutes(),
    "upsample": upsamples(),
    "matmul": matmuls(),
    "attention": attentions(),
    "parameter": parameters(),
    "slice": slices(),
    "scale": pointwise(lambda: Function(lambda x: x * -0.5 + 2)),
}
