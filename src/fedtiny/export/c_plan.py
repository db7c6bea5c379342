"""Where the values of a program lie in one arena of memory."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from fedtiny.export.c_bands import Band, Schedule
from fedtiny.export.c_buffers import Buffer, Placing, Tensor
from fedtiny.export.c_steps import Program, Step
from fedtiny.graph.plan import place_tightly

OVERREAD = 64  # the widest run of sums: it may read and write this far behind what it needs


@dataclass(frozen=True)
class Plan:
    """The tensor of each value, the arena's size in floats, and what must be cleared before use."""

    tensors: Mapping[int, Tensor]
    arena: int
    cleared: Mapping[int, int]
    """Floats to set to zero before the step that gives a value, where zeros surround its planes."""
    bands: Mapping[int, list[Band]] = field(default_factory=dict)
    """By what they give, the steps that are computed by bands."""
    held: Mapping[int, int] = field(default_factory=dict)
    """How many rows are held of a value, if not all are."""

    @property
    def count(self) -> int:
        """The number of bands."""
        return max(map(len, self.bands.values()), default=0)

    def sums(self, step: Step) -> int:
        """How many sums a convolution works out at a time, with the gaps between rows."""
        _, rows, columns = self.tensors[step.gives].shape
        if bands := self.bands.get(step.gives):
            rows = max(band.rows for band in bands)
        return (rows - 1) * self.tensors[step.gathered].pitch + columns


def plan(
    program: Program, zeros: Mapping[int, int] | None = None, schedule: Schedule | None = None
) -> Plan:
    """Place all values of a program, whose first steps may have a schedule of bands.

    `zeros` has the integer that stands for 0 in each value, where that is not the same for all:
    those that share a piece, and so the zeros around it, agree in it.
    """
    placing = Placing(program, zeros or {}, schedule)
    owner, buffers = placing.owner, placing.buffers
    arena = place_tightly(buffers) + OVERREAD
    tensors = {v: owner[v].tensor(v, placing.shapes) for v in owner}
    windows = {v: buffer.window for v, buffer in owner.items() if buffer.window}
    bands: dict[int, list[Band]] = {}
    if schedule is not None:
        for step in schedule.steps:
            leads = owner[step.gives].leader == step.gives
            bands[step.gives] = list(schedule.bands(step, windows, leads))
    held = {value: window.rows for value, window in windows.items()}
    return Plan(tensors, arena, dict(_cleared(program, buffers)), bands, held)


def _cleared(program: Program, buffers: Iterable[Buffer]) -> Iterator[tuple[int, int]]:
    """The first value of every buffer that has zeros in it, and the buffer's size."""
    order = [v for step in program.steps for v in (step.gives, step.scratch) if v is not None]
    born = {value: number for number, value in enumerate(order)}
    sparse = {step.gives for step in program.steps if step.action in ("split", "spread")}
    sparse |= {step.scratch for step in program.steps if step.scratch is not None}
    for buffer in buffers:
        padded = buffer.margin != (0, 0) or (buffer.window and buffer.window.first[0] < 0)
        if padded or sparse & buffer.first.keys():
            yield min(buffer.first, key=born.__getitem__), buffer.size


def is_in_place(step: Step, plan: Plan) -> bool:
    """Whether values have another shape, or are joined, without doing anything."""
    match step.action:
        case "concatenate":
            return not any(copied(step, plan))
        case "flatten":
            return plan.tensors[step.reads[0]].start == plan.tensors[step.gives].start
    return False


def copied(step: Step, plan: Plan) -> Iterator[tuple[Tensor, int]]:
    """What must be copied to where all is joined, and how many floats behind its first pixel."""
    out, at = plan.tensors[step.gives], 0
    for value in step.reads:
        read = plan.tensors[value]
        if (read.start, read.origin) != (out.start, out.origin + at):
            yield read, at
        at += read.shape[step.node.axis] * out.ways[step.node.axis]
