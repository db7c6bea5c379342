"""What settings of training cost a device: a measurement at the end, and what FedProx holds."""

from dataclasses import replace

import pytest

from fedtiny.config import ServerConfig
from fedtiny.cost import Workload, flops, memory, summary, traffic

from ..runs.tiny import lines, tiny, train
from .tiny import GIVEN, config, tiny_network, workload

EMA = ServerConfig(average="ema")


def test_an_average_costs_one_forward_pass_over_the_development_set():
    work, plain = workload(server=EMA), workload()
    forward, development = work.load.forward, 5  # a quarter of 20 samples
    assert flops.averaged(work) == development * forward
    last = work.config.rounds - 1
    added = sum(flops.of_round(work, last).values()) - sum(flops.of_round(plain, last).values())
    assert added == development * forward
    for round in (0, last - 1):
        assert flops.of_round(work, round) == flops.of_round(plain, round)


def test_nothing_else_of_a_summary_changes():
    row, plain = (
        summary(config(**more), model=tiny_network(), **GIVEN) for more in ({"server": EMA}, {})
    )
    added = {"average_flops", "average_bytes_down", "average_bytes_up"}
    assert row.keys() - plain.keys() == added
    assert {name: row[name] for name in plain} == plain
    assert row["average_bytes_down"] > 4 * row["kept_weights"]


def test_the_costs_are_those_of_a_run(tmp_path):
    """The devices hold the mask of the last round, so that only values travel."""
    how = {"method": "fl_pqsu", "rounds": 2, "device_backend": "torch"}
    plain = lines(train(tiny(**how), tmp_path / "plain").path)[-1]
    how["server"] = {"average": "ema"}
    averaged = lines(train(tiny(**how), tmp_path / "averaged").path)[-1]
    inputs = {"shape": (1, 8, 8), "classes": 10, "samples": 23}
    work = Workload.of(tiny(**how), **inputs)
    sent = traffic.averaged(work)
    assert averaged["bytes_down"] - plain["bytes_down"] == 3 * sent.down
    assert averaged["bytes_up"] - plain["bytes_up"] == pytest.approx(3 * sent.up, abs=6)
    assert averaged["flops"] - plain["flops"] == flops.averaged(work)


def test_fedprox_holds_what_was_received():
    plain = config()
    fedprox = replace(plain, train=replace(plain.train, proximal_mu=0.1))
    work, held = (Workload.of(c, model=tiny_network(), **GIVEN) for c in (plain, fedprox))
    items = memory.device(held)
    assert items.pop("received_weights") == items["weights"]
    assert items == memory.device(work)
    assert memory.paper(held) == memory.paper(work)
