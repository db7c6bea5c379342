"""What a round writes down: measurements, and who was missing."""

import pytest

from fedtiny.errors import FedTinyError

from .tiny import tiny, train

ALL_OUT = {"fail_rate": 0.999, "min_replies": 3}
ALL_STRAGGLERS = {"straggler_rate": 0.999, "min_replies": 3}


def test_accuracy_is_measured_every_so_many_rounds_and_at_the_end(tmp_path):
    result = train(tiny(rounds=5, eval_every=2), tmp_path / "run")
    measured = [record["accuracy"] is not None for record in result.metrics]
    assert measured == [False, True, False, True, True]
    assert [record["loss"] is not None for record in result.metrics] == measured
    assert result.accuracy == result.metrics[-1]["accuracy"]


def test_accuracy_on_the_devices_own_data(tmp_path):
    result = train(tiny(rounds=2, eval_devices=True), tmp_path / "run")
    for record in result.metrics:
        assert 0 <= record["device_accuracy_worst"] <= record["device_accuracy_mean"] <= 1
    assert "device_accuracy_mean" not in train(tiny(rounds=1), tmp_path / "plain").metrics[0]


def test_a_round_that_nobody_answers_is_void_and_says_who_is_missing(tmp_path):
    config = tiny(rounds=2, selection={"kind": "none"}, fleet=ALL_OUT)
    result = train(config, tmp_path / "run")
    for record in result.metrics:
        assert record["counted"] is False
        assert record["answered"] == []
        assert record["failed"] == dict.fromkeys("012", "out of reach")
        assert (record["bytes_down"], record["bytes_up"], record["mask_change"]) == (0, 0, 0)
        assert record["train_loss"] is None
    assert result.metrics[0]["loss"] == result.metrics[1]["loss"]


def test_late_devices_have_cost_their_download(tmp_path):
    config = tiny(rounds=1, selection={"kind": "none"}, fleet=ALL_STRAGGLERS)
    (record,) = train(config, tmp_path / "run").metrics
    assert record["failed"] == dict.fromkeys("012", "too late")
    assert record["bytes_down"] > record["bytes_up"] == 0
    assert record["counted"] is False


def test_who_answers_and_who_fails_makes_up_who_was_asked(tmp_path):
    fleet = {"devices": 6, "fail_rate": 0.5, "min_samples": 2}
    records = train(tiny(selection={"kind": "none"}, fleet=fleet), tmp_path / "run").metrics
    for record in records:
        assert sorted([*record["answered"], *map(int, record["failed"])]) == list(range(6))
        assert record["counted"] == bool(record["answered"])
    assert 0 < sum(len(record["failed"]) for record in records) < 18


def test_a_fraction_of_the_devices_is_asked(tmp_path):
    result = train(tiny(fleet={"fraction": 0.5}), tmp_path / "run")
    assert [len(record["answered"]) for record in result.metrics] == [2, 2, 2]


NO_HEAD_START = {"selection": {"kind": "none"}, "train": {"pretrain_epochs": 0, "lr": 1e30}}


def test_devices_whose_training_diverges_are_named(tmp_path):
    with pytest.raises(FedTinyError, match=r"device 0: .*diverged.*lower --train\.lr"):
        train(tiny(**NO_HEAD_START), tmp_path / "run")


def test_divergence_in_pretraining_is_not_put_down_to_a_device(tmp_path):
    with pytest.raises(FedTinyError, match=r"diverged.*lower --train\.lr") as raised:
        train(tiny(train={"lr": 1e30}), tmp_path / "run")
    assert "2147483647" not in str(raised.value)


def test_the_largest_seed_runs(tmp_path):
    assert train(tiny(rounds=1, seed=2**63 - 1), tmp_path / "run").config.seed == 2**63 - 1
