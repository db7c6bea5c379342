"""Random small networks."""

import numpy as np
import torch
from hypothesis import strategies as st
from torch import nn

from .twins import random_mask, wake_norms

DENSITIES = st.sampled_from([0.0, 0.05, 0.2, 0.6, 1.0])


@st.composite
def convolutions(draw, channels, filters, size):
    """A convolution that fits images of this size, with any kernel, stride and padding."""
    kernel = tuple(draw(st.integers(1, min(5, side + 2))) for side in size)
    padding = tuple(draw(st.integers(0, 3)) for _ in size)
    padding = tuple(max(p, -(-(k - s) // 2)) for p, k, s in zip(padding, kernel, size, strict=True))
    stride = tuple(draw(st.integers(1, 4)) for _ in size)
    layer = nn.Conv2d(channels, filters, kernel, stride, padding, bias=draw(st.booleans()))
    out = tuple(
        (s + 2 * p - k) // t + 1 for s, p, k, t in zip(size, padding, kernel, stride, strict=True)
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
