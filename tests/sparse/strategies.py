"""Random and hand-made models: parameter specs, masks, thetas and gradients."""

from functools import cache
from itertools import pairwise

import numpy as np
from hypothesis import strategies as st

from fedtiny.models.param_spec import ParamSpec, Shape
from fedtiny.sparse.mask import Mask
from fedtiny.sparse.schedule import Schedule
from fedtiny.sparse.theta import Theta
from fedtiny.sparse.vector import SparseVector

Draw = st.DrawFn

LEVELS = np.array([0, 1, -1, 2, -2, 0.5, -0.5], np.float32)  # few, so that ties are common
BATCH_NORM = {"norm.running_mean": (2,), "norm.running_var": (2,)}


def anatomy_of(
    prunable: dict[str, Shape],
    dense: dict[str, Shape] | None = None,
    blocks: tuple[tuple[str, ...], ...] | None = None,
) -> ParamSpec:
    """A model by its shapes; every layer is a block of its own unless told otherwise."""
    dense = dense or {}
    return ParamSpec(
        prunable=prunable,
        dense=dense,
        blocks=tuple((layer,) for layer in prunable) if blocks is None else blocks,
        norms=("norm",) if dense.keys() >= BATCH_NORM.keys() else (),
        input_layer="first.weight",
        output_layer="last.weight",
    )


def resnet18() -> ParamSpec:
    """The prunable convolutions of ResNet18, in four stages, the widest split in two."""
    prunable: dict[str, Shape] = {}
    before = 64
    for stage, width in enumerate((64, 128, 256, 512), start=1):
        prunable[f"layer{stage}.0.conv1"] = (width, before, 3, 3)
        prunable[f"layer{stage}.0.conv2"] = (width, width, 3, 3)
        if before != width:
            prunable[f"layer{stage}.0.shortcut"] = (width, before, 1, 1)
        prunable[f"layer{stage}.1.conv1"] = (width, width, 3, 3)
        prunable[f"layer{stage}.1.conv2"] = (width, width, 3, 3)
        before = width
    stages = ("layer1.", "layer2.", "layer3.", "layer4.0", "layer4.1")
    blocks = tuple(tuple(n for n in prunable if n.startswith(stage)) for stage in stages)
    return anatomy_of(prunable, blocks=blocks)


@st.composite
def anatomies(draw: Draw, max_layers: int = 4) -> ParamSpec:
    """One to a few layers of up to 36 weights, linear or convolutional, cut into blocks."""
    shapes = draw(_shapes(max_layers))
    names = [f"layer{i}.weight" for i in range(len(shapes))]
    dense = {"first.weight": (2, 3), **BATCH_NORM, "last.bias": (1,)}
    return anatomy_of(
        dict(zip(names, shapes, strict=True)), dense, _blocks(names, draw(subsets(len(names))))
    )


@cache
def _shapes(max_layers: int) -> st.SearchStrategy[list[Shape]]:
    linear = st.tuples(st.integers(1, 6), st.integers(1, 6))
    kernel = st.tuples(st.integers(1, 2), st.integers(1, 2), st.just(3), st.just(3))
    return st.lists(linear | kernel, min_size=1, max_size=max_layers)


def _blocks(names: list[str], cuts: np.ndarray) -> tuple[tuple[str, ...], ...]:
    ends = sorted({0, *cuts.tolist(), len(names)})
    return tuple(tuple(names[i:j]) for i, j in pairwise(ends))


@st.composite
def masks(draw: Draw, param_spec: ParamSpec | None = None) -> Mask:
    """Any mask of a model, empty and full layers included."""
    param_spec = param_spec or draw(anatomies())
    kept = {layer: draw(subsets(size)) for layer, size in param_spec.sizes.items()}
    return Mask(param_spec, kept)


@st.composite
def thetas(draw: Draw, mask: Mask | None = None) -> Theta:
    """A model of few different values under any mask."""
    mask = mask or draw(masks())
    return Theta(mask, draw(levels(mask.count + mask.param_spec.dense_count)))


@st.composite
def dense_thetas(draw: Draw) -> Theta:
    """A model of few different values that keeps all its weights."""
    return draw(thetas(Mask.full(draw(anatomies()))))


@cache
def levels(size: int) -> st.SearchStrategy[np.ndarray]:
    """A vector of few different values."""
    return _choices(size).map(lambda choices: LEVELS[choices % len(LEVELS)])


@cache
def subsets(size: int) -> st.SearchStrategy[np.ndarray]:
    """Sorted positions below a size, any number of them: none and all are not rare."""
    return _choices(size + 1).map(lambda choices: _subset(int(choices[0]) % 4, choices[1:]))


def _subset(kind: int, choices: np.ndarray) -> np.ndarray:
    if kind < 2:
        return np.arange(kind * len(choices))
    return np.flatnonzero(choices % 2)


def _choices(size: int) -> st.SearchStrategy[np.ndarray]:
    random_bytes = st.binary(min_size=size, max_size=size)
    return random_bytes.map(lambda drawn: np.frombuffer(drawn, dtype=np.uint8))


@st.composite
def sparse_vectors(draw: Draw, size: int) -> SparseVector:
    """Few different values, zero among them, at any positions of a layer."""
    indices = draw(subsets(size)).astype(np.int32)
    return SparseVector(size, indices, draw(levels(len(indices))))


@st.composite
def gradients(draw: Draw, param_spec: ParamSpec) -> dict[str, SparseVector]:
    """A sparse gradient for every layer, kept positions not left out."""
    return {layer: draw(sparse_vectors(size)) for layer, size in param_spec.sizes.items()}


def schedules() -> st.SearchStrategy[Schedule]:
    """Any schedule of a few rounds."""
    return st.builds(
        Schedule,
        delta_r=st.integers(1, 5),
        r_stop=st.integers(1, 20),
        granularity=st.sampled_from(["layer", "block", "entire"]),
        order=st.sampled_from(["backward", "forward"]),
    )
