"""A round of a private run, which is played once.

Under differential privacy a second play would spend the budget twice. Under secure aggregation two
sums would tell devices apart, and nobody can be suspected: a round whose model cannot be computed
with is left out.
"""

import time
from dataclasses import replace

from fedtiny.federation.rounds import next_round
from fedtiny.runs.acceptance import FATAL, objection
from fedtiny.runs.assembly import Assembly
from fedtiny.runs.metrics import Record, round_record

COSTS = ("bytes_down", "bytes_up", "bytes_evaluation")


def private_round(assembly: Assembly, started: float) -> Record:
    """Play a round and give its record."""
    server, config = assembly.server, assembly.config
    before = server.state()
    result = next_round(server, assembly.method, config.rounds)
    unchecked = config.privacy.differential or not config.robustness.reject
    why = "" if unchecked else objection(assembly, result)
    record = round_record(assembly, result, started)
    if why not in FATAL:
        return record
    server.put_back(before)
    server.round += 1
    unchanged = replace(result, counted=False, changes={})
    second = round_record(assembly, unchanged, time.perf_counter())
    costs = {name: record[name] + second[name] for name in COSTS}
    return second | costs | {"rejected": {"why": why, "without": [], "then": why}}
