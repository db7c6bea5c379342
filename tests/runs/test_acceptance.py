"""A round that spoils the model is played again without those who are suspected."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import load_file, save

import fedtiny
from fedtiny.devices.simulator import Simulator
from fedtiny.devices.torch_public import TorchPublicSet
from fedtiny.federation.messages import Reply
from fedtiny.federation.rounds import next_round
from fedtiny.federation.transport import Outcome
from fedtiny.files import digest_of, with_text
from fedtiny.report.page import one_run
from fedtiny.report.run import read
from fedtiny.runs import acceptance
from fedtiny.runs.acceptance import lost_half, objection, suspected
from fedtiny.runs.assembly import assemble
from fedtiny.runs.folder import RunFolder
from fedtiny.runs.formatting import round_line
from fedtiny.runs.recorder import BEGINS_AGAIN
from fedtiny.runs.reporter import Silent
from fedtiny.sparse.theta import Theta

from .tiny import differences, lines, stop, tiny, train

HOSTILE = 1
CONFIG = tiny(method="fedavg", fleet={"devices": 4, "partition": "iid"})
UNBOUNDED = replace(CONFIG, robustness=replace(CONFIG.robustness, bound=0.0))


@pytest.fixture
def hostile(monkeypatch):
    """Lets the hostile device lie in a round of training, every time that it is asked then."""

    def begin(lie, round=1):
        plain = Simulator._arrived

        def arrived(self, tasks, request):
            for one in plain(self, tasks, request):
                is_lie = one.device == HOSTILE and request.action == "train"
                if is_lie and request.round == round and isinstance(one.content, Reply):
                    one = replace(one, content=lie(one.content))
                yield one

        monkeypatch.setattr(Simulator, "_arrived", arrived)

    return begin


def filled(value):
    return lambda reply: replace(
        reply, theta=Theta(reply.theta.mask, np.full_like(reply.theta.vector, value))
    )


def test_values_too_large_are_never_accepted(hostile, tmp_path):
    hostile(filled(3e38))
    result = train(UNBOUNDED, tmp_path / "run")
    spoiled = lines(tmp_path / "run")[1]
    assert spoiled["rejected"] == {
        "why": acceptance.UNUSABLE,
        "without": [],
        "then": acceptance.UNUSABLE,
    }
    assert not spoiled["counted"]
    assert np.isfinite(result.loss)
    theta = load_file(tmp_path / "run" / "checkpoint.safetensors")["theta"]
    assert np.abs(theta).max() < 100


def test_the_round_is_played_again_without_the_suspects(hostile, tmp_path, monkeypatch):
    hostile(filled(1e6))
    monkeypatch.setattr(acceptance, "suspected", lambda outcome: (HOSTILE,))
    train(UNBOUNDED, tmp_path / "run")
    first, second, third = lines(tmp_path / "run")
    assert "rejected" not in first
    assert "rejected" not in third
    assert second["rejected"]["without"] == [HOSTILE]
    assert second["rejected"]["then"] == "accepted"
    assert second["answered"] == [0, 2, 3]
    assert second["counted"]
    assert second["bytes_up"] > first["bytes_up"]  # both plays are counted
    assert second["loss"] < 3 * first["loss"]


def test_by_default_the_device_is_left_out_and_named_and_nothing_is_rejected(hostile, tmp_path):
    hostile(filled(3e38))
    train(CONFIG, tmp_path / "run")
    records = lines(tmp_path / "run")
    assert all("rejected" not in record for record in records)
    assert [list(record["bounded"]) for record in records] == [[], [str(HOSTILE)], []]


def test_a_rejected_round_resumes_to_the_same_bytes(hostile, tmp_path, monkeypatch):
    hostile(filled(1e6))
    monkeypatch.setattr(acceptance, "suspected", lambda outcome: (HOSTILE,))
    whole = train(UNBOUNDED, tmp_path / "whole").path
    for rounds in (1, 2):
        path = stop(UNBOUNDED, tmp_path / f"stopped{rounds}", rounds)
        fedtiny.resume(path, reporter=Silent())
        assert differences(path, whole) == []


def test_a_round_that_is_not_tested_is_rejected_too(hostile, tmp_path):
    hostile(filled(1e6))
    train(replace(UNBOUNDED, eval_every=5), tmp_path / "run")
    assert "rejected" in lines(tmp_path / "run")[1]


def test_without_a_public_set_the_devices_losses_decide():
    assembly = assemble(CONFIG)
    assembly.server.public = None
    outcome = next_round(assembly.server, assembly.method, 3)
    told = [replace(outcome.outcome, metrics={"loss": loss}) for loss in (2.0, 7.0, np.inf)]
    found = [objection(assembly, replace(outcome, outcome=own)) for own in told]
    assert found[0] == ""
    assert found[1].startswith("the loss is 7, more than 3 times")
    assert found[2] == acceptance.NOT_FINITE
    assembly.server.transport.close()


def test_switched_off_everything_is_accepted_and_nothing_measured(hostile, tmp_path, monkeypatch):
    hostile(filled(1e6))
    monkeypatch.setattr(TorchPublicSet, "evaluate", None)
    off = replace(UNBOUNDED, robustness=replace(UNBOUNDED.robustness, reject=0.0))
    train(off, tmp_path / "run")
    assert all("rejected" not in record for record in lines(tmp_path / "run"))


def test_suspects_are_those_out_of_bounds_or_else_the_one_of_the_largest_norm():
    assert suspected(Outcome((0, 1), bounded={1: "far"}, largest_norms={0: 9.0})) == (1,)
    assert suspected(Outcome((0, 1), largest_norms={0: 1.0, 1: 2.0})) == (1,)
    assert suspected(Outcome((0, 1))) == ()


@pytest.mark.parametrize(
    ("before", "accuracy", "lost"),
    [
        (0.9, 0.48, True),  # of 0.8 above chance 0.38 is left
        (0.9, 0.52, False),
        (0.4, 0.2, False),  # more than half is lost, but 10 of 50 images are 2.3 deviations
        (0.4, 0.12, True),
        (0.12, 0.05, False),
        (0.0975, 0.0975, False),  # there was nothing to lose
        (0.08, 0.085, False),
        (0.1, 0.02, False),
        (0.0, 0.04, False),  # nothing was measured before
    ],
)
def test_half_is_lost_only_of_what_was_above_chance(before, accuracy, lost):
    assert lost_half(accuracy, before, chance=0.1, images=50) is lost


def test_rounds_at_chance_are_accepted(tmp_path, monkeypatch):
    """A run that has learned nothing yet repeats no round."""
    config = replace(CONFIG, train=replace(CONFIG.train, lr=1e-9))
    told = iter([0.09, 0.09, 0.08, 0.085, 0.09])
    plain = TorchPublicSet.evaluate

    def evaluate(self, theta):
        return plain(self, theta) | {"accuracy": next(told)}

    monkeypatch.setattr(TorchPublicSet, "evaluate", evaluate)
    train(config, tmp_path / "run")
    assert all("rejected" not in one for one in lines(tmp_path / "run"))


# A checkpoint that was poisoned before


def poisoned(path):
    """A run whose checkpoint has values that nobody can compute with."""
    file = RunFolder(path).checkpoint
    tensors, signed = with_text(file.read_bytes(), "fedtiny")
    tensors["theta"] = np.full_like(tensors["theta"], 3e37)
    text = json.loads(signed)["state"]
    again = json.dumps({"state": text, "digest": digest_of(tensors, text)})
    file.write_bytes(save(tensors, {"fedtiny": again}))
    return path


class Listening(Silent):
    def started(self, assembly, folder, records):
        self.notes, self.rounds = assembly.notes, len(records)


def test_a_poisoned_checkpoint_begins_the_run_again(tmp_path):
    whole = train(CONFIG, tmp_path / "whole").path
    path = poisoned(stop(CONFIG, tmp_path / "stopped", 2))
    reporter = Listening()
    fedtiny.resume(path, reporter=reporter)
    assert (reporter.notes[-1], reporter.rounds) == (BEGINS_AGAIN, 0)
    assert differences(path, whole) == []


def test_a_setting_that_was_deleted_from_a_config_switches_nothing_off(tmp_path):
    folder = RunFolder(stop(CONFIG, tmp_path / "run", 1))
    text = folder.config.read_text()
    folder.config.write_text("\n".join(x for x in text.splitlines() if not x.startswith("bound")))
    found = fedtiny.resume(folder.path, reporter=Silent()).config.robustness
    assert found == CONFIG.robustness


# What is told


RECORD = {
    **{"round_number": 2, "accuracy": None, "density": 0.3, "mask_change": 0, "bytes_down": 0},
    **{"bytes_up": 0, "seconds": 0.1, "failed": {}, "counted": True},
}


def test_the_line_of_a_round_names_who_was_out_of_bounds():
    line = round_line({**RECORD, "bounded": {"3": "update 97 times the median norm"}}, 3)
    assert line.endswith("(devices out of bounds: 3 update 97 times the median norm)")


@pytest.mark.parametrize(
    ("rejected", "told"),
    [
        (
            {"why": "the loss is not finite", "without": [3], "then": "accepted"},
            "(not accepted: the loss is not finite; repeated without 3)",
        ),
        (
            {"why": "a", "without": [], "then": "b"},
            "(not accepted: a; repeated without anybody suspected: b)",
        ),
    ],
)
def test_the_line_of_a_round_says_that_it_was_repeated(rejected, told):
    assert round_line({**RECORD, "rejected": rejected}, 3).endswith(told)


def test_the_report_names_them_too(hostile, tmp_path):
    hostile(filled(3e38))
    path = train(CONFIG, tmp_path / "run").path
    page = one_run(read(RunFolder(path)))
    assert re.search(r"samples; out of bounds: \d", page)
    assert "Rounds out of bounds" in page
