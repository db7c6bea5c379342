"""Whether what a round has made of the model is accepted; if not, the round is played again.

The server measures the model of every round on its public set, never on test images; if it has
none, it goes by the loss that devices report. The model is not accepted if its values are too large
to compute with or its loss is not finite, and, by `--robustness.reject`: if its loss is so many
times above the last one's and above chance's, or if, in a round that left the mask as it was, it
lost more than half of what its accuracy was above chance's, and more than the few images can show
by chance. The round is then played again from the model before it, once, without the devices
suspected: those out of bounds, or else the one of the largest norm. What comes of that stands,
unless it cannot be computed with: then the model before it does.
"""

from dataclasses import replace
from math import isfinite, log, sqrt
from typing import Any

from fedtiny.federation.rounds import RoundResult, next_round
from fedtiny.federation.transport import Outcome
from fedtiny.runs.assembly import Assembly
from fedtiny.runs.metrics import Record, number, round_record
from fedtiny.sparse.theta import is_usable

UNUSABLE = "values of the model are too large to compute with"
NOT_FINITE = "the loss is not finite"
FATAL = (UNUSABLE, NOT_FINITE)
LAST = "last measure"  # of a model that was accepted, in the server's memory
DEVIATIONS = 3.0  # standard deviations of an accuracy's fall that are no chance


def accepted_round(assembly: Assembly, started: float) -> Record:
    """Play a round, again if need be, and give its record."""
    server, config = assembly.server, assembly.config
    before = server.state()
    result = next_round(server, assembly.method, config.rounds)
    why = objection(assembly, result) if config.robustness.reject else ""
    record = round_record(assembly, result, started)
    if not why:
        return record
    suspects = suspected(result.outcome)
    server.put_back(before)
    again = next_round(server, assembly.method, config.rounds, without=suspects)
    if (still := objection(assembly, again)) in FATAL:
        server.put_back(before)
        server.round += 1
        again = replace(again, counted=False, changes={})
    second = round_record(assembly, again, started)
    return second | _both(record, second) | {"rejected": _rejected(why, still, suspects)}


def objection(assembly: Assembly, result: RoundResult) -> str:
    """Say why a round is not accepted, or nothing; the server remembers what it measured."""
    server = assembly.server
    if not result.counted:
        return ""
    if not is_usable(server.theta.vector):
        return UNUSABLE
    public = server.public
    measured = dict(public.evaluate(server.theta) if public else result.outcome.metrics)
    last, server.memory[LAST] = server.memory.get(LAST, {}), measured
    if not isfinite(measured.get("loss", 0.0)):
        return NOT_FINITE
    return _far_worse(assembly, result, measured, last)


def _far_worse(
    assembly: Assembly, result: RoundResult, measured: dict[str, float], last: Any
) -> str:
    loss, limit = measured.get("loss", 0.0), assembly.config.robustness.reject
    chance = 1 / len(assembly.data.classes)
    least = max(number(last, "loss") or 0.0, -log(chance))
    if loss > limit * least:
        return f"the loss is {loss:.3g}, more than {limit:g} times {least:.3g}"
    accuracy, before = measured.get("accuracy", 0.0), number(last, "accuracy") or 0.0
    if not result.changes and lost_half(accuracy, before, chance, len(assembly.split.public)):
        return f"the accuracy fell from {before:.3g} to {accuracy:.3g}"
    return ""


def lost_half(accuracy: float, before: float, chance: float, images: int) -> bool:
    """Tell whether more than half of what was above chance is lost, and more than is chance."""
    deviation = sqrt((before * (1 - before) + accuracy * (1 - accuracy)) / images)
    least = max((before - chance) / 2, DEVIATIONS * deviation)
    return before > chance and before - accuracy > least


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
