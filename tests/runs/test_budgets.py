"""Runs within a budget of memory and one of FLOPs: what is chosen, told, kept and measured."""

import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import fedtiny
from fedtiny import config as configs
from fedtiny.cost import flops
from fedtiny.errors import ConfigError
from fedtiny.experiments.finished import measure, unlike
from fedtiny.federation.rounds import federate
from fedtiny.native.library import available
from fedtiny.runs.assembly import assemble
from fedtiny.runs.folder import RunFolder
from fedtiny.runs.reporter import Silent
from fedtiny.runs.split import load_split
from fedtiny.sparse.flow import LayerFlow
from fedtiny.sparse.theta import length

from ..devices.gpu.twins import quick
from .tiny import differences, stop, train

pytestmark = pytest.mark.skipif(not available(), reason="needs the native library")
STATUS = Path("/proc/self/status")


def within(memory="1.5MB", share="20%", **changes):
    settings = {"memory_budget": memory, "flops_budget": share, "device_backend": "auto"}
    return quick(**settings | changes)


def chosen(**settings):
    assembly = assemble(within(**settings))
    assembly.server.transport.close()
    return assembly


def plain_share(assembly):
    work = assembly.workload
    return flops.plain(work) / flops.dense_round(work)


@pytest.mark.parametrize("budgets", ["uniform", "erk", "flow"])
@pytest.mark.parametrize("method", ["fedtiny", "feddst", "snip"])
def test_both_budgets_are_kept_in_every_round(method, budgets, tmp_path):
    pruning = {"budgets": budgets, "iterations": 5, "r_stop": 2}
    result = train(within(method=method, pruning=pruning), tmp_path / "run")
    about = (tmp_path / "run" / "about.json").read_text()
    dense = int(re.search(r'"flops": (\d+)', about)[1])
    for record in result.metrics:
        assert record["flops_plain"] <= 0.2 * dense
        assert record["memory_arena"] <= 1_500_000
        assert record["density"] <= result.config.density
    last = result.metrics[-1]
    assert last["flops"] == last["flops_plain"], "nothing is adjusted by then"


def test_both_budgets_are_kept_as_the_paper_counts(tmp_path):
    config = within("100kB", "20%", memory_model="paper")
    result = train(config, tmp_path / "run")
    assert all(record["memory_paper"] <= 100_000 for record in result.metrics)
    assert result.config.train.batch_size == 32, "which the paper does not count"


def test_density_comes_first_then_the_batch_then_the_storage():
    """FLOPs lower the density alone; memory the batch, and the storage where that helps it."""
    plain = chosen(memory="10MB", share="100%").config
    assert (plain.density, plain.train.batch_size, plain.device.storage) == (0.1, 32, "float32")
    slow = chosen(memory="10MB", share="8%").config
    assert slow.density < 0.1
    assert (slow.train.batch_size, slow.device.storage) == (32, "float32")
    small = chosen(memory="1MB", share="100%").config
    assert small.density == 0.1
    assert (small.train.batch_size < 32, small.device.storage) == (True, "float16")
    both = chosen(memory="1MB", share="8%").config
    assert both.density == slow.density, "solved before the batch"
    assert both.train.batch_size >= small.train.batch_size, "fewer weights leave room"


def test_flow_budgets_walk_to_the_most_operations():
    pruning = {"budgets": "flow", "iterations": 5}
    wide, narrow = (chosen(memory="10MB", share=s, pruning=pruning) for s in ("50%", "15%"))
    assert wide.config.density == narrow.config.density == 0.1
    assert 0 <= wide.config.pruning.flow_beta < narrow.config.pruning.flow_beta <= 1
    assert 0.13 < plain_share(narrow) <= 0.15


def test_what_was_chosen_is_told_before_training(tmp_path, capsys):
    fedtiny.run(within(rounds=1, pruning={"budgets": "erk"}), out=tmp_path / "run")
    said = capsys.readouterr().out.splitlines()
    told = next(n for n, line in enumerate(said) if line.startswith("to fit 1.5MB and 20% FLOPs: "))
    assert re.search(r": density 0\.\d+, batches of \d+, activations in float\d+", said[told])
    assert re.search(
        r"^memory of a device: .* as the paper counts, .* with PyTorch's activations, .* in the "
        r"arena of a native device; a plain round: .* FLOPs, \d+\.\d\d% of the dense network's$",
        said[told + 1],
    )
    assert not any(line.startswith("round ") for line in said[:told])


@pytest.mark.parametrize("budgets", ["uniform", "flow"])
def test_a_stopped_run_keeps_what_was_chosen(budgets, tmp_path):
    config = within(pruning={"budgets": budgets, "iterations": 5})
    whole = train(config, tmp_path / "whole").path
    path = stop(config, tmp_path / "stopped", 1)
    fedtiny.resume(path, reporter=Silent())
    assert differences(whole, path) == []


def test_a_finished_run_is_costed_by_the_layer_budgets_it_had(tmp_path, monkeypatch):
    asked = within(rounds=1, method="feddst", pruning={"budgets": "flow", "iterations": 5})
    result = train(asked, tmp_path / "run")
    monkeypatch.setattr(LayerFlow, "_counts", lambda *_: pytest.fail("flow is measured again"))
    numbers = measure(asked, RunFolder(result.path))
    assert numbers["flops_training"] == result.metrics[-1]["flops_plain"]
    assert unlike(asked, configs.load(result.path / "config.toml")) == []


@pytest.mark.parametrize(("method", "budgets"), [("ssfl", "uniform"), ("snip", "global")])
def test_a_finished_run_of_one_threshold_is_costed_by_the_layers_it_left(method, budgets, tmp_path):
    asked = quick(rounds=2, method=method, pruning={"budgets": budgets, "iterations": 5})
    result = train(asked, tmp_path / "run")
    told, numbers = result.metrics[-1], measure(asked, RunFolder(result.path))
    table = load_split(RunFolder(result.path)).table
    inputs = {"shape": (1, 8, 8), "classes": 10, "samples": int(table.sum()) // len(table)}
    even = fedtiny.cost.summary(quick(rounds=2, method="fl_pqsu"), **inputs)
    assert numbers["flops_training"] == numbers["flops_round"] == told["flops_plain"]
    assert numbers["flops_training"] != even["flops_training"]
    assert numbers["flops_ratio"] * even["flops_dense_round"] == pytest.approx(told["flops_plain"])


def test_memory_is_planned_for_a_dense_question_before_the_rounds():
    with pytest.raises(ConfigError, match=r"at density 1: raise --memory-budget$"):
        chosen(memory="1MB", share=None, method="ssfl")
    assert chosen(memory="10MB", share=None, method="ssfl").config.density == 0.1
    with pytest.raises(ConfigError, match=r"at density 0\.7: raise --memory-budget or lower"):
        chosen(memory="300kB", share=None, method="fl_pqsu", density=0.7, device_backend="native")


def test_a_finished_run_of_a_method_that_is_gone_is_costed_as_plain_training(tmp_path):
    asked = quick(rounds=2, method="fl_pqsu")
    result = train(asked, tmp_path / "run")
    folder = RunFolder(result.path)
    text = folder.config.read_text()
    folder.config.write_text(text.replace('method = "fl_pqsu"', 'method = "gone"'))
    gone = replace(asked, method="gone")
    assert measure(gone, folder)["flops_training"] == measure(asked, folder)["flops_training"]


def test_a_budget_that_nothing_fits_is_one_sentence_with_the_least():
    with pytest.raises(ConfigError, match=r"at least \d.* MB .* at density 0\.1: raise"):
        chosen(memory="100kB")
    with pytest.raises(ConfigError, match=r"at least [\d,]+ FLOPs in a plain round, [\d.]+% of"):
        chosen(share="0.1%")


@pytest.mark.skipif(not STATUS.exists(), reason="needs Linux's account of memory")
@pytest.mark.parametrize(
    ("budget", "density"), [(10_000_000, 0.001), (24_000_000, 0.001), (24_000_000, 0.01)]
)
def test_the_peak_memory_of_a_native_device_is_its_budget_and_messages(budget, density):
    """Of a real process, beside Python, NumPy and its images: all that rounds make it take."""
    values, peak = peak_of_a_process(budget, density)
    assert 0.5 * budget < peak <= budget + MESSAGES * values + LIBRARIES


MESSAGES = 64  # bytes of Python's for a value that travels: thetas, masks, requests and replies
LIBRARIES = 1 << 19  # bytes of code that rounds are the first to touch, which the system shares


def peak_of_a_process(budget, density):
    """Values that travel, and the most that two rounds add to the memory of a device's process."""
    config = quick(
        width=64,
        density=density,
        memory_budget=str(budget),
        device_backend="native",
        device={"python": sys.executable},
        fleet={"devices": 2},
        data={"limit_train": 200, "limit_test": 20},
        train={"local_epochs": 1, "batch_size": 64, "pretrain_epochs": 0},
        selection={"pool_size": 2},
        pruning={"r_stop": 1},
    )
    assembly = assemble(config)
    (worker,) = assembly.executor._workers
    try:
        before = resident(worker.process.pid, "VmRSS")
        assert assembly.config.device_budget == budget
        for result in federate(assembly.server, assembly.method, rounds=2):
            assert assembly.arena(result.mask) <= budget
        return length(result.mask), resident(worker.process.pid, "VmHWM") - before
    finally:
        assembly.server.transport.close()


def resident(pid, key):
    """Bytes of a process in memory, now or at most."""
    text = Path(f"/proc/{pid}/status").read_text()
    return 1024 * int(re.search(rf"{key}:\s+(\d+) kB", text)[1])
