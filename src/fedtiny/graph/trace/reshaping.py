"""What a network does to the axes of a tensor; most of it needs no step."""

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any

from fedtiny.graph.ir import Kind
from fedtiny.graph.trace.computing import ranked
from fedtiny.graph.trace.translation import Translation, unsupported
from fedtiny.graph.trace.views import ALL_IMAGES, BATCH, View, joined

EVERYTHING = slice(None)


def _listed(sizes: Sequence[Any]) -> list[int]:
    """Numbers that were given one by one or as one list."""
    given = sizes[0] if len(sizes) == 1 and isinstance(sizes[0], tuple | list) else sizes
    return list(given)


def reshape(t: Translation, x: View, *sizes: Any, shape: Any = None) -> View:
    """The same values in another shape; -1 is what is left."""
    wanted = _listed(sizes if shape is None else (shape,))
    known = prod(size for size in wanted if size != -1)
    return _reshaped(t, x, [prod(x.shape) // known if size == -1 else size for size in wanted])


def _reshaped(t: Translation, x: View, shape: Sequence[int]) -> View:
    if tuple(shape) == x.shape:
        return x
    if x.axes[0] == ALL_IMAGES and tuple(shape) == (x.shape[0], prod(x.shape[1:])):
        return t.flattened(x)
    found = x.reshaped(shape)
    if found is None:
        found = t.flattened(x).reshaped(shape)
    if found is None:
        raise unsupported(f"a reshape that joins images, or does not fit ({t.module})")
    return found


def flatten(t: Translation, x: View, start_dim: int = 0, end_dim: int = -1) -> View:
    """Some axes as one."""
    start, end = start_dim % len(x.axes), end_dim % len(x.axes)
    shape = x.shape
    if start == 0:
        raise unsupported("flatten of several images as one")
    return _reshaped(t, x, [*shape[:start], prod(shape[start : end + 1]), *shape[end + 1 :]])


def unflatten(t: Translation, x: View, dim: int, sizes: Any) -> View:
    """One axis as several."""
    dim, shape, wanted = dim % len(x.axes), x.shape, list(sizes)
    known = prod(size for size in wanted if size != -1)
    parts = [shape[dim] // known if size == -1 else size for size in wanted]
    return _reshaped(t, x, [*shape[:dim], *parts, *shape[dim + 1 :]])


def squeeze(t: Translation, x: View, *dims: Any, dim: Any = None) -> View:
    """Without axes of size 1."""
    asked = _listed(dims) if dim is None else _listed((dim,))
    chosen = {d % len(x.axes) for d in asked} or set(range(len(x.axes)))
    axes = tuple(a for i, a in enumerate(x.axes) if i not in chosen or a)
    return _fewer(t, x, replace(x, axes=axes))


def _fewer(t: Translation, before: View, after: View) -> View:
    """A step says where images have become rows."""
    rows = after.is_flat and after.axes[0] == ALL_IMAGES
    return t.row(after) if rows and not before.is_flat else after


def unsqueeze(t: Translation, x: View, dim: int) -> View:
    """With one more axis of size 1."""
    place = dim % (len(x.axes) + 1)
    return replace(x, axes=(*x.axes[:place], (), *x.axes[place:]))


def permute(t: Translation, x: View, *dims: Any) -> View:
    """The axes in another order."""
    return x.permuted([d % len(x.axes) for d in _listed(dims)])


def transpose(t: Translation, x: View, dim0: int, dim1: int) -> View:
    """Two axes exchanged."""
    order = list(range(len(x.axes)))
    order[dim0], order[dim1] = order[dim1], order[dim0]
    return x.permuted(order)


def same(t: Translation, x: View, *settings: Any, **more: Any) -> View:
    """What changes no value."""
    return x


def expand(t: Translation, x: View, *sizes: Any) -> View:
    """A parameter for every image, or values of a channel for every pixel."""
    wanted = _listed(sizes)
    x = ranked(x, len(wanted))
    changed = [i for i, n in enumerate(wanted) if n not in (-1, x.shape[i])]
    if changed == [0] and x.axes[0] == () and wanted[0] == ALL_IMAGES[0].size:
        return replace(x, axes=(ALL_IMAGES, *x.axes[1:]))
    if any(x.axes[i] for i in changed):
        raise unsupported("expanding an axis that is not of size 1")
    return replace(x, expanded=bool(changed))


def expand_as(t: Translation, x: View, other: View) -> View:
    """The same, as large as another tensor."""
    return expand(t, x, *other.shape)


def repeat(t: Translation, x: View, *sizes: Any) -> View:
    """A parameter for every image."""
    counts = _listed(sizes)
    if counts[1:] != [1] * (len(counts) - 1):
        raise unsupported("repeating anything but a parameter for every image")
    return expand(t, x, counts[0], *[-1] * (len(counts) - 1))


def cat(t: Translation, tensors: Any = (), dim: int = 0, **named: Any) -> View:
    """Tensors one behind the other, along any axis but that of images."""
    dim = named.get("axis", dim)
    views = [t.plain(t.view(tensor)) for tensor in tensors]
    rank = len(views[0].axes)
    if dim % rank == 0:
        raise unsupported("cat of images")
    largest = max(views, key=lambda view: prod(t.shapes[view.node]))
    places = t.settled(largest)[1]
    number, *others = (t.arranged(view, places) for view in views)
    for other in others:
        number = t.add(Kind.CONCAT, number, other, axis=places[dim % rank - 1])
    return t.made(number, places)


def narrow(t: Translation, x: View, dim: int, start: int, length: int) -> View:
    """A part along an axis."""
    dim = dim % len(x.axes)
    if length == x.shape[dim]:
        return x
    parts = x.axes[dim]
    if any(part.axis == BATCH for part in parts):
        raise unsupported("a part of the images")
    if len(parts) != 1 or parts[0].size * parts[0].stride != t.shapes[x.node][parts[0].axis]:
        number, places = t.settled(x)
        x = t.made(number, places)
        parts = x.axes[dim]
    (part,) = parts
    slice = {"start": start * part.stride, "channels": length * part.stride}
    number = t.add(Kind.SLICE, x.node, axis=part.axis, **slice)
    left = joined([part._replace(size=length)] if length > 1 else [])
    return replace(x, node=number, axes=(*x.axes[:dim], left, *x.axes[dim + 1 :]))


def select(t: Translation, x: View, dim: int, index: int) -> View:
    """One value along an axis, which goes."""
    dim = dim % len(x.axes)
    one = narrow(t, x, dim, index % x.shape[dim], 1)
    return _fewer(t, x, replace(one, axes=(*one.axes[:dim], *one.axes[dim + 1 :])))


def getitem(t: Translation, x: View, index: Any) -> View:
    """x[...] with numbers, plain slices, an ellipsis and None."""
    asked = list(index) if isinstance(index, tuple) else [index]
    if Ellipsis in asked:
        place = asked.index(Ellipsis)
        named = sum(i is not None for i in asked) - 1
        asked[place : place + 1] = [EVERYTHING] * (len(x.axes) - named)
    found, dim = x, 0
    for item in asked:
        if item is None:
            found = unsqueeze(t, found, dim)
        elif isinstance(item, int):
            one = narrow(t, found, dim, item % found.shape[dim], 1)
            found = replace(one, axes=(*one.axes[:dim], *one.axes[dim + 1 :]))
            continue
        elif isinstance(item, slice) and item.step in (None, 1):
            start, end, _ = item.indices(found.shape[dim])
            found = narrow(t, found, dim, start, end - start)
        else:
            raise unsupported(f"indexing by {item}")
        dim += 1
    return _fewer(t, x, found)


def chunk(t: Translation, x: View, chunks: int, dim: int = 0) -> tuple[View, ...]:
    """So many parts along an axis."""
    return split(t, x, -(-x.shape[dim] // chunks), dim)


def split(t: Translation, x: View, split_size_or_sections: Any, dim: int = 0) -> tuple[View, ...]:
    """Parts of one size, or of these sizes."""
    side, sizes = x.shape[dim], split_size_or_sections
    if isinstance(sizes, int):
        sizes = [min(sizes, side - start) for start in range(0, side, sizes)]
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    return tuple(narrow(t, x, dim, s, n) for s, n in zip(starts, sizes, strict=True))


def unbind(t: Translation, x: View, dim: int = 0) -> tuple[View, ...]:
    """Every value along an axis by itself."""
    return tuple(select(t, x, dim, index) for index in range(x.shape[dim]))


def pad(t: Translation, x: View, pad: Any, mode: str = "constant", value: Any = None) -> View:
    """Zeros around rows and columns, which the convolution behind takes as its padding."""
    sides = [*pad, 0, 0, 0, 0]
    if mode != "constant" or value or any(sides[4:]) or min(sides) < 0:
        raise unsupported(f"padding by {mode} ({value or 0}), of channels or below 0")
    if any(sides[2:4]) and len(x.axes) != 4:
        raise unsupported("padding of channels")
    left, right, top, bottom = (n + m for n, m in zip(x.pad, sides[:4], strict=True))
    return replace(x, pad=(left, right, top, bottom))


def channel_shuffle(t: Translation, x: View, groups: int) -> View:
    """Channels of all groups in turn."""
    images, channels, *sides = x.shape
    apart = _reshaped(t, x, [images, groups, channels // groups, *sides])
    return _reshaped(t, transpose(t, apart, 1, 2), x.shape)
