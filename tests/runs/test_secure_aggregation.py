"""Runs under secure aggregation: as good as plain ones, repeatable, and nothing single is seen."""

import json
from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import load_file

import fedtiny
from fedtiny.devices import secure
from fedtiny.devices.secure import SecureFleet
from fedtiny.errors import ConfigError, SecureAggregationError
from fedtiny.federation.messages import Reply, Request
from fedtiny.federation.secure import Bounds, Layout, layout_for
from fedtiny.federation.verbs import Train
from fedtiny.privacy.mechanism import Mechanism
from fedtiny.privacy.secagg.ciphers import Cryptography
from fedtiny.privacy.secagg.quantize import Scales
from fedtiny.privacy.secagg.table import Table
from fedtiny.privacy.secagg.terms import MASKED, Terms
from fedtiny.runs.assembly import assemble
from fedtiny.runs.metrics import round_record
from fedtiny.runs.reporter import Silent
from fedtiny.sparse.theta import Theta

from .tiny import differences, first_of, lines, stop, swaps_of, tiny, train

SECURE = {"secure_aggregation": True}
FAST = {"secure_aggregation": True, "cryptography": False}
SIX = {"devices": 6, "partition": "iid"}


def secure_tiny(privacy=None, **changes):
    fleet = SIX | changes.pop("fleet", {})
    return tiny(privacy=SECURE if privacy is None else privacy, fleet=fleet, **changes)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return train(secure_tiny(), tmp_path_factory.mktemp("secure") / "run")


def weights(path):
    return load_file(path / "model.safetensors")


def test_the_same_candidate_and_almost_the_same_model(finished, tmp_path):
    """Beside a plain run whose growth and bounds are those of a secure one."""
    plain = tiny(fleet=SIX, pruning={"growth": "shared"}, robustness={"bound": 0.0})
    beside = train(plain, tmp_path / "plain")
    ours, theirs = finished.selection["selection"], beside.selection["selection"]
    assert ours["chosen"] == theirs["chosen"]
    assert ours["losses"] == pytest.approx(theirs["losses"], abs=1e-5)
    ours, theirs = weights(finished.path), weights(beside.path)
    for name in theirs:
        assert np.allclose(ours[name], theirs[name], atol=1e-4), name
    for one, other in zip(finished.metrics, beside.metrics, strict=True):
        assert one["train_loss"] == pytest.approx(other["train_loss"], abs=1e-4)
        assert one["mask_change"] == other["mask_change"]


def test_one_round_is_within_the_bound_of_rounding(monkeypatch):
    """Every value of the mean, against the mean of the same replies unrounded."""
    seen = []
    values, follow = Layout.values, Bounds.follow
    monkeypatch.setattr(Layout, "values", lambda *told: seen.append(values(*told)) or seen[-1])

    def checked(self, layout, scales, mean):
        samples = np.array([len(assembly.server.transport.shards[k]) for k in range(6)])
        exact = np.average(seen, axis=0, weights=samples)
        error = scales.error(6, int(samples.sum()))
        assert (np.abs(mean.values - exact) <= error).all()
        assert not any(mean.clipped)
        assert error.max() < 1e-4
        follow(self, layout, scales, mean)
        checked.done = True

    monkeypatch.setattr(Bounds, "follow", checked)
    assembly = assemble(secure_tiny(selection={"kind": "none"}, rounds=1))
    fedtiny.federation.rounds.prepare(assembly.server, assembly.method)
    fedtiny.federation.rounds.next_round(assembly.server, assembly.method, 1)
    assembly.server.transport.close()
    assert checked.done


def test_without_cryptography_every_byte_is_the_same(finished, tmp_path):
    fast = train(secure_tiny(FAST), tmp_path / "fast")
    assert differences(finished.path, fast.path) == ["result", "config", "partition"]
    told = json.loads((fast.path / "result.json").read_text())["secure_aggregation"]
    assert told == {"neighbors": 5, "needed": 4, "cryptography": False}


def test_messages_that_are_really_encoded_change_nothing(finished, tmp_path):
    encoded = train(secure_tiny(fleet={"wire": "encode"}), tmp_path / "encoded")
    assert differences(finished.path, encoded.path) == ["config", "partition"]


def test_many_devices_have_neighbors(tmp_path):
    few, none = {"neighbors": 6}, {"kind": "none"}
    many = {"devices": 12, "fail_rate": 0.05, "min_samples": 2}
    real = train(secure_tiny(SECURE | few, fleet=many, selection=none), tmp_path / "real")
    fast = train(secure_tiny(FAST | few, fleet=many, selection=none), tmp_path / "fast")
    assert differences(real.path, fast.path) == ["result", "config", "partition"]
    told = json.loads((real.path / "result.json").read_text())["secure_aggregation"]
    assert told == {"neighbors": 6, "needed": 4, "cryptography": True}
    assert sum(len(record["failed"]) < 12 for record in real.metrics) >= 2
    for record in real.metrics:
        (exchange,) = record["exchanges"]
        assert {*record["answered"]} <= {*exchange["ring"]} <= {*range(12)}
        assert (exchange["neighbors"], exchange["needed"]) == (6, 4)


def test_the_graph_of_neighbors_follows_from_the_record():
    terms = Terms(bytes(16), 1, 3, 77, tuple(range(0, 24, 2)), 6, 0.66)
    told, count = terms.record(), len(terms.participants)
    assert sorted(told["ring"]) == list(terms.participants)
    for place, device in enumerate(told["ring"]):
        steps = [step for step in range(-3, 4) if step]
        near = [told["ring"][(place + step) % count] for step in steps]
        assert tuple(sorted(near)) == terms.graph[device]


@pytest.mark.parametrize("rounds", [1, 2])
def test_a_stopped_run_resumes_to_the_same_end(finished, tmp_path, rounds):
    path = stop(secure_tiny(), tmp_path / "stopped", rounds)
    fedtiny.resume(path, reporter=Silent())
    assert differences(finished.path, path) == []


@pytest.mark.parametrize(
    ("stage", "call", "again"), [("take", 3, 2), ("seeds", 1, 5), ("shares", 1, 5)]
)
def test_a_kill_between_the_stages_reuses_no_mask(tmp_path, monkeypatch, stage, call, again):
    """The round is played again after some or all masked vectors were sent: they look anew.

    In this round one device is too late, so that others tell seeds of masks.
    """
    config = secure_tiny(fleet={"straggler_rate": 0.12}, seed=5)
    whole = train(config, tmp_path / "whole")
    assert [len(record["failed"]) for record in whole.metrics] == [0, 1, 1]
    sent, calls = {}, []
    carried, honest = secure._Wire._carried, getattr(secure._Wire, stage)

    def recorded(self, message):
        if message.kind == MASKED:
            key = (self.request.round, self.request.id, message.device)
            sent.setdefault(key, []).append(np.frombuffer(message.body[32:], np.uint32))
        return carried(self, message)

    def killed(self, asked):
        calls.extend([stage] if self.request.round == 1 else [])
        if self.request.round == 1 and len(calls) == call:
            raise KeyboardInterrupt
        return honest(self, asked)

    monkeypatch.setattr(secure._Wire, "_carried", recorded)
    monkeypatch.setattr(secure._Wire, stage, killed)
    path = tmp_path / "killed"
    with pytest.raises(KeyboardInterrupt):
        train(config, path)
    fedtiny.resume(path, reporter=Silent())
    assert differences(whole.path, path) == []
    twice = [found for found in sent.values() if len(found) == 2]
    assert len(twice) == again
    for one, other in twice:
        assert abs(np.corrcoef(one, other)[0, 1]) < 6 / np.sqrt(len(one))
        assert np.mean(one == other) < 0.01


def test_the_server_never_gets_a_reply(tmp_path, monkeypatch):
    """All that goes up in a run: no masked vector correlates with what its device computed."""
    plain, masked = [], []
    quantized, carried = Scales.quantized, secure._Wire._carried

    def noted(self, values, weight, draw):
        plain.append(quantized(self, values, weight, draw))
        return plain[-1]

    def recorded(self, message):
        if message.kind == MASKED:
            masked.append(np.frombuffer(message.body[32:], np.uint32))
        return carried(self, message)

    monkeypatch.setattr(Scales, "quantized", noted)
    monkeypatch.setattr(secure._Wire, "_carried", recorded)
    train(secure_tiny(rounds=6), tmp_path / "run")
    assert len(plain) == len(masked) >= 6 * 8
    scores = []
    for own, sent in zip(plain, masked, strict=True):
        assert not (own[-1] == sent[-1] and own[0] == sent[0])
        scores.append(np.corrcoef(own, sent)[0, 1] * np.sqrt(len(own)))
    assert np.abs(scores).max() < 5
    assert abs(np.mean(scores)) < 5 / np.sqrt(len(scores))


def test_dropouts_at_every_stage(tmp_path):
    """Devices fail before and while unmasking: rounds count or are refused, the run goes on."""
    fleet, runs = {"fail_rate": 0.15, "straggler_rate": 0.1}, []
    for privacy in (SECURE, FAST):
        config = secure_tiny(privacy, rounds=8, selection={"kind": "none"}, fleet=fleet)
        runs.append(train(config, tmp_path / str(len(runs))))
    reasons = {why for record in runs[0].metrics for why in record["failed"].values()}
    assert {"out of reach", "too late"} <= reasons <= {
        "out of reach", "too late", "too few devices for a secure sum",
    }  # fmt: skip
    assert lines(runs[0].path) == lines(runs[1].path)


def test_a_round_below_the_threshold_changes_nothing(tmp_path):
    config = secure_tiny(rounds=2, selection={"kind": "none"}, fleet={"straggler_rate": 0.6})
    run = train(config, tmp_path / "run")
    for record in run.metrics:
        assert set(record["failed"]) == {str(device) for device in range(6)}
        assert record["train_loss"] is None
    last = run.metrics[-1]["failed"].values()
    assert set(last) == {"too late", "too few devices for a secure sum"}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"robustness": {"mean": "median"}}, "--robustness.mean median needs every single reply"),
        ({"robustness": {"clip_norm": 1.0}}, "--robustness.clip-norm needs every single reply"),
        ({"robustness": {"bound": 5.0}}, "--robustness.bound compares single replies"),
        ({"robustness": {"reject": 2.0}}, "--robustness.reject compares single replies"),
        ({"eval_devices": True}, "--eval-devices shows every device's accuracy"),
        ({"fleet": {"devices": 2}}, "needs 3 devices or more in a round, and 2 would be asked"),
        ({"privacy": SECURE | {"threshold": 0.4}}, "--privacy.threshold must lie in [0.5, 1)"),
        ({"privacy": SECURE | {"neighbors": 1}}, "--privacy.neighbors must be at least 2"),
        ({"method": "feddst"}, "method 'feddst' has masks of the devices' own"),
        ({"method": "fedsgc"}, "method 'fedsgc' has masks of the devices' own"),
        ({"method": "fedrts"}, "method 'fedrts' counts each device's largest weights"),
    ],
)
def test_what_cannot_be_combined_is_refused(changes, said):
    with pytest.raises(ConfigError, match=r".") as caught:
        assemble(tiny(**({"privacy": SECURE} | changes)))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_growth_left_open_is_shared_and_said():
    assembly = assemble(secure_tiny())
    assembly.server.transport.close()
    assert any("places that all devices share" in note for note in assembly.notes)
    assert any("not compared with each other" in note for note in assembly.notes)


def test_no_key_is_saved(finished):
    text = (finished.path / "checkpoint.safetensors").read_bytes()
    fleet = SecureFleet(secure_tiny())
    assert set(fleet.state()) == {"bounds", "registered"}
    assert b"secure aggregation" in text


def test_bounds_follow_and_a_clipped_value_widens_its_bound():
    bounds = Bounds()
    assembly = assemble(secure_tiny(selection={"kind": "none"}))
    transport = assembly.server.transport
    fedtiny.federation.rounds.prepare(assembly.server, assembly.method)
    bounds = transport.secure.server.bounds
    fedtiny.federation.rounds.next_round(assembly.server, assembly.method, 9)
    first = dict(bounds.known)
    assert not bounds.clipped
    bounds.known = {name: 1e-9 if name.startswith("theta") else own for name, own in first.items()}
    fedtiny.federation.rounds.next_round(assembly.server, assembly.method, 9)
    assert bounds.clipped
    assert all(bounds.known[name] == 4e-9 for name in bounds.clipped)
    result = fedtiny.federation.rounds.next_round(assembly.server, assembly.method, 9)
    assert result.outcome.clipped == tuple(bounds.clipped) != ()
    assert round_record(assembly, result, 0.0)["clipped"] == bounds.clipped
    transport.close()


def test_settings_are_in_the_run_folder(finished):
    told = json.loads((finished.path / "result.json").read_text())["secure_aggregation"]
    assert told == {"neighbors": 5, "needed": 4, "cryptography": True}
    assert fedtiny.config.load(finished.path / "config.toml").privacy.secure_aggregation
    assert replace(finished.config.privacy, secure_aggregation=False).secure_aggregation is False


@pytest.mark.parametrize(
    "privacy",
    [
        {},
        {"noise_multiplier": 0.0, "clip": 0.5, "sampling": "fixed"},
        {"noise_multiplier": 1.0, "sampling": "fixed"},
        {"noise_multiplier": 1.0, "sampling": "fixed", "noise": "devices"},
        {"noise_multiplier": 1.0, "sampling": "fixed", "noise": "devices", "clip": 0.5},
    ],
)
def test_the_cost_model_counts_the_bytes_of_a_steady_round(privacy, monkeypatch):
    if privacy.get("noise_multiplier"):
        pytest.importorskip("dp_accounting")
    still = {"selection": {"kind": "none"}, "pruning": {"progressive": False}}
    assembly = assemble(secure_tiny(SECURE | privacy, **still))
    fedtiny.federation.rounds.prepare(assembly.server, assembly.method)
    masked, add_stream = [], Cryptography.add_stream

    def counted_stream(self, total, *told):
        masked.append(total.nbytes)
        add_stream(self, total, *told)

    monkeypatch.setattr(Cryptography, "add_stream", counted_stream)
    for _ in range(2):
        masked.clear()
        result = fedtiny.federation.rounds.next_round(assembly.server, assembly.method, 9)
    assembly.server.transport.close()
    work = assembly.workload.under(result.mask)
    counted = fedtiny.cost.traffic.training_round(work, 1)
    assert 6 * counted.down == result.outcome.traffic.down
    assert 6 * counted.up == result.outcome.traffic.up
    told = fedtiny.cost.privacy.summary(work)["secure_aggregation"]
    plain = fedtiny.cost.traffic.unsecured_round(work)
    assert told["extra_bytes_up"] + plain.up == counted.up
    assert 6 * told["masks"] + 6 == len(masked)  # six more that the server takes away
    assert 7 * told["mask_bytes"] == sum(masked)


def test_the_cost_model_counts_the_bytes_of_selection(finished):
    assembly = assemble(secure_tiny())
    assembly.server.transport.close()
    told = fedtiny.cost.traffic.selection(assembly.workload)
    keys = 6 * (27 + 8 + 96)
    assert 6 * told.up + keys == finished.selection["bytes_up"]


DIFFERENTIAL = {"noise_multiplier": 0.0, "clip": 0.5, "sampling": "fixed"}


def test_differential_privacy_of_a_secure_sum_is_that_of_a_plain_one(tmp_path):
    """Without noise both are the mean of the same clipped vectors, but for rounding."""
    plain = train(tiny(privacy=DIFFERENTIAL, fleet=SIX), tmp_path / "plain")
    hidden = train(secure_tiny(SECURE | DIFFERENTIAL), tmp_path / "secure")
    ours, theirs = hidden.selection["selection"], plain.selection["selection"]
    assert ours["chosen"] == theirs["chosen"]
    for name, values in weights(plain.path).items():
        assert np.allclose(weights(hidden.path)[name], values, atol=1e-5), name
    for one, other in zip(hidden.metrics, plain.metrics, strict=True):
        assert one["train_loss"] == pytest.approx(other["train_loss"], abs=1e-5)


def test_both_kinds_of_privacy_resume_and_spend_the_same(tmp_path):
    pytest.importorskip("dp_accounting")
    noisy = {"noise_multiplier": 1.0, "clip": "adaptive", "sampling": "fixed"}
    done = train(secure_tiny(SECURE | noisy), tmp_path / "done")
    path = stop(secure_tiny(SECURE | noisy), tmp_path / "stopped", 1)
    fedtiny.resume(path, reporter=Silent())
    assert differences(done.path, path) == []
    plain = train(tiny(privacy=noisy, fleet=SIX), tmp_path / "plain")
    told = [[record["epsilon"] for record in run.metrics] for run in (done, plain)]
    assert told[0] == told[1]


def test_a_rounded_vector_is_never_longer_than_the_clip():
    """So that rounding does not weaken the guarantee."""
    mechanism = Mechanism(clip=0.5, noise_multiplier=1.0, asked=6, seed=0, round=0, number=0)
    assembly = assemble(secure_tiny(selection={"kind": "none"}))
    theta = assembly.server.theta
    assembly.server.transport.close()
    request = Request("train", "fedtiny", 0, (Train(1),), theta, mechanism=mechanism)
    layout = layout_for(request, 1000)
    scales = layout.scales(Bounds(), 1000, 1)
    draw = np.random.default_rng(0)
    step = draw.standard_normal(len(theta.vector)).astype(np.float32)
    reply = Reply(0, 5, Theta(theta.mask, theta.vector + step), metrics={"loss": 0.0})
    numbers = scales.quantized(layout.values(reply), 1, draw)
    each = np.repeat(scales.bounds, scales.sizes)
    rounded = numbers[:-1] * (2 * each / scales.levels) - each
    place = [*layout.sizes].index(("", "theta"))
    start = sum(scales.sizes[:place])
    length = float(np.linalg.norm(rounded[start : start + len(step)]))
    assert 0.499 < length <= 0.5


@pytest.mark.parametrize(
    "changes",
    [
        {"pruning": {"growth": "gradient"}},
        {"pruning": {"growth": "votes"}, "rounds": 1},
        {"method": "fedmef", "rounds": 1},
    ],
)
def test_gradients_at_positions_of_a_devices_own_sum_too(tmp_path, changes, monkeypatch):
    """The same weights are grown and dropped as in a plain run, at least 99 of 100."""
    swaps = swaps_of(monkeypatch)
    plain = train(tiny(fleet=SIX, robustness={"bound": 0.0}, **changes), tmp_path / "plain")
    theirs = first_of(swaps)
    hidden = train(secure_tiny(**changes), tmp_path / "secure")
    ours = first_of(swaps)
    assert len(ours & theirs) >= 0.99 * max(len(ours), len(theirs))
    first, beside = hidden.metrics[0], plain.metrics[0]
    assert first["mask_change"] == beside["mask_change"] > 0
    assert first["bytes_up"] > beside["bytes_up"]
    fast = train(secure_tiny(FAST, **changes), tmp_path / "fast")
    assert "model" not in differences(hidden.path, fast.path)


def test_what_a_table_of_gradients_costs_is_said_and_counted():
    config = secure_tiny(selection={"kind": "none"}, pruning={"growth": "gradient"})
    assembly = assemble(config)
    assert any("the largest gradients travel in a table of up to" in n for n in assembly.notes)
    fedtiny.federation.rounds.prepare(assembly.server, assembly.method)
    mask = assembly.server.theta.mask
    result = fedtiny.federation.rounds.next_round(assembly.server, assembly.method, 9)
    assembly.server.transport.close()
    counted = fedtiny.cost.traffic.training_round(assembly.workload.under(mask), 0)
    keys = 6 * (27 + 8 + 96)
    assert 6 * counted.up + keys == result.outcome.traffic.up


def test_a_table_that_cannot_be_read_grows_nothing(tmp_path, monkeypatch):
    def unreadable(self, words):
        raise SecureAggregationError("the table of gradients cannot be read")

    monkeypatch.setattr(Table, "read", unreadable)
    run = train(secure_tiny(pruning={"growth": "gradient"}, rounds=1), tmp_path / "run")
    assert run.metrics[0]["mask_change"] == 0
    assert run.metrics[0]["train_loss"] is not None
