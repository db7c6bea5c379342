"""Random small networks."""

import numpy as np
import torch
from hypothesis import strategies as st
from torch import nn

from fedtiny.graph.ir import Kind

from ..graph.building import Builder
from .twins import random_mask, wake_norms

DENSITIES = st.sampled_from([0.0, 0.05, 0.2, 0.6, 1.0])


@st.composite
def convolutions(draw, channels, filters, size):
    """A convolution that fits images of this size, with any kernel, stride, padding and groups."""
    kernel = tuple(draw(st.integers(1, min(5, side + 2))) for side in size)
    dilation = tuple(draw(st.integers(1, 2 if k < 4 else 1)) for k in kernel)
    span = tuple(d * (k - 1) + 1 for d, k in zip(dilation, kernel, strict=True))
    padding = tuple(draw(st.integers(0, 3)) for _ in size)
    padding = tuple(max(p, -(-(k - s) // 2)) for p, k, s in zip(padding, span, size, strict=True))
    stride = tuple(draw(st.integers(1, 4)) for _ in size)
    groups = draw(st.sampled_from([d for d in divisors(channels) if filters % d == 0]))
    own = {"dilation": dilation, "groups": groups, "bias": draw(st.booleans())}
    layer = nn.Conv2d(channels, filters, kernel, stride, padding, **own)
    out = tuple(
        (s + 2 * p - k) // t + 1 for s, p, k, t in zip(size, padding, span, stride, strict=True)
    )
    return layer, out


@st.composite
def smooth_networks(draw):
    """Two convolutions, maybe with batch norm, and a linear head: no kink anywhere."""
    torch.manual_seed(draw(st.integers(0, 2**16)))
    channels, middle = draw(st.integers(1, 4)), draw(st.integers(1, 9))
    shape = (channels, draw(st.integers(1, 19)), draw(st.integers(1, 19)))
    first, size = draw(convolutions(channels, middle, shape[1:]))
    last = draw(st.integers(1, 6))
    second, size = draw(convolutions(middle, last, size))
    layers = [first]
    if draw(st.booleans()):
        layers.append(nn.BatchNorm2d(middle))
    layers.append(second)
    if draw(st.booleans()):
        layers.append(nn.BatchNorm2d(last))
    if draw(st.booleans()):
        pooled = tuple(draw(st.integers(1, 3)) for _ in size)
        layers.append(nn.AdaptiveAvgPool2d(pooled))
        size = pooled
    layers += [nn.Flatten(), nn.Linear(last * size[0] * size[1], 3)]
    return wake_norms(nn.Sequential(*layers)), shape


@st.composite
def masks_of(draw, model):
    """Random masks: whole filters empty, whole filters full, layers empty or full."""
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    masks = {}
    for name, parameter in model.named_parameters():
        if parameter.ndim < 2 or draw(st.integers(0, 3)) == 0:
            continue
        bits = np.zeros(parameter.numel(), dtype=bool)
        bits[random_mask(bits.size, draw(DENSITIES), rng)] = True
        filters = bits.reshape(len(parameter), -1)
        filters[rng.random(len(filters)) < 0.2] = False
        filters[rng.random(len(filters)) < 0.2] = True
        masks[name] = np.flatnonzero(bits).astype(np.int32)
    return masks


KINDS = st.sampled_from(
    [
        *("convolution", "deep", "norm", "group norm", "layer norm", "curve", "clip", "pool"),
        *("add", "multiply", "scale", "concat", "slice", "permute", "upsample", "again"),
    ]
)
CLIPS = st.sampled_from([Kind.RELU, Kind.RELU6, Kind.LEAKY_RELU])
CURVES = st.sampled_from(
    [Kind.SILU, Kind.HARD_SWISH, Kind.HARD_SIGMOID, Kind.SIGMOID, Kind.TANH, Kind.GELU]
)


@st.composite
def device_networks(draw):
    """Graphs of any operations, each on any node before it; all nodes lead to the result."""
    net = Sketch((draw(st.integers(1, 5)), draw(st.integers(1, 9)), draw(st.integers(1, 9))))
    for _ in range(draw(st.integers(1, 7))):
        source = draw(st.integers(max(0, len(net.nodes) - 3), len(net.nodes) - 1))
        net.draw_node(draw, draw(KINDS), source)
    return net.finished()


class Sketch(Builder):
    """Nodes that fit what they read."""

    def channels(self, source):
        return self.shape(source)[0]

    def draw_node(self, draw, kind, source):
        name, channels = f"n{len(self.nodes)}", self.channels(source)
        if kind in ("convolution", "deep"):
            self.draw_convolution(draw, name, source, channels if kind == "deep" else None)
        elif kind == "norm":
            self.batch_norm(name, source)
        elif kind == "group norm":
            groups = draw(st.sampled_from(divisors(channels)))
            self.node(Kind.GROUP_NORM, source, name=name, groups=groups)
        elif kind == "layer norm":
            self.node(Kind.LAYER_NORM, source, name=name)
        elif kind in ("clip", "curve"):
            self.node(draw(CURVES if kind == "curve" else CLIPS), source, slope=0.2)
        elif kind == "pool":
            self.draw_pool(draw, source)
        else:
            self.draw_other(draw, kind, source)

    def draw_convolution(self, draw, name, source, groups):
        channels, *sides = self.shape(source)
        groups = groups or draw(st.sampled_from(divisors(channels)))
        kernel = tuple(draw(st.integers(1, min(3, side))) for side in sides)
        spread = draw(st.integers(1, 2))
        dilation = tuple(
            spread if 2 * (k - 1) < s else 1 for k, s in zip(kernel, sides, strict=True)
        )
        padding, ends = (tuple(draw(st.integers(0, 2)) for _ in sides) for _ in range(2))
        stride = tuple(draw(st.integers(1, 3)) for _ in sides)
        window = {"kernel": kernel, "stride": stride, "padding": padding, "dilation": dilation}
        own = {"groups": groups, "bias": draw(st.booleans()), "padding_end": ends}
        self.convolution(name, source, groups * draw(st.integers(1, 5)), **window, **own)

    def draw_pool(self, draw, source):
        sides = self.shape(source)[1:]
        kernel = tuple(draw(st.integers(1, min(3, side))) for side in sides)
        window = {"kernel": kernel, "stride": tuple(draw(st.integers(1, 3)) for _ in sides)}
        padding = tuple(draw(st.integers(0, k // 2)) for k in kernel)
        self.node(
            draw(st.sampled_from([Kind.MAX_POOL, Kind.MEAN_POOL])),
            source,
            **window,
            padding=padding,
            ceil=draw(st.booleans()),
            count_padding=draw(st.booleans()),
        )

    def draw_other(self, draw, kind, source):
        channels, rows, columns = shape = self.shape(source)
        others = [i for i in range(len(self.nodes)) if self.shape(i)[1:] == shape[1:]]
        same = draw(st.sampled_from([i for i in others if self.shape(i) == shape]))
        if kind in ("add", "multiply"):
            self.node(Kind[kind.upper()], source, same)
        elif kind == "scale":
            self.node(Kind.MULTIPLY, source, self.adaptive_pool(same, (1, 1)))
        elif kind == "concat":
            self.node(Kind.CONCAT, source, draw(st.sampled_from(others)))
        elif kind == "slice":
            start = draw(st.integers(0, channels - 1))
            self.node(
                Kind.SLICE, source, start=start, channels=draw(st.integers(1, channels - start))
            )
        elif kind == "permute":
            order = tuple(draw(st.permutations(range(3))))
            turned = self.node(Kind.PERMUTE, source, order=order)
            self.node(Kind.RESHAPE, turned, channels=channels, size=(columns, rows))
        elif kind == "upsample":
            times = draw(st.integers(1, 2))
            self.node(Kind.UPSAMPLE, source, size=(times * rows, columns))
        else:
            name = f"n{len(self.nodes)}"
            first = self.convolution(name, source, channels, bias=True)
            self.convolution(name, self.relu(first), channels, bias=True)

    def finished(self):
        """What nobody reads is flattened, joined and classified."""
        read = {i for node in self.nodes for i in node.inputs}
        ends = [self.flatten(i) for i in range(len(self.nodes)) if i not in read]
        joined = ends[0]
        for other in ends[1:]:
            joined = self.node(Kind.CONCAT, joined, other)
        self.linear("head", joined, 4)
        return self.graph


def divisors(number):
    return [d for d in range(1, number + 1) if number % d == 0]
