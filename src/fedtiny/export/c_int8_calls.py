"""A program's steps as C text where activations are int8: tables of integers, and statements."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtiny.export.c_calls import LAYERS, NORMS, Calls
from fedtiny.export.c_steps import Program, Step
from fedtiny.export.c_text import Declarations, literal
from fedtiny.export.integers import TERM_SHIFT, Arithmetic
from fedtiny.export.quantize import TABLES, is_logits

ARGUMENTS = {
    "convolve": "&{name}, {read}, {other}, {out}",
    "convolve_all": "&{name}, {read}, {other}, {out}",
    "convolve_groups": "&{name}, {read}, {other}, {out}, {groups}",
    "convolve_planes": "&{name}, {read}, {scratch}, {other}, {out}, {cut}",
    "connect": "&{name}, {read}, {out}",
    "connect_logits": "&{name}, {read}, logits",
    "look_up": "{name}_table, {read}, {out}",
    "split": "{read}, {out}, {cut}",
    "add": "{read}, {other}, {out}, {by_first}, {by_second}, {start}, {range}",
    "multiply": "{read}, {other}, {out}, {zeros}, {product}, {start}",
    "multiply_planes": "{read}, {other}, {out}, {zeros}, {product}, {start}",
    "multiply_matrices": "{read}, {other}, {out}, {zeros}, {product}, {start}",
    "group_norm": "&{name}, {read}, {out}, {groups}",
    "layer_norm": "&{name}, {read}, {out}",
    "softmax": "&{name}, {read}, {out}, {axis}",
    "permute": "{read}, {out}, {ways}",
    "max_pool": "{window}, {read}, {out}",
    "mean_pool": "{window}, {means}, {read}, {out}, {counted}",
    "adaptive_pool": "{means}, {read}, {out}",
}
"""The arguments of functions that take more than what they read and what they give."""


LISTED = 320  # weights of a filter up to which all are listed, if all are kept


def zero_points(steps: Program, arithmetic: Arithmetic) -> dict[int, int]:
    """The integer that stands for 0 in each value, of arranged planes too."""
    found = {value: held.zero_point for value, held in arithmetic.qparams.items()}
    for step in steps.steps:
        if step.action in ("split", "spread"):
            found[step.gives] = found[step.reads[0]]
        if step.scratch is not None:
            found[step.scratch] = found[step.reads[0]]
    return found


@dataclass(frozen=True)
class Int8Calls(Calls):
    """The tables and statements of a program of integers."""

    arithmetic: Arithmetic = field(kw_only=True)
    zeros: dict[int, int] = field(kw_only=True)

    @cached_property
    def _original(self) -> dict[int, Step]:
        """By what they give, the steps as they are before planes are arranged."""
        return {step.gives: step for step in self.arithmetic.steps}

    def declarations(self) -> Declarations:
        """The tables of all steps; a layer that runs twice has its weights once."""
        made = Declarations()
        for step in self.program.steps:
            if step.action in LAYERS:
                self._layer(step, made)
            elif step.action in NORMS:
                self._norm(step, made)
            elif step.action == "softmax":
                self._softmax(step, made)
            elif step.action in TABLES:
                made.array(f"{step.name}_table", self.arithmetic.table(step))
            elif step.action == "constant":
                made.array(f"{step.name}_values", self.arithmetic.constant(step))
        self._places(made)
        return made

    def _layer(self, step: Step, made: Declarations) -> None:
        original = self._original[step.gives]
        holder, held = self._holders[step.node.name], self.tables[step.node.name]
        layer, final = self.arithmetic.layer(original), self._is_final(step)
        biases = layer.biases_for(self.zeros[original.reads[0]])
        range = (0, 0) if final else self.arithmetic.limits(original)
        offsets = self._offsets(step) if step.convolves else None
        fields = (
            *(held.inputs, held.taps, made.array(f"{step.name}_offsets", offsets)),
            *(made.array(f"{holder}_steps", held.steps), held.escape),
            made.array(f"{holder}_weights", self._weights(step)),
            made.array(f"{step.name}_biases", biases.astype(np.int32)),
            made.array(
                f"{step.name}_multipliers", None if final else layer.multipliers.astype(np.int32)
            ),
            made.array(f"{step.name}_scales", layer.scales if final else None),
            *(_long(layer.start), layer.other, f"{{{range[0]}, {range[1]}}}"),
        )
        inner = ", ".join(map(str, fields))
        made.lines.append(f"static const Layer {step.name} = {{\n    {inner},\n}};\n")

    def _norm(self, step: Step, made: Declarations) -> None:
        norm = self.arithmetic.norm(step)
        fields = (
            made.array(f"{step.name}_multipliers", norm.multipliers.astype(np.int32)),
            made.array(f"{step.name}_shifts", norm.shifts.astype(np.int32)),
            *(norm.count, norm.fraction, _long(norm.epsilon), _long(norm.start)),
        )
        inner = ", ".join(map(str, fields))
        made.lines.append(f"static const Norm {step.name} = {{\n    {inner},\n}};\n")

    def _softmax(self, step: Step, made: Declarations) -> None:
        held = self.arithmetic.softmax(step)
        powers = made.array(f"{step.name}_powers", held.powers)
        inner = ", ".join((powers, _long(held.numerator), _long(held.start)))
        made.lines.append(f"static const Shares {step.name} = {{\n    {inner},\n}};\n")

    def _weights(self, step: Step) -> NDArray[np.int8]:
        """A layer's; C reads up to a byte more of one that keeps all of them."""
        held: NDArray[np.int8] = self.tables[step.node.name].weights
        return np.append(held, np.int8(0)) if self.function(step) == "convolve_all" else held

    def _is_final(self, step: Step) -> bool:
        return is_logits(step, self.program.steps)

    def _final(self) -> list[str]:
        """What gives the logits after all steps, if the last layer has not."""
        last = self.program.steps[-1]
        if self._is_final(last):
            return []
        held = self.arithmetic.qparams[last.gives]
        out = self._tensor(last.gives)
        return [f"to_logits({out}, logits, {held.zero_point}, {literal(held.scale)});"]

    def _zero(self, value: int) -> str:
        return str(self.zeros[value])

    def clearing(self, step: Step) -> list[str]:
        """What must be done before a step whose planes are surrounded by zeros."""
        sizes = {v: self.plan.cleared.get(v) for v in (step.scratch, step.gives) if v is not None}
        return [
            f"clear({self._tensor(v)}, {size}, {self.zeros[v]});"
            for v, size in sizes.items()
            if size
        ]

    def _calls(self, step: Step) -> Iterator[str]:
        function = self.function(step)
        if step.action == "constant":
            yield f"load_values({step.name}_values, {self._tensor(step.gives)})"
        elif function in ARGUMENTS:
            yield f"{function}({ARGUMENTS[function].format(**self._terms(step))})"
        else:
            yield from super()._calls(step)

    def function(self, step: Step) -> str:
        if step.action in TABLES:
            return "look_up"
        if self._is_final(step):
            return "connect_logits"
        table = self.tables[step.node.name] if step.action == "convolve" else None
        if table is None or table.steps is not None:
            return step.action
        square = step.node.kernel == (3, 3) and step.cut is None
        return "convolve_groups" if table.inputs <= LISTED and not square else "convolve_all"

    def _terms(self, step: Step) -> dict[str, Any]:
        """What a call may name."""
        terms = super()._terms(step)
        if step.action == "add" or step.action.startswith("multiply"):
            zeros = [self.zeros[value] for value in step.reads]
            terms["zeros"] = f"{zeros[0]}, {zeros[1]}"
        if step.action.startswith("multiply"):
            terms["product"] = self.arithmetic.product(step)
            terms["start"] = _long(self.arithmetic.start(step.gives))
        if step.action == "add":
            ratios = [self.arithmetic.ratio(step, place) for place in (0, 1)]
            shift = sum(zero * ratio for zero, ratio in zip(zeros, ratios, strict=True))
            start = self.arithmetic.start(step.gives, TERM_SHIFT) - shift
            low, high = self.arithmetic.limits(step)
            terms |= {"by_first": ratios[0], "by_second": ratios[1], "start": _long(start)}
            terms["range"] = f"(Range){{{low}, {high}}}"
        if step.action in ("mean_pool", "adaptive_pool"):
            zeros = [self.zeros[value] for value in (step.reads[0], step.gives)]
            ratio = self.arithmetic.ratio(step, 0)
            terms["means"] = f"&(const Means){{{zeros[0]}, {zeros[1]}, {ratio}}}"
        return terms


def _long(number: int) -> str:
    """A constant of 64 bits."""
    return f"INT64_C({number})"
