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
            match node.op:
                case "placeholder":
                    if self.numbers:
                        raise ModelError("the network must take one tensor of images")
                    self.numbers[node] = 0
                case "call_module":
                    self.numbers[node] = self._module(node)
                case "call_function" | "call_method":
                    self.numbers[node] = self._function(node)
                case "output":
                    (output,) = node.args
                    last = self.numbers.get(output) if isinstance(output, fx.Node) else None
                    if last != len(self.nodes) - 1:
                        raise ModelError("the network must give one tensor, that of its last step")
                    return Graph(tuple(self.nodes))
                case _:
                    raise _unsupported(f"{node.op} {node.target}")
        raise ModelError("the network has no output")

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
        if trouble := _trouble(module):
            raise _unsupported(f"'{name}' ({trouble})")
        source = self._source(node)
        held: dict[str, Any] = {"name": name, "bias": getattr(module, "bias", None) is not None}
        match module:
            case nn.Conv2d():
                held |= {"channels": module.out_channels, **_window(module)}
                return self._add(Kind.CONVOLUTION, source, **held)
            case nn.Linear():
                held |= {"channels": module.out_features}
                return self._add(Kind.LINEAR, source, needs_flat=True, **held)
            case nn.BatchNorm2d() | nn.BatchNorm1d():
                flat = isinstance(module, nn.BatchNorm1d)
                numbers = {"epsilon": float(module.eps), "momentum": float(module.momentum or 0)}
                return self._add(Kind.BATCH_NORM, source, needs_flat=flat, name=name, **numbers)
            case nn.ReLU():
                return self._add(Kind.RELU, source)
            case nn.MaxPool2d():
                return self._add(Kind.MAX_POOL, source, **_window(module))
            case nn.AvgPool2d():
                counted = module.count_include_pad
                return self._add(Kind.MEAN_POOL, source, count_padding=counted, **_window(module))
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


def _trouble(module: nn.Module) -> str:
    """What a module asks for that a graph does not have, or nothing."""
    match module:
        case nn.Conv2d():
            even = any(k % 2 == 0 for k in module.kernel_size)
            troubles = {
                "groups": module.groups != 1,
                "dilation": tuple(module.dilation) != (1, 1),
                f"padding by {module.padding_mode}": module.padding_mode != "zeros",
                "padding 'same' of an even kernel": module.padding == "same" and even,
            }
            return next((f"Conv2d with {what}" for what, is_so in troubles.items() if is_so), "")
        case nn.BatchNorm2d() | nn.BatchNorm1d():
            if not (module.affine and module.track_running_stats and module.momentum is not None):
                return "batch norm without scale, statistics or momentum"
        case nn.MaxPool2d():
            if module.ceil_mode or module.return_indices or _pair(module.dilation) != (1, 1):
                return "MaxPool2d with ceil_mode, indices or dilation"
        case nn.AvgPool2d():
            if module.ceil_mode or module.divisor_override is not None:
                return "AvgPool2d with ceil_mode or divisor_override"
    return ""


def _window(module: Any) -> dict[str, Any]:
    padding = module.padding
    if padding == "same":
        padding = tuple(side // 2 for side in module.kernel_size)
    sides = (module.kernel_size, module.stride, 0 if padding == "valid" else padding)
    return dict(zip(("kernel", "stride", "padding"), map(_pair, sides), strict=True))


def _output_size(name: str, size: Any) -> Pair:
    if size is None or (isinstance(size, tuple | list) and None in size):
        raise _unsupported(f"'{name}' (adaptive pooling that keeps a side)")
    return _pair(size)
