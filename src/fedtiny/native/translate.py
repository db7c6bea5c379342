"""Describe a torch network for the native library, by tracing it with torch.fx."""

import operator
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import fx, nn

from fedtiny.errors import ModelError
from fedtiny.graph.ir import Graph, Kind, Pair
from fedtiny.models.param_spec import Shape


def describe(model: nn.Module, shape: Shape) -> Graph:
    """The description of a network that takes images of this shape.

    Raises an error that names the first layer that the native library does not have.
    """
    try:
        graph = fx.symbolic_trace(model)
    except Exception as error:
        raise ModelError(f"the network cannot be traced: {error}") from error
    return _Translation(graph, shape).run()


class _Translation:
    def __init__(self, graph: fx.GraphModule, shape: Shape) -> None:
        self.graph = graph
        self.net = Graph(shape)
        self.numbers: dict[fx.Node, int] = {}

    def run(self) -> Graph:
        for node in self.graph.graph.nodes:
            if node.op == "output":
                return self._finish(node)
            self.numbers[node] = self._translate(node)
        raise ModelError("the network has no output")

    def _finish(self, node: fx.Node) -> Graph:
        given = node.args[0]
        if not isinstance(given, fx.Node) or self.numbers[given] != len(self.net.nodes) - 1:
            raise ModelError("the network must give one tensor, that of its last step")
        return self.net

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
        given = node.args[place] if place < len(node.args) else node.kwargs.get("input")
        if not isinstance(given, fx.Node):
            raise _unsupported(f"{node.target} of something that is no tensor")
        return self.numbers[given]

    def _module(self, node: fx.Node) -> int:
        name = str(node.target)
        module = self.graph.get_submodule(name)
        if any(name == known.name for known in self.net.nodes):
            raise _unsupported(f"'{name}' ({type(module).__name__}) twice in a pass")
        source = self._source(node)
        match module:
            case nn.Conv2d():
                return self._convolution(name, module, source)
            case nn.Linear():
                return self.net.linear(
                    name, source, module.out_features, bias=module.bias is not None
                )
            case nn.BatchNorm2d() | nn.BatchNorm1d():
                return self._batch_norm(name, module, source)
            case nn.ReLU():
                return self.net.relu(source)
            case nn.MaxPool2d():
                return self._max_pool(name, module, source)
            case nn.AvgPool2d():
                return self._mean_pool(name, module, source)
            case nn.AdaptiveAvgPool2d():
                return self.net.adaptive_pool(source, _output_size(name, module.output_size))
            case nn.Flatten() if (module.start_dim, module.end_dim) == (1, -1):
                return self.net.flatten(source)
            case nn.Dropout():
                return self.net.dropout(source, module.p)
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
        return self.net.convolution(
            name,
            source,
            module.out_channels,
            kernel=_pair(module.kernel_size),
            stride=_pair(module.stride),
            padding=_padding(module),
            bias=module.bias is not None,
        )

    def _batch_norm(self, name: str, module: Any, source: int) -> int:
        if not (module.affine and module.track_running_stats and module.momentum is not None):
            raise _unsupported(f"'{name}' (batch norm without scale, statistics or momentum)")
        return self.net.batch_norm(name, source, epsilon=module.eps, momentum=module.momentum)

    def _max_pool(self, name: str, module: nn.MaxPool2d, source: int) -> int:
        if module.ceil_mode or module.return_indices or _pair(module.dilation) != (1, 1):
            raise _unsupported(f"'{name}' (MaxPool2d with ceil_mode, indices or dilation)")
        kernel = _pair(module.kernel_size)
        return self.net.max_pool(source, kernel, _pair(module.stride), _pair(module.padding))

    def _mean_pool(self, name: str, module: nn.AvgPool2d, source: int) -> int:
        if module.ceil_mode or module.divisor_override is not None:
            raise _unsupported(f"'{name}' (AvgPool2d with ceil_mode or divisor_override)")
        return self.net.mean_pool(
            source,
            _pair(module.kernel_size),
            _pair(module.stride),
            _pair(module.padding),
            count_padding=module.count_include_pad,
        )

    def _function(self, node: fx.Node) -> int:
        target = node.target
        if target in (F.relu, torch.relu, "relu", "relu_"):
            return self.net.relu(self._source(node))
        if target in (operator.add, operator.iadd, torch.add, "add", "add_"):
            if node.kwargs.get("alpha", 1) != 1 or len(node.args) != 2:
                raise _unsupported("add with a factor")
            return self.net.add(self._source(node), self._source(node, 1))
        if target in (torch.mean, "mean"):
            return self._mean(node)
        if target in (torch.flatten, "flatten"):
            return self._flatten(node)
        if target is F.adaptive_avg_pool2d:
            size = node.args[1] if len(node.args) > 1 else node.kwargs["output_size"]
            return self.net.adaptive_pool(self._source(node), _output_size(_name(target), size))
        raise _unsupported(f"'{_name(target)}'")

    def _mean(self, node: fx.Node) -> int:
        given = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", ())
        axes = tuple(given) if isinstance(given, tuple | list) else (given,)
        if {a % 4 if isinstance(a, int) else a for a in axes} != {2, 3}:
            raise _unsupported(f"mean over {given}; only over the pixels, (2, 3)")
        pooled = self.net.adaptive_pool(self._source(node), (1, 1))
        keep = node.args[2] if len(node.args) > 2 else node.kwargs.get("keepdim", False)
        return pooled if keep else self.net.flatten(pooled)

    def _flatten(self, node: fx.Node) -> int:
        start = node.args[1] if len(node.args) > 1 else node.kwargs.get("start_dim", 0)
        if start != 1 or len(node.args) > 2 or "end_dim" in node.kwargs:
            raise _unsupported("flatten of anything but all of an image")
        source = self._source(node)
        flat = self.net.nodes[source].kind in (Kind.FLATTEN, Kind.LINEAR)
        return source if flat else self.net.flatten(source)


def _unsupported(what: str) -> ModelError:
    return ModelError(f"the native library does not have {what}")


def _name(target: str | Callable[..., Any]) -> str:
    return target if isinstance(target, str) else getattr(target, "__name__", str(target))


def _pair(value: Any) -> Pair:
    first, second = value if isinstance(value, tuple | list) else (value, value)
    return int(first), int(second)


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
