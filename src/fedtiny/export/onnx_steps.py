"""An ONNX graph under construction.

What is flat has two axes, everything else four.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtiny.graph.arrays import Lowered
from fedtiny.graph.ir import Node

INPUT = "image"
Attributes = dict[str, Any]


class Steps:
    """The nodes and arrays of an ONNX graph under construction."""

    def __init__(self, onnx: Any, net: Lowered) -> None:
        self.onnx, self.net = onnx, net
        self.nodes: list[Any] = []
        self.initializers: list[Any] = []
        self.known: set[str] = set()
        """The names of arrays that are there."""
        self.rows: set[str] = set()
        """The names of what has two axes."""

    def add(self, operator: str, inputs: list[str], out: str, **attributes: Any) -> str:
        """Append an operator."""
        self.nodes.append(self.onnx.helper.make_node(operator, inputs, [out], **attributes))
        return out

    def array(self, name: str, array: NDArray[Any]) -> str:
        """A constant, which several operators may read."""
        if name not in self.known:
            self.known.add(name)
            self.initializers.append(self.onnx.numpy_helper.from_array(array, name))
        return name

    def numbers(self, name: str, *numbers: int) -> str:
        """A list of whole numbers."""
        return self.array(name, np.array(numbers, dtype=np.int64))

    def number(self, value: float) -> str:
        """A single number."""
        return self.array(f"number.{value!r}", np.array(value, dtype=np.float32))

    def row(self, name: str) -> str:
        """The same with two axes."""
        if name in self.rows or f"{name}.row" in self.rows:
            return name if name in self.rows else f"{name}.row"
        self.rows.add(f"{name}.row")
        return self.add("Flatten", [name], f"{name}.row", axis=1)

    def image(self, name: str) -> str:
        """The same with four axes."""
        if name not in self.rows:
            return name
        if f"{name}.image" not in self.known:
            self.known.add(f"{name}.image")
            shape = self.numbers("shape.row", 0, -1, 1, 1)
            self.add("Reshape", [name, shape], f"{name}.image")
        return f"{name}.image"

    def like(self, out: str, read: str) -> str:
        """Note that an output has the axes of what it was made of."""
        if read in self.rows:
            self.rows.add(out)
        return out

    def node(self, number: int) -> Node:
        """The step of that number."""
        return self.net.graph.nodes[number]


Form = Callable[[Steps, int, list[str], str], str]


def plain(operator: str, attributes: Callable[[Node], Attributes] = lambda node: {}) -> Form:
    """An operator on values, whatever their axes."""
    return lambda s, number, read, out: s.like(
        s.add(operator, read, out, **attributes(s.node(number))), read[0]
    )


def on_images(operator: str, attributes: Callable[[Node], Attributes] = lambda node: {}) -> Form:
    """An operator on four axes; weights come after what it reads."""

    def form(s: Steps, number: int, read: list[str], out: str) -> str:
        node = s.node(number)
        return s.add(operator, [s.image(name) for name in read], out, **attributes(node))

    return form


def of_two(operator: str) -> Form:
    """A sum or product, of two with the same number of axes."""

    def form(s: Steps, number: int, read: list[str], out: str) -> str:
        if len({name in s.rows for name in read}) > 1:
            read = [s.image(name) for name in read]
        return s.like(s.add(operator, read, out), read[0])

    return form
