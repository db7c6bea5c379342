"""The structures that the kernels in cuda/ take, field by field."""

from ctypes import Structure, c_float, c_int, c_void_p
from typing import Any

import torch

P, I, F = c_void_p, c_int, c_float  # noqa: E741


def _fields(**kinds: Any) -> list[tuple[str, Any]]:
    """Names and kinds of fields, in the order given."""
    return list(kinds.items())


class View(Structure):
    """A tensor from some channel on, and how its values are used."""

    _fields_ = _fields(stored=P, coef=P, stride=I, coefs=I, floor=F, relu=I)


class Conv(Structure):
    """A convolution, or its gradients."""

    _fields_ = [
        ("source", View),
        *_fields(g1=P, g2=P, g1_stride=I, g2_stride=I, split=I),
        *_fields(channels=I, height=I, width=I, tiles_x=I, tiles_y=I, images=I),
        *_fields(items=I, room=I, sums=I, step=I, taps=P, work=P),
        *_fields(out=P, out_stride=I, out_height=I, out_width=I, out_channels=I),
        *_fields(part=P, gradient_part=P, weight_part=P),
        *_fields(input=View, norm1=View, norm2=View, more=P, more_stride=I, classes=I),
    ]


class Norm(Structure):
    """A batch norm or bias."""

    _fields_ = [
        *_fields(part=P, gradient_part=P, tiles=I, of=I, channels=I, first=I, which=I),
        *_fields(count=F, epsilon=F, momentum=F, theta=P, values=I),
        *_fields(scale=I, shift=I, mean=I, variance=I, bias=I),
        *_fields(coef=P, gradient_coef=P, coefs=I, gradient=P, dense=I, plain=I, frozen=P),
    ]


class Plane(Structure):
    """An elementwise step, or the gradient of a value."""

    _fields_ = [
        *_fields(a=View, b=View, g1=P, g2=P, g1_stride=I, g2_stride=I, kind=I),
        *_fields(channels=I, height=I, width=I, in_height=I, in_width=I),
        *_fields(kernel_y=I, kernel_x=I, step_y=I, step_x=I, pad_y=I, pad_x=I),
        *_fields(count_padding=I, images=I, group=I, out=P, stride=I),
        *_fields(part=P, gradient_part=P, norm1=View, norm2=View),
        *_fields(features=P, sums=I, area=I, floor=F),
    ]


class Batch(Structure):
    """Where batches come from."""

    _fields_ = [
        *_fields(pixels=P, labels=P, plan=P, next=P, steps=I, batch=I, channels=I),
        *_fields(height=I, width=I, padded_height=I, padded_width=I, cutout=I),
        *_fields(scale=P, shift=P, out=P, out_labels=P),
    ]


class Linear(Structure):
    """A linear layer, or its gradients."""

    _fields_ = [
        *_fields(inputs_at=P, out=P, out_gradient=P, in_gradient=P, theta=P, gradient=P),
        *_fields(values=I, dense=I, weight=I, bias=I, batch=I, inputs=I, outputs=I),
    ]


class Segment(Structure):
    """The kept weights of a convolution."""

    _fields_ = _fields(part=P, taps=P, back_taps=P, place=P, tiles=I, room=I, first=I, pad=I)


class Update(Structure):
    """The optimizer."""

    _fields_ = [
        *_fields(segments=P, theta=P, gradient=P, first=P, second=P, received=P),
        *_fields(moves=P, rates=P, values=I, dense=I, adam=I),
    ]


class Tick(Structure):
    """What is counted before an update."""

    _fields_ = _fields(next=P, exact=P, rates=P, adam=I)


def address(tensor: torch.Tensor | None, skipped: int = 0) -> int | None:
    """Where a tensor's values lie, from some value on."""
    if tensor is None:
        return None
    return tensor.data_ptr() + skipped * tensor.element_size()
