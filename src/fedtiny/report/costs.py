"""What training costs a device, beside the costs of a dense run."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fedtiny.drawing.canvas import SMALL, Boxes, Canvas, Text, text_width
from fedtiny.drawing.figure import Figure
from fedtiny.drawing.plot import Key, legend
from fedtiny.experiments.finished import bytes_a_round
from fedtiny.report.run import Run
from fedtiny.runs import formatting
from fedtiny.runs.metrics import number

FLOPS, SIZE, SIZE_AS_SENT = "FLOPs in a round", "Model size, packed", "Model size, as sent"
DENSE_COSTS = ("flops", "memory_paper", "memory_device", "bytes_down", "bytes_up", "model_bytes")
ROW, BAR = 66.0, 15.0  # pixels of a pair of bars, and of one of them


@dataclass(frozen=True)
class Cost:
    """One cost of this run and of a dense one."""

    name: str
    ours: float
    dense: float
    text: Callable[[float], str]


def costs(run: Run) -> list[Cost]:
    """The costs that are known of this run and of a dense one, of a device of mean size."""

    def highest(key: str) -> float | None:
        found = (number(record, key) for record in run.records)
        return max((value for value in found if value is not None), default=None)

    dense = {key: number(run.about.get("dense"), key) for key in DENSE_COSTS}
    down, up = dense["bytes_down"], dense["bytes_up"]
    moved = None if down is None or up is None else down + up
    size, (named, model) = formatting.size, model_size(run)
    known = (
        (FLOPS, highest("flops"), dense["flops"], flops_text),
        ("Memory (paper's count)", highest("memory_paper"), dense["memory_paper"], size),
        ("Memory (whole device)", highest("memory_device"), dense["memory_device"], size),
        ("Bytes in a round", _bytes_a_round(run), moved, size),
        (named, model, dense["model_bytes"], size),
    )
    return [Cost(name, ours, other, text) for name, ours, other, text in known if ours and other]


def model_size(run: Run) -> tuple[str, float | None]:
    """The size of the model and what it is: the packed file's, or without one the message's."""
    if run.packed_bytes is not None:
        return SIZE, float(run.packed_bytes)
    return SIZE_AS_SENT, number(run.result, "model_bytes")


def _bytes_a_round(run: Run) -> float | None:
    try:
        return bytes_a_round(run.records)
    except (LookupError, TypeError, ValueError):
        return None


def cost(run: Run) -> Figure | None:
    """FLOPs, memory and bytes of a device, beside those of a dense run."""
    found = costs(run)
    if not found:
        return None
    sized = {
        SIZE: "; the model is the file model.packed, beside all parameters as float32",
        SIZE_AS_SENT: "; the model is sized as it is sent: kept values and coded positions",
    }
    caption = (
        "What training costs one device of mean size, compared with federated averaging of the "
        "dense network on the same data. FLOPs and memory are those of the costliest round, by the "
        "cost model; bytes are counted messages, both ways, on the mean of all rounds"
        f"{sized.get(found[-1].name, '')}."
    )
    return Figure("cost", "Cost compared with a dense run", caption, pairs(found, run.color))


def pairs(shown: Sequence[Cost], color: str) -> Canvas:
    """Two bars for each cost, on a scale of its own that starts at zero."""
    canvas = Canvas()
    top = legend(canvas, [Key("this run", color, "box"), Key("dense", "dense", "box")])
    canvas.height = top + ROW * len(shown)
    for place, one in enumerate(shown):
        _draw_pair(canvas, one, top + place * ROW, color)
    return canvas


def _draw_pair(canvas: Canvas, cost: Cost, top: float, color: str) -> None:
    room = canvas.width - 8 - text_width("999 GFLOPs", SMALL) - 8
    per_unit = room / max(cost.ours, cost.dense)
    told = f"{share(cost.ours, cost.dense)} of dense"
    canvas.add(Text(4, top + 16, cost.name, color="ink", bold=True))
    canvas.add(Text(canvas.width - 4, top + 16, told, "end", color="ink"))
    for place, (value, role) in enumerate(((cost.ours, color), (cost.dense, "dense"))):
        y, width = top + 23 + place * (BAR + 3), max(1.5, value * per_unit)
        canvas.add(Boxes(((4, y, width, BAR),), role))
        canvas.add(Text(4 + width + 6, y + 12, cost.text(value), size=SMALL))


def share(ours: float, dense: float) -> str:
    """A cost as a share of another.

    >>> share(1, 80), share(3, 2)
    ('1.25%', '150%')
    """
    return f"{100 * ours / dense:.3g}%"


def flops_text(count: float) -> str:
    """A number of FLOPs, in units of a thousand.

    >>> flops_text(2_500_000)
    '2.5 MFLOPs'
    """
    return formatting.size(count).removesuffix("B").replace("k", "K") + "FLOPs"


def flops_number(count: float) -> str:
    """FLOPs on an axis that says so.

    >>> flops_number(2_500_000)
    '2.5 M'
    """
    return flops_text(count).removesuffix("FLOPs").strip()
