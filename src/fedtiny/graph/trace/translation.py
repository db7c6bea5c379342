"""A torch.fx graph, node by node, as a graph of ours."""

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from torch import fx, nn

from fedtiny.errors import ModelError
from fedtiny.graph.ir import Graph, Kind, Node, Shape
from fedtiny.graph.operations import OPERATIONS
from fedtiny.graph.passes import without_idle
from fedtiny.graph.trace.views import ALL_IMAGES, IMAGES, View, full_axis, move

PLACES = {2: (0,), 3: (0, 2), 4: (0, 1, 2)}
"""The axes of a node that those of a tensor of images, signals or rows are, by its rank."""


MOVES = (Kind.SLICE, Kind.RESHAPE, Kind.PERMUTE)
"""Which tracing makes before it knows that they are read."""


def unsupported(what: str) -> ModelError:
    """A network asks for what a graph does not have."""
    return ModelError(f"fedtiny's graph does not have {what}")


@dataclass(frozen=True)
class Parameter:
    """A learned tensor of a network that no step has read yet."""

    name: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class LogProbabilities:
    """A log-softmax of the logits, which a network may give and nothing may read."""

    logits: View


Form = Callable[..., Any]
"""Translates a call of a module, or of a function."""


class Translation:
    """The nodes made so far, and what each node of torch.fx has become."""

    def __init__(
        self, model: nn.Module, shape: tuple[int, ...], modules: Form, functions: Form
    ) -> None:
        places = PLACES[len(shape) + 1]
        sides = [1, 1, 1]
        for place, side in zip(places, shape, strict=True):
            sides[place] = side
        self.model, self._modules, self._functions = model, modules, functions
        self.nodes = [Node(Kind.INPUT, channels=sides[0], size=(sides[1], sides[2]))]
        self.shapes: list[Shape] = [(sides[0], sides[1], sides[2])]
        self.image = View.of(0, self.shapes[0], places)
        self.values: dict[fx.Node, Any] = {}
        self.module = ""

    def run(self, calls: fx.Graph) -> Graph:
        """The whole graph."""
        for node in calls.nodes:
            if node.op == "output":
                return self._graph(self._value(node.args[0]))
            self._translate(node)
        raise ModelError("the network has no output")

    def value_of(self, wanted: fx.Node) -> Any:
        """What one of the calls so far gives: a tensor, or what follows from shapes."""
        for node in wanted.graph.nodes:
            self._translate(node)
        if self._counts_images(wanted):
            raise unsupported("a choice by the number of images in a batch")
        return self.values[wanted]

    def _counts_images(self, node: fx.Node) -> bool:
        """Whether a number was worked out of how many images there are."""
        value = self.values[node]
        if isinstance(value, View | Parameter):
            return False
        many = isinstance(value, int) and value >= IMAGES
        return many or any(map(self._counts_images, node.all_input_nodes))

    def _translate(self, node: fx.Node) -> None:
        stack = node.meta.get("nn_module_stack") or {"": None}
        self.module = list(stack)[-1]
        match node.op:
            case "placeholder":
                if self.values:
                    raise ModelError("the network must take one tensor of images")
                self.values[node] = self.image
            case "get_attr":
                self.values[node] = self._parameter(str(node.target))
            case "call_module":
                self.module = str(node.target)
                module = self.model.get_submodule(self.module)
                self.values[node] = self._modules(self, module, *self._arguments(node))
            case "call_function" | "call_method":
                args, kwargs = self._values(node)
                self.values[node] = self._functions(self, node.target, args, kwargs)
        if self._writes(node):
            self._rewrite(node)

    def _writes(self, node: fx.Node) -> bool:
        """Whether a call changes the tensor that it reads."""
        if node.op == "call_module":
            return bool(getattr(self.model.get_submodule(str(node.target)), "inplace", False))
        name = getattr(node.target, "__name__", str(node.target))
        method = name.endswith("_") and not name.endswith("__")
        return method or node.kwargs.get("inplace") is True

    def _rewrite(self, node: fx.Node) -> None:
        """What shares its values with a tensor that was changed in place has changed too."""
        changed = next(iter(node.all_input_nodes), node)
        before, after = self.values[changed], self.values[node]
        if not isinstance(before, View) or not isinstance(after, View):
            return
        same = before.axes == after.axes and self.shapes[before.node] == self.shapes[after.node]
        for other, value in self.values.items():
            if isinstance(value, View) and value.node == before.node:
                if not same and other is not changed:
                    raise unsupported(f"'{node.target}' in place of a part of a tensor")
                self.values[other] = replace(value, node=after.node) if same else after

    def _graph(self, output: Any) -> Graph:
        log_softmax = isinstance(output, LogProbabilities)
        output = output.logits if log_softmax else output
        flat = isinstance(output, View) and output.is_flat
        last = self.arranged(output, (0,)) if flat else None
        if last != len(self.nodes) - 1:
            raise ModelError("the network must give one tensor, that of its last step")
        found = without_idle(Graph(tuple(self.nodes)), MOVES)
        return replace(found, log_softmax=log_softmax)

    def _parameter(self, name: str) -> Parameter:
        found = operator.attrgetter(name)(self.model)
        if not isinstance(found, nn.Parameter):
            raise unsupported(f"'{name}' (a tensor that is not learned)")
        return Parameter(name, tuple(found.shape))

    def _value(self, argument: Any) -> Any:
        return fx.node.map_arg(argument, lambda node: self.values[node])

    def _values(self, node: fx.Node) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if any(isinstance(self.values[n], LogProbabilities) for n in node.all_input_nodes):
            raise unsupported("a log-softmax anywhere but at the end of a network")
        return self._value(node.args), self._value(node.kwargs)

    def _arguments(self, node: fx.Node) -> list[View]:
        args, kwargs = self._values(node)
        found = [*args, *kwargs.values()]
        if not all(isinstance(value, View | Parameter) for value in found):
            raise unsupported(f"'{node.target}' of something that is no tensor")
        return [self.view(value) for value in found]

    def add(self, kind: Kind, *inputs: int, **fields: Any) -> int:
        """Append a node and give its number."""
        node = Node(kind, inputs, module=self.module, **fields)
        sources = [self.shapes[i] for i in inputs]
        if trouble := OPERATIONS[kind].misfit(node, sources):
            raise ModelError(f"step {len(self.nodes)} ({kind.name.lower()}) {trouble}")
        self.nodes.append(node)
        self.shapes.append(OPERATIONS[kind].shape(node, sources))
        return len(self.nodes) - 1

    def view(self, value: View | Parameter) -> View:
        """A tensor whose values lie in a node; a parameter gets one of its own."""
        if isinstance(value, View):
            return value
        *_, rows, columns = (1, 1, *value.shape)
        channels = prod(value.shape) // max(1, rows * columns)
        size = {"channels": channels, "size": (rows, columns)}
        number = self.add(Kind.PARAMETER, name=value.name, shape=value.shape, **size)
        parts = tuple(full_axis(axis, side) for axis, side in enumerate(self.shapes[number]))
        found = View(number, parts).reshaped(value.shape)
        assert found is not None, "a shape of its own"
        return found

    def plain(self, view: View) -> View:
        """A tensor whose values are all in its node."""
        if any(view.pad):
            raise unsupported(f"padding before anything but a convolution ({self.module})")
        if view.expanded:
            raise unsupported(f"an expanded tensor in anything but a product ({self.module})")
        return view

    def arranged(self, view: View, places: Sequence[int]) -> int:
        """The node that has the axes of a tensor, but for its images, in these places."""
        axes = self.plain(view).axes
        if axes[:1] not in ((ALL_IMAGES,), ((),)) or len(axes) != len(places) + 1:
            raise unsupported(f"a tensor of shape {_shown(view)} here ({self.module})")
        wanted = [axes[1 + places.index(p)] if p in places else () for p in (0, 1, 2)]
        shape = self.shapes[view.node]
        if all(parts == full_axis(axis, shape[axis]) for axis, parts in enumerate(wanted)):
            return view.node
        moved = move(wanted)
        if len(moved.sizes) > 3:
            raise unsupported(f"a permutation of {len(moved.sizes)} axes ({self.module})")
        number = view.node
        if moved.order != tuple(range(len(moved.order))):
            number = self.reshape(number, (*moved.sizes, 1, 1)[:3])
            order = (*moved.order, *range(len(moved.order), 3))
            number = self.add(Kind.PERMUTE, number, order=order)
        channels, rows, columns = (prod(part.size for part in parts) for parts in wanted)
        return self.reshape(number, (channels, rows, columns))

    def reshape(self, number: int, shape: Sequence[int]) -> int:
        """A node that gives the same values, in their order, in this shape."""
        channels, rows, columns = shape
        if self.shapes[number] == (channels, rows, columns):
            return number
        if (rows, columns) == (1, 1):
            return self.add(Kind.FLATTEN, number)
        return self.add(Kind.RESHAPE, number, channels=channels, size=(rows, columns))

    def in_places(self, view: View) -> tuple[int, tuple[int, ...]]:
        """A node that has every axis of a tensor in a place of its own, and those places."""
        shape, free = self.shapes[view.node], [0, 1, 2]
        found = [view.place(axis, shape) for axis in range(1, len(view.axes))]
        for place in (p for p in found if p is not None):
            if place in free:
                free.remove(place)
        sizes = view.shape[1:]
        if len(found) <= 3 and all(
            p is not None or n == 1 for p, n in zip(found, sizes, strict=True)
        ):
            places = tuple(free.pop(0) if place is None else place for place in found)
        elif len(view.axes) in PLACES:
            places = PLACES[len(view.axes)]
        else:
            raise unsupported(f"a tensor of shape {_shown(view)} here ({self.module})")
        return self.arranged(view, places), places

    def made(self, number: int, places: Sequence[int]) -> View:
        """What a node gives, as a tensor whose axes have these places."""
        return View.of(number, self.shapes[number], places)

    def mapped(self, kind: Kind, view: View, **fields: Any) -> View:
        """A node that computes value by value, whatever the axes are."""
        return replace(view, node=self.add(kind, self.plain(view).node, **fields))

    def flattened(self, view: View) -> View:
        """All values of an image in one row."""
        if view.is_flat:
            return view
        row = view.reshaped((view.shape[0], prod(view.shape[1:])))
        assert row is not None, "all parts, one after the other"
        return self.row(row)

    def row(self, view: View) -> View:
        """A tensor that has just become one row an image; a step says so."""
        number = self.arranged(view, (0,))
        if number == view.node:
            number = self.add(Kind.FLATTEN, number)
        return self.made(number, (0,))


def _shown(view: View) -> str:
    return "(" + ", ".join(["images", *map(str, view.shape[1:])]) + ")"
