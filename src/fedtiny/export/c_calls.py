"""A program's steps as C text: the constant tables that they read, and a statement each."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtiny.export import c_band_text
from fedtiny.export.c_plan import Plan, copied, is_in_place
from fedtiny.export.c_steps import Program, Step
from fedtiny.export.c_tables import Table
from fedtiny.export.c_text import NOTHING, Declarations, literal
from fedtiny.graph.arrays import Lowered

ARGUMENTS = {
    "convolve": "&{name}, {read}, {other}, {out}, {limit}",
    "convolve_groups": "&{name}, {read}, {other}, {out}, {limit}, {groups}",
    "convolve_planes": "&{name}, {read}, {scratch}, {other}, {out}, {limit}, {cut}",
    "connect": "&{name}, {read}, {out}, {limit}",
    "split": "{read}, {out}, {cut}",
    "spread": "{read}, {out}, {stride}",
    "normalise": "{held}_scales, {held}_shifts, {read}, {out}, {limit}",
    "group_norm": "{held}_scales, {held}_shifts, {epsilon}, {read}, {out}, {groups}",
    "layer_norm": "{held}_scales, {held}_shifts, {epsilon}, {read}, {out}",
    "add": "{read}, {other}, {out}, {limit}",
    "multiply": "{read}, {other}, {out}",
    "multiply_planes": "{read}, {other}, {out}",
    "multiply_matrices": "{read}, {other}, {out}",
    "rectify": "{read}, {out}, {limit}",
    "leaky_relu": "{read}, {out}, {slope}",
    "scale": "{read}, {out}, {factor}, {offset}",
    "softmax": "{read}, {out}, {axis}",
    "permute": "{read}, {out}, {ways}",
    "max_pool": "{window}, {read}, {out}",
    "mean_pool": "{window}, {read}, {out}, {counted}",
}
"""The arguments of functions that take more than what they read and what they give."""


@dataclass(frozen=True)
class Calls:
    """Writes the tables and statements of a program that has its place in memory."""

    program: Program
    plan: Plan
    tables: Mapping[str, Table]
    net: Lowered

    @cached_property
    def _holders(self) -> dict[str, str]:
        """By the name of a node, the step after which its tables are called: the first of them."""
        found: dict[str, str] = {}
        for step in self.program.steps:
            if step.action in (*LAYERS, *NORMS, "constant"):
                found.setdefault(step.node.name, step.name)
        return found

    def declarations(self) -> Declarations:
        """The tables of all steps; a layer that runs twice has its weights once."""
        made = Declarations()
        for step in self.program.steps:
            if step.action in LAYERS:
                self._layer(step, made)
            elif step.action in NORMS:
                self._norm(step, made)
            elif step.action == "constant":
                values = self.net.parameters[step.node.name]
                made.array(f"{self._holders[step.node.name]}_values", values.astype(np.float32))
        self._places(made)
        return made

    def _places(self, made: Declarations) -> None:
        """The tensors, and which rows of them the steps of bands read and give."""
        made.lines.append(self._tensors())
        for step in self._banded:
            c_band_text.declare(step, self.plan, made)

    def _layer(self, step: Step, made: Declarations) -> None:
        holder, table = self._holders[step.node.name], self.tables[step.node.name]
        offsets = self._offsets(step) if step.convolves else None
        fields = (
            *(table.inputs, table.taps, made.array(f"{step.name}_offsets", offsets)),
            *(made.array(f"{holder}_steps", table.steps), table.escape),
            made.array(f"{holder}_weights", table.weights),
            made.array(f"{holder}_scales", table.scales),
            made.array(f"{holder}_biases", table.biases),
        )
        inner = ", ".join(map(str, fields))
        made.lines.append(f"static const Layer {step.name} = {{\n    {inner},\n}};\n")

    def _norm(self, step: Step, made: Declarations) -> None:
        holder, norm = self._holders[step.node.name], self.net.norms[step.node.name]
        batch_norm = step.action == "normalise"
        scale, shift = norm.scale_and_shift() if batch_norm else (norm.gamma, norm.beta)
        made.array(f"{holder}_scales", scale.astype(np.float32))
        made.array(f"{holder}_shifts", shift.astype(np.float32))

    def _offsets(self, step: Step) -> NDArray[np.int32]:
        """What each tap reads for the first output, counted from the first pixel of a plane."""
        sides = zip(step.node.kernel, step.node.dilation, step.node.padding, strict=True)
        rows, columns = (np.arange(kernel) * gap - padding for kernel, gap, padding in sides)
        pitch = self.plan.tensors[step.gathered].pitch
        if step.cut is None:
            found = np.add.outer(rows * pitch, columns)
        else:
            (down, right), (top, left) = step.cut.stride, step.cut.margin
            part = self.plan.tensors[step.gathered].plane // (down * right)
            row, row_part = np.divmod(rows + top, down)
            column, column_part = np.divmod(columns + left, right)
            parts = np.add.outer(row_part * right, column_part)
            found = parts * part + np.add.outer(row * pitch, column)
        return found.reshape(-1).astype(np.int32)

    def _tensors(self) -> str:
        """All that statements name; nothing does if a value is joined in place and not read."""
        image = self._tensor(self.program.steps[0].gives)
        named = set(re.findall(r"tensor\d+", " ".join([image, *self.statements])))
        tensors = {t.name: t for t in self.plan.tensors.values() if t.name in named}
        return "".join(
            f"static const Tensor {t.name} = {{arena + {t.start}, "
            f"{_numbers(*t.shape, t.pitch, t.plane, t.origin)}}};\n"
            for t in tensors.values()
        )

    @cached_property
    def statements(self) -> list[str]:
        """What happens after the image is loaded."""
        return [*self._before_bands, *(line for _, lines in self.steps for line in lines)]

    @property
    def body(self) -> list[str]:
        """The same as C runs it: bands in a loop, and after each step what measures it."""
        ended = [
            [*lines, f"END_STEP({number});"] for number, (_, lines) in enumerate(self.steps, 1)
        ]
        count = len(self._banded)
        looped = c_band_text.loop(ended[:count], self.plan.count)
        return [*self._before_bands, *looped, *(line for lines in ended[count:] for line in lines)]

    @cached_property
    def _banded(self) -> list[Step]:
        return [step for step in self.program.steps if step.gives in self.plan.bands]

    @property
    def _before_bands(self) -> list[str]:
        return [line for step in self._banded for line in self.clearing(step)]

    @cached_property
    def steps(self) -> list[tuple[str, list[str]]]:
        """The statements of each step that has any, under a name for readers."""
        found = []
        for step in self.program.steps[1:]:
            calls = [] if is_in_place(step, self.plan) else [f"{c};" for c in self._calls(step)]
            if step.gives in self.plan.bands:
                opened = c_band_text.opened(step, self.plan, self._zero(step.gives))
                lines = [f"if ({opened})", *(f"    {call}" for call in calls)]
            else:
                lines = [*self.clearing(step), *calls]
            found.append((f"{step.action} {step.node.name}".strip(), lines))
        return [(name, lines) for name, lines in [*found, ("logits", self._final())] if lines]

    def _zero(self, value: int) -> str:
        """What stands for 0 in a value."""
        return "0.0f"

    def _final(self) -> list[str]:
        """What gives the logits after all steps."""
        return [f"flatten({self._tensor(self.program.steps[-1].gives)}, logits);"]

    def clearing(self, step: Step) -> list[str]:
        """What must be done before a step whose planes are surrounded by zeros."""
        sizes = {v: self.plan.cleared.get(v) for v in (step.scratch, step.gives) if v is not None}
        return [f"clear({self._tensor(v)}, {size});" for v, size in sizes.items() if size]

    def _calls(self, step: Step) -> Iterator[str]:
        """Most steps are one call; what is joined is copied piece by piece."""
        node, out = step.node, self.plan.tensors[step.gives]
        match step.action:
            case "concatenate":
                for part, at in copied(step, self.plan):
                    yield f"copy(&{part.name}, 0, &{out.name}, {at}, {_numbers(*part.shape)})"
            case "slice":
                skipped = node.start * self.plan.tensors[step.reads[0]].ways[node.axis]
                read = self._tensor(step.reads[0])
                yield f"copy({read}, {skipped}, &{out.name}, 0, {_numbers(*out.shape)})"
            case "flatten" if out.is_plain:
                yield f"flatten({self._tensor(step.reads[0])}, {out.name}.values)"
            case "flatten":
                yield f"reshape({self._tensor(step.reads[0])}, &{out.name})"
            case "constant":
                yield f"load_values({self._holders[node.name]}_values, &{out.name})"
            case _:
                arguments = ARGUMENTS.get(step.action, "{read}, {out}")
                function = "connect_all" if step.gives in self._complete else step.action
                yield f"{function}({arguments.format(**self._terms(step))})"

    @cached_property
    def _complete(self) -> set[int]:
        """What is given by layers that keep all weights, if these are worth code of their own."""
        found = {
            step.gives: self.tables[step.node.name]
            for step in self.program.steps
            if step.action == "connect" and self.plan.tensors[step.reads[0]].plane == 1
        }
        weights = {value: t.weights.size for value, t in found.items() if t.steps is None}
        return set(weights) if sum(weights.values()) >= WORTH_CODE else set()

    def _terms(self, step: Step) -> dict[str, Any]:
        """What a call may name."""
        node = step.node
        read, *others = (self._tensor(value) for value in step.reads)
        ways = self.plan.tensors[step.reads[0]].ways
        banded = step.gives in self.plan.bands
        top = "rows.above" if banded else node.padding[0]
        sides = (*node.kernel, *node.stride, top, node.padding[1])
        margin = (0 if banded else step.cut.margin[0], step.cut.margin[1]) if step.cut else ()
        terms = {
            "name": step.name,
            "held": self._holders.get(node.name, ""),
            "read": read,
            "other": others[0] if others else NOTHING,
            "out": self._tensor(step.gives),
            "scratch": NOTHING if step.scratch is None else self._tensor(step.scratch),
            "limit": step.limit,
            "groups": node.groups,
            "stride": _numbers(*node.stride),
            "cut": _numbers(*step.cut.stride, *margin) if step.cut else "",
            "window": f"&(const Window){{{_numbers(*sides)}}}",
            "counted": int(node.count_padding),
            "axis": node.axis,
            "ways": _numbers(*(ways[axis] for axis in node.order)),
            **{term: literal(getattr(node, term)) for term in NUMBERS},
        }
        return {**terms, **c_band_text.views(step)} if banded else terms

    def _tensor(self, value: int) -> str:
        return f"&{self.plan.tensors[value].name}"


LAYERS = ("convolve", "convolve_groups", "convolve_planes", "connect")
NORMS = ("normalise", "group_norm", "layer_norm")
WORTH_CODE = 1 << 14  # weights
NUMBERS = ("epsilon", "slope", "factor", "offset")


def functions(statements: Iterable[str]) -> set[str]:
    """The functions that statements call.

    >>> functions(["if (open_band(&rows))", "    silu(&tensor1, 12);"]) == {"open_band", "silu"}
    True
    """
    return {re.split(r"\W", line.strip().removeprefix("if ("))[0] for line in statements}


def _numbers(*numbers: int | str) -> str:
    return ", ".join(map(str, numbers))
