"""What a run cost a device, beside what a dense run would have."""

from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean

from fedtiny.report.run import Run, number
from fedtiny.runs import formatting

MEMORY = {"paper's count": "memory_paper", "whole device": "memory_device"}
MODEL = "Size of the model"


@dataclass(frozen=True)
class Cost:
    """One cost of this run and of a dense one."""

    name: str
    ours: float
    dense: float
    text: Callable[[float], str]


def costs(run: Run) -> list[Cost]:
    """The costs that are known of both."""
    size = formatting.size
    wanted = (
        ("FLOPs in a round", _most(run, "flops"), _dense(run, "flops"), flops_text),
        *(
            (f"Memory ({count})", _most(run, key), _dense(run, key), size)
            for count, key in MEMORY.items()
        ),
        ("Bytes in a round", bytes_a_round(run), _dense_bytes(run), size),
        (MODEL, number(run.result, "model_bytes"), _dense(run, "model_bytes"), size),
    )
    return [Cost(name, a, b, text) for name, a, b, text in wanted if a and b]


def flops_text(count: float) -> str:
    """A number of FLOPs, in units of a thousand.

    >>> flops_text(2_500_000)
    '2.5 MFLOPs'
    """
    return formatting.size(count).removesuffix("B").replace("k", "K") + "FLOPs"


def bytes_a_round(run: Run) -> float | None:
    """What a device that answered moved in a round, down and up, on the mean of all rounds."""
    moved = [
        ((number(record, "bytes_down") or 0) + (number(record, "bytes_up") or 0)) / len(answered)
        for record in run.records
        if (answered := record.get("answered"))
    ]
    return fmean(moved) if moved else None


def _most(run: Run, key: str) -> float | None:
    """Of the costliest round."""
    found = [number(record, key) for record in run.records]
    return max((value for value in found if value is not None), default=None)


def _dense(run: Run, key: str) -> float | None:
    return number(run.about.get("dense"), key)


def _dense_bytes(run: Run) -> float | None:
    down, up = _dense(run, "bytes_down"), _dense(run, "bytes_up")
    return None if down is None or up is None else down + up
