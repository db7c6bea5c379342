"""Whether what a round has made of the model is accepted; if not, the round is played again.

It is not, if values of the model are too large to compute with or its loss is not finite, and, by
`--robustness.reject`, where it was measured: if its loss is so many times above that of the last
round measured and above chance's, or if it lost more than half of what its accuracy was above
chance's in a round that left the mask as it was. The round is then played again from the model
before it, once, without the devices suspected: those out of bounds, or else the one of the largest
norm. What comes of that stands, unless it cannot be computed with: then the model before it does.
"""

from dataclasses import replace
from math import isfinite, log
from typing import Any

from fedtiny.federation.rounds import RoundResult, next_round
from fedtiny.federation.transport import Outcome
from fedtiny.runs.assembly import Assembly
from fedtiny.runs.metrics import Record, number, round_record
from fedtiny.sparse.theta import is_usable

UNUSABLE = "values of the model are too large to compute with"
NOT_FINITE = "the loss is not finite"
FATAL = (UNUSABLE, NOT_FINITE)


def accepted_round(assembly: Assembly, records: list[Record], started: float) -> Record:
    """Play a round, again if need be, and give its record; `records` are those before it."""
    server, config = assembly.server, assembly.config
    before = server.state()
    result = next_round(server, assembly.method, config.rounds)
    record = round_record(assembly, result, started)
    why = objection(assembly, result, record, records)
    if not config.robustness.reject or not why:
        return record
    suspects = suspected(result.outcome)
    server.put_back(before)
    again = next_round(server, assembly.method, config.rounds, without=suspects)
    second = round_record(assembly, again, started)
    if (still := objection(assembly, again, second, records)) in FATAL:
        server.put_back(before)
        server.round += 1
        second = round_record(assembly, replace(again, counted=False, changes={}), started)
    return second | _both(record, second) | {"rejected": _rejected(why, still, suspects)}


def objection(
    assembly: Assembly, result: RoundResult, record: Record, records: list[Record]
) -> str:
    """Why a round is not accepted, or nothing."""
    if not result.counted:
        return ""
    if not is_usable(assembly.server.theta.vector):
        return UNUSABLE
    if record["loss"] is None:
        return ""
    if not isfinite(record["loss"]):
        return NOT_FINITE
    measured = [own for own in records if number(own, "loss") is not None]
    chance = 1 / len(assembly.data.classes)
    return _far_worse(assembly, result, record, measured[-1] if measured else {}, chance)


def _far_worse(
    assembly: Assembly, result: RoundResult, record: Record, last: Record, chance: float
) -> str:
    loss, limit = record["loss"], assembly.config.robustness.reject
    least = max(number(last, "loss") or 0.0, -log(chance))
    if loss > limit * least:
        return f"the loss is {loss:.3g}, more than {limit:g} times {least:.3g}"
    accuracy, before = record["accuracy"], number(last, "accuracy") or 0.0
    if not result.changes and lost_half(accuracy, before, chance):
        return f"the accuracy fell from {before:.3g} to {accuracy:.3g}"
    return ""


def lost_half(accuracy: float, before: float, chance: float) -> bool:
    """Whether more than half is lost of what the accuracy was above chance's, if it was above."""
    return before > chance and accuracy - chance < (before - chance) / 2


def suspected(outcome: Outcome) -> tuple[int, ...]:
    """The devices without which a round is played again."""
    if outcome.bounded:
        return tuple(outcome.bounded)
    norms = outcome.largest_norms
    return (max(norms, key=lambda device: norms[device]),) if norms else ()


def _both(first: Record, second: Record) -> Record:
    """What two plays of a round have cost, and who was out of bounds in either."""
    sums = ("bytes_down", "bytes_up", "bytes_evaluation")
    names = ("failed", "bounded")
    return {
        **{name: first[name] + second[name] for name in sums},
        **{name: {**first[name], **second[name]} for name in names},
    }


def _rejected(why: str, still: str, suspects: tuple[int, ...]) -> dict[str, Any]:
    return {"why": why, "without": list(suspects), "then": still or "accepted"}
