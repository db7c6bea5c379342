"""Runs under differential privacy."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest

import fedtiny
from fedtiny.config import from_dict
from fedtiny.errors import ConfigError, FedTinyError
from fedtiny.federation import private
from fedtiny.runs.formatting import privacy_line, round_line
from fedtiny.runs.reporter import Silent

from .tiny import FLAGS, Mortal, differences, lines, own_data, stop, tiny, train

CLIPPED = {"noise_multiplier": 0.0, "clip": 0.5}
BUDGET = {"epsilon": 20.0, "delta": 0.01}
ALIKE = replace(
    own_data(160), partition=fedtiny.Partition(tuple(np.arange(k, 160, 5) for k in range(3)))
)


@pytest.fixture
def dp():
    return pytest.importorskip("dp_accounting")


def resume(path):
    return fedtiny.resume(path, reporter=Silent())


def result_of(path):
    return json.loads((path / "result.json").read_text())


def bits(path):
    return (path / "model.safetensors").read_bytes()


@pytest.mark.parametrize("kind", [{"method": "fedavg"}, {"selection": {"kind": "none"}}])
def test_without_noise_and_clip_a_run_is_the_plain_one_to_the_last_bit(tmp_path, kind):
    """Where all devices have as many samples, since under privacy each counts the same."""
    plain = tiny(**kind, pruning={"growth": "random"}, fleet={"fraction": 0.5})
    privacy = {"noise_multiplier": 0.0, "clip": float("inf"), "sampling": "fixed"}
    hidden = replace(plain, privacy=replace(plain.privacy, **privacy))
    one = train(plain, tmp_path / "plain", data=ALIKE).path
    other = train(hidden, tmp_path / "private", data=ALIKE).path
    assert bits(one) == bits(other)
    assert [line["answered"] for line in lines(one)] == [line["answered"] for line in lines(other)]
    assert [line["epsilon"] for line in lines(other)] == [None] * 3


def test_clipping_alone_changes_a_run_and_resumes(tmp_path):
    config = tiny(privacy=CLIPPED)
    whole = train(config, tmp_path / "whole")
    assert bits(whole.path) != bits(train(tiny(), tmp_path / "plain").path)
    resume(path := stop(config, tmp_path / "stopped", 1))
    assert differences(whole.path, path) == []
    assert result_of(whole.path)["privacy"]["epsilon"] is None


@pytest.mark.parametrize(
    "changes",
    [
        {"privacy": {**BUDGET, "clip": "adaptive"}, "pruning": {"growth": "shared"}},
        {"privacy": {**BUDGET, "sampling": "fixed"}, "fleet": {"fraction": 0.5, "fail_rate": 0.3}},
    ],
)
def test_a_stopped_run_resumes_to_the_same_noise_and_spends_nothing_twice(dp, tmp_path, changes):
    config = tiny(**changes)
    whole = train(config, tmp_path / "whole")
    path = stop(config, tmp_path / "stopped", 2)
    resume(path)
    assert differences(whole.path, path) == []
    found = result_of(whole.path)["privacy"]
    assert found["releases"] == 4  # a selection and three rounds
    assert 19.9 < found["epsilon"] <= 20


def test_a_killed_run_goes_on_with_the_same_noise(dp, tmp_path):
    flags = [*FLAGS, "--privacy.epsilon", "20", "--privacy.delta", "0.01"]
    mortal = Mortal()
    try:
        mortal.to_the_end("run", *flags, "--out", str(tmp_path / "whole"))
        for call in (2, 3):  # while the account of a round is written
            path = str(tmp_path / f"killed-{call}")
            killed = mortal("run", *flags, "--out", path, at="torn write", call=call)
            assert killed["code"] == -9
            mortal.to_the_end("resume", path)
            assert differences(tmp_path / "whole", tmp_path / f"killed-{call}") == []
    finally:
        mortal.close()


def test_epsilon_after_every_round_is_that_of_the_releases_so_far(dp, tmp_path):
    privacy = {"noise_multiplier": 1.5, "delta": 0.01, "clip": 1.0}
    path = train(tiny(privacy=privacy, fleet={"fraction": 0.5}), tmp_path / "run").path
    account = dp.rdp.RdpAccountant()
    event = dp.PoissonSampledDpEvent(0.5, dp.GaussianDpEvent(1.5))
    account.compose(event)  # the selection
    for line in lines(path):
        account.compose(event)
        assert line["epsilon"] == pytest.approx(account.get_epsilon(0.01), rel=1e-12)
        assert line["clip"] == 1.0


def test_a_run_stops_before_its_budget_is_exceeded(dp, tmp_path):
    privacy = {"noise_multiplier": 1.5, "epsilon": 6.0, "delta": 0.01}
    config = tiny(rounds=9, eval_every=5, privacy=privacy, server={"average": "swa"})
    done = train(config, tmp_path / "run")
    result = result_of(done.path)
    told, played = result["privacy"], result["rounds"]
    assert 1 < played == len(done.metrics) < 9
    assert told["epsilon"] <= 6
    assert done.accuracy == done.metrics[-1]["accuracy"] is not None
    assert "another would exceed the budget" in privacy_line(result, 9)
    assert "epsilon" in round_line(done.metrics[-1], 9)
    resume(done.path)
    assert result_of(done.path) == result


def test_native_devices_and_the_gpu_simulator_too(dp, tmp_path):
    privacy = {**BUDGET, "clip": 0.5}
    for name, where in {
        "native": {"device_backend": "native"},
        "torch": {"device_backend": "torch"},
        "gpu": {"simulator": "gpu"},
    }.items():
        done = train(tiny(privacy=privacy, **where), tmp_path / name)
        assert 19.9 < done.metrics[-1]["epsilon"] <= 20


@pytest.mark.parametrize("workers", [1, 2])
def test_workers_change_nothing(tmp_path, workers):
    path = train(tiny(privacy=CLIPPED, workers=workers), tmp_path / "run").path
    one = train(tiny(privacy=CLIPPED, fleet={"wire": "encode"}), tmp_path / "encoded").path
    assert bits(path) == bits(one)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"robustness": {"mean": "median"}}, "leave it at weighted"),
        ({"robustness": {"clip_norm": 1.0}}, "use that"),
        ({"eval_devices": True}, "measure on the server's test set"),
        ({"fleet": {"min_replies": 2}}, "leave it at 1"),
        ({"checkpoint_every": 2}, "must be 1"),
        ({"privacy": {"clip": float("inf")}}, "give a finite one"),
        ({"privacy": {"noise_multiplier": 0.0}}, "privacy.epsilon needs noise"),
        ({"privacy": {"accountant": "pld", "sampling": "fixed"}}, "Poisson sampling only"),
        ({"privacy": {"delta": 1.0}}, r"must lie in \(0, 1\)"),
        ({"privacy": {"noise_multiplier": -1.0}}, "must be 0 or above"),
    ],
)
def test_what_cannot_be_had_together_is_refused(settings, sentence):
    privacy = {"epsilon": 8.0, **settings.get("privacy", {})}
    with pytest.raises(ConfigError, match=sentence):
        from_dict({**settings, "privacy": privacy})


def test_a_secret_of_noise_that_there_is_none_of_is_refused():
    with pytest.raises(ConfigError, match=r"secret-noise needs --privacy\.epsilon or"):
        from_dict({"privacy": {"secret_noise": True}})


METHODS = ("feddst", "fedsgc", "fedrts", "fedfit", "fedmef", "prunefl", "ssfl")


@pytest.mark.parametrize("method", METHODS)
def test_methods_whose_devices_send_more_than_a_vector_are_refused(tmp_path, method):
    config = tiny(method=method, privacy={"epsilon": 8.0})
    with pytest.raises(ConfigError, match="cannot hide; use"):
        train(config, tmp_path / "run")


def test_growth_by_gradients_is_refused_and_unless_it_is_asked_for_left(tmp_path):
    for growth in ("gradient", "fisher", "votes"):
        config = tiny(privacy=CLIPPED, pruning={"growth": growth})
        with pytest.raises(ConfigError, match="use random or shared"):
            train(config, tmp_path / growth)
    done = train(tiny(privacy=CLIPPED), tmp_path / "run")
    assert sum(line["mask_change"] for line in lines(done.path)) > 0
    assert len(json.loads((done.path / "selection.json").read_text())["selection"]["losses"]) == 2


def test_a_noise_that_is_too_small_for_the_budget_is_refused(dp, tmp_path):
    config = tiny(privacy={"noise_multiplier": 0.2, "epsilon": 1.0})
    with pytest.raises(FedTinyError, match="exceeds"):
        train(config, tmp_path / "run")


def test_secret_noise_is_not_the_seeds_and_resumes_from_the_checkpoint(dp, tmp_path):
    privacy = {"noise_multiplier": 1.0, "clip": 0.5, "delta": 0.01}
    seeded = train(tiny(privacy=privacy), tmp_path / "seeded").path
    config = tiny(privacy={**privacy, "secret_noise": True})
    path = stop(config, tmp_path / "secret", 1)
    shutil.copytree(path, tmp_path / "copy")
    for own in (path, tmp_path / "copy"):
        resume(own)
    assert bits(path) == bits(tmp_path / "copy") != bits(seeded)
    assert bits(train(config, tmp_path / "another").path) != bits(path)


@pytest.mark.parametrize("secret", [False, True])
def test_a_run_says_what_its_noise_follows_from(secret):
    config = tiny(privacy={"epsilon": 8.0, "secret_noise": secret})
    told = " ".join(private.remarks(config, norms=()))
    assert ("use --privacy.secret-noise" in told) is not secret
