"""Steps that are computed by bands of rows, as C text."""

from collections.abc import Iterable, Mapping, Sequence

from fedtiny.export.c_plan import Plan
from fedtiny.export.c_steps import Step
from fedtiny.export.c_text import NOTHING, Declarations

BYTES_OF_A_NUMBER = 2
VIEWS = {"read": "&rows.read", "out": "&rows.given"}
"""What a call in a band names instead of whole tensors."""


def declare(step: Step, plan: Plan, made: Declarations) -> None:
    """The table of the rows that a step reads and gives in each band."""
    bands = plan.bands[step.gives]
    lines = "".join(f"    {{{', '.join(map(str, band))}}},\n" for band in bands)
    made.lines.append(f"static const Band {step.name}_bands[{len(bands)}] = {{\n{lines}}};\n")
    made.size += BYTES_OF_A_NUMBER * sum(map(len, bands))


def opened(step: Step, plan: Plan, zero: str) -> str:
    """What finds the rows of a band; `zero` stands for 0 in what the step gives."""
    read, *others = (f"&{plan.tensors[value].name}" for value in step.reads)
    written, held = plan.tensors[step.gives].name, plan.held.get(step.gives, 0)
    places = f"{read}, {others[0] if others else NOTHING}, &{written}, {held}, {zero}"
    return f"open_band(&{step.name}_bands[band], {places}, &rows)"


def views(step: Step) -> Mapping[str, str]:
    """What a call names that is made in a band."""
    return {**VIEWS, "other": "&rows.added" if len(step.reads) > 1 else NOTHING}


def loop(steps: Iterable[Sequence[str]], count: int) -> list[str]:
    """The statements of steps, band by band."""
    inner = [f"    {line}" for lines in steps for line in lines]
    start = f"for (int band = 0; band < {count}; ++band) {{"
    return [start, "    Rows rows;", *inner, "}"] if inner else []
