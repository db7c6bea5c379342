"""A program's steps as C text: the constant tables that they read, and a statement each."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtiny.export.c_plan import Plan, is_in_place
from fedtiny.export.c_program import Program, Step
from fedtiny.export.c_tables import Table
from fedtiny.export.c_text import NOTHING, Declarations
from fedtiny.graph.arithmetic import Norm

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
