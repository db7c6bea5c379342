"""A program's steps as C text: the constant tables that they read, and a statement each."""

import re
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtiny.errors import ExportError
from fedtiny.export.c_program import Plan, Program, Step, is_in_place
from fedtiny.export.network import quantise
from fedtiny.graph.arithmetic import Norm, Weights

MAX_ESCAPE = 255
Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Table:
    """A layer's weights as `runtime/layer.c` reads them."""

    inputs: int
    taps: int
    steps: NDArray[np.uint8] | None
    escape: int
    weights: Array
    scales: NDArray[np.float32] | None
    biases: NDArray[np.float32] | None
    max_kept: int


def table(weights: Weights, values: str) -> Table:
    """The table of a layer, sparse or complete, whichever is smaller."""
    if not np.isfinite(weights.values).all():
        raise ExportError("the model has a weight that is no finite number; it cannot be exported")
    numbers: Array = weights.values
    scales = None
    if values == "int8":
        numbers, scales = quantise(weights)
    places, numbers = weights.positions[numbers != 0], numbers[numbers != 0]
    inputs, taps = prod(weights.shape[1:]), prod(weights.shape[2:])
    escape, steps, read = _coded(places, weights.size)
    if steps.nbytes + len(read) * numbers.itemsize < weights.size * numbers.itemsize:
        most = int(np.bincount(read // inputs, minlength=1).max())
        kept = _spread(numbers, np.searchsorted(read, places), len(read))
        return Table(inputs, taps, steps, escape, kept, scales, weights.bias, most)
    complete = _spread(numbers, places, weights.size)
    return Table(inputs, taps, None, 0, complete, scales, weights.bias, inputs)


def _spread(numbers: Array, places: NDArray[np.int64], size: int) -> Array:
    """Numbers at their places among zeros."""
    spread = np.zeros(size, dtype=numbers.dtype)
    spread[places] = numbers
    return spread


def _coded(
    places: NDArray[np.int64], size: int
) -> tuple[int, NDArray[np.uint8], NDArray[np.int64]]:
    """The best escape, the coded steps, and the places that they lead to.

    Where a step is too long for two bytes, places of weights that are zero come between.
    """
    gaps = np.diff(places, prepend=-1, append=size) - 1
    escape = _best_escape(gaps)
    longest = _longest(escape)
    rests, gaps = np.divmod(gaps, longest + 1)
    spread = np.insert(gaps, np.repeat(np.arange(len(gaps)), rests), longest)
    return escape, _bytes(spread, escape), np.cumsum(spread + 1)[:-1] - 1


def _longest(escape: int) -> int:
    return escape + 256 * (MAX_ESCAPE - escape) + 255


def _best_escape(gaps: NDArray[np.int64]) -> int:
    found, counts = np.unique(gaps, return_counts=True)
    sizes = []
    for escape in range(MAX_ESCAPE + 1):
        rests, last = np.divmod(found, _longest(escape) + 1)
        sizes.append(int((counts * (3 * rests + 1 + (last >= escape))).sum()))
    return int(np.argmin(sizes))


def _bytes(gaps: NDArray[np.int64], escape: int) -> NDArray[np.uint8]:
    long = gaps >= escape
    high, low = np.divmod(gaps - escape, 256)
    ends = np.cumsum(1 + long)
    coded = np.empty(int(ends[-1]), dtype=np.uint8)
    coded[ends - 1] = np.where(long, low, gaps)
    coded[ends[long] - 2] = escape + high[long]
    return coded


LINE = 100
TYPES = {"int8": "int8_t", "uint8": "uint8_t", "int32": "int32_t", "float32": "float"}


def array(name: str, values: NDArray[Any]) -> str:
    """A constant array.

    >>> import numpy as np
    >>> print(array("scales", np.array([1, 0.1], dtype=np.float32)), end="")
    static const float scales[2] = {
        1.0f, 0.1f,
    };
    """
    suffix = "f" if values.dtype.kind == "f" else ""
    text = " ".join(f"{number}{suffix}," for number in values.reshape(-1).astype(str).tolist())
    return (
        f"static const {TYPES[values.dtype.name]} {name}[{values.size}] = {{\n{_lines(text)}}};\n"
    )


def _lines(text: str) -> str:
    """Text in indented lines; much faster for long tables than textwrap."""
    lines, start, most = [], 0, LINE - 4
    while len(text) - start > most:
        end = text.rindex(" ", start, start + most + 1)
        lines.append(text[start:end])
        start = end + 1
    lines.append(text[start:])
    return "".join(f"    {line}\n" for line in lines)


def string(text: str) -> str:
    r"""A string literal of UTF-8 bytes.

    >>> print(string('a "b"?'))
    "a \"b\"\?"
    """
    return '"' + "".join(_character(byte) for byte in text.encode()) + '"'


def _character(byte: int) -> str:
    character = chr(byte)
    if character in '"\\?':  # two question marks could begin a trigraph
        return f"\\{character}"
    return character if 32 <= byte < 127 else f"\\{byte:03o}"


def comment(lines: Iterable[str]) -> str:
    """A block comment of paragraphs; nothing in them can end it.

    >>> print(comment(["one */ two"]))
    /*
     * one * / two
     */
    """
    wrapped = []
    for line in lines:
        plain = line.encode("ascii", "replace").decode()
        apart = re.sub(r"\*(?=/)|/(?=\*)|\?(?=\?)", r"\g<0> ", plain)
        wrapped += textwrap.wrap(apart, LINE - 3, subsequent_indent="  ") or [""]
    return "\n".join(["/*", *(f" * {line}".rstrip() for line in wrapped), " */"])


NOTHING = "NULL"
CALLS = {
    "convolve": "convolve(&{name}, {read}, {other}, &{out}, {floor})",
    "connect": "connect(&{name}, {read}, &{out}, {floor})",
    "normalise": "normalise({name}_scales, {name}_shifts, {read}, &{out}, {floor})",
    "add": "add({read}, {other}, &{out}, {floor})",
    "rectify": "rectify({read}, &{out}, {floor})",
    "flatten": "flatten({read}, {out}.values)",
    "split": "split({read}, &{out}, {cut})",
    "max_pool": "max_pool({window}, {read}, &{out})",
    "mean_pool": "mean_pool({window}, {read}, &{out}, {counted})",
    "adaptive_pool": "adaptive_pool({read}, &{out})",
}


@dataclass
class Declarations:
    """Constant tables as C text, and how many bytes they take."""

    lines: list[str] = field(default_factory=list)
    size: int = 0

    def array(self, name: str, values: NDArray[Any] | None) -> str:
        """Declare an array, if there is something in it; gives what to call it."""
        if values is None or not values.size:
            return NOTHING
        self.lines.append(array(name, values))
        self.size += values.nbytes
        return name


@dataclass(frozen=True)
class Calls:
    """Writes the tables and statements of a program that has its place in memory."""

    program: Program
    plan: Plan
    tables: Mapping[str, Table]
    norms: Mapping[str, Norm]

    def declarations(self) -> Declarations:
        """The tables of all steps."""
        made = Declarations()
        for step in self.program.steps:
            if step.action in ("convolve", "connect"):
                self._layer(step, made)
            elif step.action == "normalise":
                scale, shift = self.norms[step.node.name].scale_and_shift()
                made.array(f"{step.name}_scales", scale.astype(np.float32))
                made.array(f"{step.name}_shifts", shift.astype(np.float32))
        made.lines.append(self._tensors())
        return made

    def _layer(self, step: Step, made: Declarations) -> None:
        name, table = step.name, self.tables[step.node.name]
        offsets = self._offsets(step) if step.action == "convolve" else None
        fields = (
            *(table.inputs, table.taps, made.array(f"{name}_offsets", offsets)),
            *(made.array(f"{name}_steps", table.steps), table.escape),
            made.array(f"{name}_weights", table.weights),
            made.array(f"{name}_scales", table.scales),
            made.array(f"{name}_biases", table.biases),
        )
        inner = ", ".join(map(str, fields))
        made.lines.append(f"static const Layer {name} = {{\n    {inner},\n}};\n")

    def _offsets(self, step: Step) -> NDArray[np.int32]:
        """What each tap reads for the first output, counted from the first pixel of a plane."""
        sides = zip(step.node.kernel, step.node.padding, strict=True)
        rows, columns = (np.arange(kernel) - padding for kernel, padding in sides)
        pitch = self.plan.tensors[step.reads[0]].pitch
        if step.cut is None:
            found = np.add.outer(rows * pitch, columns)
        else:
            (down, right), (top, left), size = step.cut.stride, step.cut.margin, step.cut.size
            row, row_part = np.divmod(rows + top, down)
            column, column_part = np.divmod(columns + left, right)
            parts = np.add.outer(row_part * right, column_part)
            found = parts * (size[0] * size[1]) + np.add.outer(row * pitch, column)
        return found.reshape(-1).astype(np.int32)

    def _tensors(self) -> str:
        tensors = {tensor.name: tensor for tensor in self.plan.tensors.values()}
        return "".join(
            f"static const Tensor {t.name} = {{arena + {t.start}, "
            f"{_numbers(*t.shape, t.pitch, t.plane, t.origin)}}};\n"
            for t in tensors.values()
        )

    def statements(self) -> list[str]:
        """What happens after the image is loaded."""
        lines = []
        for step in self.program.steps[1:]:
            if is_in_place(step, self.plan):
                continue
            lines += self.clearing(step)
            lines.append(f"{self._call(step)};")
        return [*lines, f"flatten({self._tensor(self.program.steps[-1].gives)}, logits);"]

    def clearing(self, step: Step) -> list[str]:
        """What must be done before a step whose planes are surrounded by zeros."""
        size = self.plan.cleared.get(step.gives)
        return [f"clear({self._tensor(step.gives)}, {size});"] if size else []

    def _call(self, step: Step) -> str:
        node = step.node
        read, *others = (self._tensor(value) for value in step.reads)
        return CALLS[step.action].format(
            name=step.name,
            read=read,
            other=others[0] if others else NOTHING,
            out=self.plan.tensors[step.gives].name,
            floor="RELU" if step.relu or step.action == "rectify" else "LINEAR",
            window=f"&(const Window){{{_numbers(*node.kernel, *node.stride, *node.padding)}}}",
            counted=int(node.count_padding),
            cut=_numbers(*step.cut.stride, *step.cut.margin) if step.cut else "",
        )

    def _tensor(self, value: int) -> str:
        return f"&{self.plan.tensors[value].name}"


def _numbers(*numbers: int) -> str:
    return ", ".join(map(str, numbers))
