"""The graph of a torch network, traced with torch.fx; the one file here that imports torch."""

import operator
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import fx, nn

from fedtiny.errors import ModelError
from fedtiny.graph.ir import Graph, Kind, Node, Pair

Spelling = str | Callable[..., Any]
RELU: tuple[Spelling, ...] = (F.relu, torch.relu, "relu", "relu_")
ADD: tuple[Spelling, ...] = (operator.add, operator.iadd, torch.add, "add", "add_")
MEAN: tuple[Spelling, ...] = (torch.mean, "mean")
FLATTEN: tuple[Spelling, ...] = (torch.flatten, "flatten")
ANY_RANK = (Kind.RELU, Kind.ADD, Kind.FLATTEN, Kind.DROPOUT)


def trace(model: nn.Module, shape: tuple[int, ...]) -> Graph:
    """The graph of a network, as it is in eval mode, for images of this shape.

    Raises an error that names the first layer that a graph does not have.
    """
    if len(shape) != 3:
        raise ModelError(f"a network reads images of (channels, height, width), not {shape}")
    training = model.training
    try:
        traced = fx.symbolic_trace(model.eval())
    except Exception as error:
        raise ModelError(f"the network cannot be traced: {error}") from error
    finally:
        model.train(training)
    graph = _Translation(traced, (shape[0], shape[1], shape[2])).run()
    state = model.state_dict()
    for name, expected in graph.tensors.items():
        if name not in state or tuple(state[name].shape) != expected:
            raise ModelError(f"'{name}' does not fit images of shape {shape}")
    return graph


class _Translation:
    def __init__(self, traced: fx.GraphModule, shape: tuple[int, int, int]) -> None:
        self.traced = traced
        self.nodes = [Node(Kind.INPUT, channels=shape[0], size=shape[1:])]
        self.flat = [False]
        """Whether a node gives rows of values and not planes."""
        self.numbers: dict[fx.Node, int] = {}

    def run(self) -> Graph:
        for node in self.traced.graph.nodes:
            if node.op == "output":
                return self._finish(node)
            self.numbers[node] = self._translate(node)
        raise ModelError("the network has no output")

    def _finish(self, node: fx.Node) -> Graph:
        output = node.args[0]
        if not isinstance(output, fx.Node) or self.numbers[output] != len(self.nodes) - 1:
            raise ModelError("the network must give one tensor, that of its last step")
        return Graph(tuple(self.nodes))

    def _translate(self, node: fx.Node) -> int:
        match node.op:
            case "placeholder":
                return self._placeholder()
            case "call_module":
                return self._module(node)
            case "call_function" | "call_method":
                return self._function(node)
        raise _unsupported(f"{node.op} {node.target}")

    def _placeholder(self) -> int:
        if self.numbers:
            raise ModelError("the network must take one tensor of images")
        return 0

    def _source(self, node: fx.Node, place: int = 0) -> int:
        source = node.args[place] if place < len(node.args) else node.kwargs.get("input")
        if not isinstance(source, fx.Node):
            raise _unsupported(f"{node.target} of something that is no tensor")
        return self.numbers[source]

    def _add(self, kind: Kind, *inputs: int, needs_flat: bool = False, **fields: Any) -> int:
        """Append a node; what it reads must be as flat as torch wants it."""
        flat = {self.flat[i] for i in inputs}
        if len(flat) > 1 or (kind not in ANY_RANK and flat != {needs_flat}):
            raise _unsupported(f"{kind.name.lower()} of a tensor of this rank")
        self.nodes.append(Node(kind, inputs, **fields))
        self.flat.append(kind in (Kind.FLATTEN, Kind.LINEAR) or flat == {True})
        return len(self.nodes) - 1

    def _module(self, node: fx.Node) -> int:
        name = str(node.target)
        module = self.traced.get_submodule(name)
        if any(name == known.name for known in self.nodes):
            raise _unsupported(f"'{name}' ({type(module).__name__}) twice in a pass")
        source = self._source(node)
        match module:
            case nn.Conv2d():
                return self._convolution(name, module, source)
            case nn.Linear():
                bias = module.bias is not None
                fields = {"name": name, "channels": module.out_features, "bias": bias}
                return self._add(Kind.LINEAR, source, needs_flat=True, **fields)
            case nn.BatchNorm2d() | nn.BatchNorm1d():
                return self._batch_norm(name, module, source)
            case nn.ReLU():
                return self._add(Kind.RELU, source)
            case nn.MaxPool2d():
                return self._max_pool(name, module, source)
            case nn.AvgPool2d():
                return self._mean_pool(name, module, source)
            case nn.AdaptiveAvgPool2d():
                size = _output_size(name, module.output_size)
                return self._add(Kind.ADAPTIVE_POOL, source, size=size)
            case nn.Flatten() if (module.start_dim, module.end_dim) == (1, -1):
                return self._add(Kind.FLATTEN, source)
            case nn.Dropout():
                return self._add(Kind.DROPOUT, source, probability=float(module.p))
            case nn.Identity():
                return source
            case nn.Sequential() if not len(module):
                return source
        raise _unsupported(f"'{name}' ({type(module).__name__})")

    def _convolution(self, name: str, module: nn.Conv2d, source: int) -> int:
        for wrong, what in (
            (module.groups != 1, "groups"),
            (tuple(module.dilation) != (1, 1), "dilation"),
            (module.padding_mode != "zeros", f"padding by {module.padding_mode}"),
            (module.padding == "same" and _even(module), "padding 'same' of an even kernel"),
        ):
            if wrong:
                raise _unsupported(f"'{name}' (Conv2d with {what})")
        return self._add(
            Kind.CONVOLUTION,
            source,
            name=name,
            channels=module.out_channels,
            kernel=_pair(module.kernel_size),
            stride=_pair(module.stride),
            padding=_padding(module),
            bias=module.bias is not None,
        )

    def _batch_norm(self, name: str, module: Any, source: int) -> int:
        if not (module.affine and module.track_running_stats and module.momentum is not None):
            raise _unsupported(f"'{name}' (batch norm without scale, statistics or momentum)")
        flat = isinstance(module, nn.BatchNorm1d)
        fields = {"epsilon": float(module.eps), "momentum": float(module.momentum)}
        return self._add(Kind.BATCH_NORM, source, needs_flat=flat, name=name, **fields)

    def _max_pool(self, name: str, module: nn.MaxPool2d, source: int) -> int:
        if module.ceil_mode or module.return_indices or _pair(module.dilation) != (1, 1):
            raise _unsupported(f"'{name}' (MaxPool2d with ceil_mode, indices or dilation)")
        return self._add(Kind.MAX_POOL, source, **_window(module))

    def _mean_pool(self, name: str, module: nn.AvgPool2d, source: int) -> int:
        if module.ceil_mode or module.divisor_override is not None:
            raise _unsupported(f"'{name}' (AvgPool2d with ceil_mode or divisor_override)")
        counted = module.count_include_pad
        return self._add(Kind.MEAN_POOL, source, count_padding=counted, **_window(module))

    def _function(self, node: fx.Node) -> int:
        target = node.target
        if target in RELU:
            return self._add(Kind.RELU, self._source(node))
        if target in ADD:
            if node.kwargs.get("alpha", 1) != 1 or len(node.args) != 2:
                raise _unsupported("add with a factor")
            return self._add(Kind.ADD, self._source(node), self._source(node, 1))
        if target in MEAN:
            return self._mean(node)
        if target in FLATTEN:
            return self._flatten(node)
        if target is F.adaptive_avg_pool2d:
            size = node.args[1] if len(node.args) > 1 else node.kwargs["output_size"]
            pooled = _output_size(_name(target), size)
            return self._add(Kind.ADAPTIVE_POOL, self._source(node), size=pooled)
        raise _unsupported(f"'{_name(target)}'")

    def _mean(self, node: fx.Node) -> int:
        dim = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", ())
        axes = tuple(dim) if isinstance(dim, tuple | list) else (dim,)
        if {a % 4 if isinstance(a, int) else a for a in axes} != {2, 3}:
            raise _unsupported(f"mean over {dim}; only over the pixels, (2, 3)")
        pooled = self._add(Kind.ADAPTIVE_POOL, self._source(node), size=(1, 1))
        keep = node.args[2] if len(node.args) > 2 else node.kwargs.get("keepdim", False)
        return pooled if keep else self._add(Kind.FLATTEN, pooled)

    def _flatten(self, node: fx.Node) -> int:
        start = node.args[1] if len(node.args) > 1 else node.kwargs.get("start_dim", 0)
        if start != 1 or len(node.args) > 2 or "end_dim" in node.kwargs:
            raise _unsupported("flatten of anything but all of an image")
        source = self._source(node)
        flat = self.nodes[source].kind in (Kind.FLATTEN, Kind.LINEAR)
        return source if flat else self._add(Kind.FLATTEN, source)


def _unsupported(what: str) -> ModelError:
    return ModelError(f"the native library does not have {what}")


def _name(target: Spelling) -> str:
    return target if isinstance(target, str) else getattr(target, "__name__", str(target))


def _pair(value: Any) -> Pair:
    first, second = value if isinstance(value, tuple | list) else (value, value)
    return int(first), int(second)


def _window(module: nn.MaxPool2d | nn.AvgPool2d) -> dict[str, Any]:
    sides = (module.kernel_size, module.stride, module.padding)
    return dict(zip(("kernel", "stride", "padding"), map(_pair, sides), strict=True))


def _even(module: nn.Conv2d) -> bool:
    return any(k % 2 == 0 for k in module.kernel_size)


def _padding(module: nn.Conv2d) -> Pair:
    if module.padding == "valid":
        return 0, 0
    if module.padding == "same":
        return module.kernel_size[0] // 2, module.kernel_size[1] // 2
    return _pair(module.padding)


def _output_size(name: str, size: Any) -> Pair:
    pair = size if isinstance(size, tuple | list) else (size, size)
    if any(part is None for part in pair):
        raise _unsupported(f"'{name}' (adaptive pooling that keeps a side)")
    return _pair(pair)
