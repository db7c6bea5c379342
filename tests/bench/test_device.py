"""A benchmark's arithmetic by hand, and what its separate processes load."""

import json
import subprocess
import sys
from dataclasses import asdict, replace

import pytest

from fedtiny import extras
from fedtiny.errors import FedTinyError

FOLDER = "benchmarks/device"
measure, contender = (extras.shipped_module(FOLDER, name) for name in ("measure", "contender"))
Task, Settings = measure.Task, measure.Settings
DENSE, Contender, field = contender.DENSE, contender.Contender, contender.field
Spent = measure.Spent
interleaved, rows, units = measure.interleaved, measure.rows, measure.units
resident_bytes = measure.resident_bytes

SETTINGS = Settings("small", (0.5, 0.1), width=8, batch_size=4, threads=1, rounds=2)
MASKED = Contender("masked", 0.5, channels_last=True)
NATIVE = Contender("native", 0.1)


@pytest.fixture(scope="module")
def task():
    return Task.of(SETTINGS)


def test_ratios_are_against_the_faster_and_the_leaner_dense_layout(task):
    walls = {DENSE[0]: [9.0, 8.0, 9.0], DENSE[1]: [8.0, 6.0, 4.0], NATIVE: [1.0, 2.0, 4.0]}
    times = {who: [Spent(wall, 2 + wall) for wall in spent] for who, spent in walls.items()}
    found = rows(task, times, {DENSE[0]: 300, DENSE[1]: 400, NATIVE: 100})
    assert [row["ms"] for row in found] == [9.0, 6.0, 2.0]
    assert [row["speedup"] for row in found] == [0.75, 1.0, 3.0], "the median of 8, 3 and 1"
    assert [row["memory_ratio"] for row in found] == [1.0, 0.75, 3.0]
    assert found[2]["speedup_range"] == [1.0, 8.0]
    assert [row["cpu_ms"] for row in found] == [11.0, 8.0, 4.0]
    assert found[2]["cpu_speedup"] == 2.0, "the median of 10 / 3, 8 / 4 and 6 / 6"


def test_without_memory_there_is_no_ratio(task):
    milliseconds = {DENSE[0]: 2.0, DENSE[1]: 4.0, NATIVE: 1.0}
    found = rows(task, {who: [Spent(ms, ms)] for who, ms in milliseconds.items()}, {})
    assert [(row["resident_bytes"], row["memory_ratio"]) for row in found] == [(None, None)] * 3
    assert found[-1]["speedup"] == 2.0


def test_every_density_has_each_native_storage_and_is_measured_once():
    contenders = field(replace(SETTINGS, density=(0.5, 0.1, 0.5)))
    assert contenders[:3] == [*DENSE, MASKED]
    assert [(c.density, c.storage, c.recompute) for c in contenders[3:]] == [
        (density, *kind)
        for density in (0.5, 0.1)
        for kind in (("float32", False), ("float16", False), ("float16", True))
    ]
    assert field(replace(SETTINGS, remove_dead=True))[-1].remove_dead
    bf16 = [each.name for each in field(replace(SETTINGS, bf16=True)) if each.autocast]
    assert bf16 == ["dense, channels last, bf16"]


def test_bf16_trains_in_bf16_beside_float32(task, monkeypatch):
    from torch.nn import functional

    kinds, loss = [], functional.cross_entropy
    monkeypatch.setattr(
        functional, "cross_entropy", lambda x, y: kinds.append(str(x.dtype)) or loss(x, y)
    )
    for who in (DENSE[1], contender.BF16):
        who.step(task)()
    assert kinds == ["torch.float32", "torch.bfloat16"]


def test_all_take_turns(task):
    told = []
    times = interleaved(task, [DENSE[0], MASKED, NATIVE], 2, told.append)
    names = ["dense", "masked, channels last", "native"]
    rounds = [f"round {turn}/2: {name}" for turn in (1, 2) for name in names]
    assert told == [*(f"warming up: {name}" for name in names), *rounds]
    assert all(len(spent) == 2 for spent in times.values())
    assert min(step.wall for spent in times.values() for step in spent) > 0


def test_progress_is_told_as_often_as_announced():
    assert units(SETTINGS) == 9 * (1 + 2 + 1)
    assert units(replace(SETTINGS, memory=False)) == 9 * (1 + 2)


@pytest.mark.parametrize("layout", [False, True])
def test_masked_training_keeps_pruned_weights_at_zero(task, monkeypatch, layout):
    from fedtiny import models

    built, build = [], models.build
    monkeypatch.setattr(models, "build", lambda *a, **k: built.append(build(*a, **k)) or built[-1])
    step = replace(MASKED, channels_last=layout).step(task)
    step()
    weights = dict(built[0].named_parameters())
    for name, kept in task.mask(0.5).items():
        assert set(weights[name].flatten().nonzero().flatten().tolist()) <= set(kept.tolist())


def test_the_papers_memory_shrinks_with_density(task):
    dense, native = (contender.parameter_bytes(task) for contender in (DENSE[0], NATIVE))
    assert dense == 12 * task.trained == MASKED.parameter_bytes(task)
    assert native < dense / 3


def test_a_native_process_loads_no_torch_and_is_lean(task):
    order = json.dumps({"task": asdict(task), "contender": asdict(NATIVE)})
    load = f"from fedtiny.extras import shipped_module; shipped_module({FOLDER!r}, 'alone').main()"
    code = f"import sys; {load}; exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], input=order, text=True, check=True)
    assert 10e6 < resident_bytes(task, NATIVE) < resident_bytes(task, DENSE[0])


def test_a_separate_process_that_fails_is_told_of(task):
    with pytest.raises(FedTinyError, match=r"trains 'native' alone failed: .*a network has"):
        resident_bytes(replace(task, graph=[]), NATIVE)


@pytest.mark.parametrize(("load", "busy"), [(0.3, False), (1.8, True)])
def test_a_machine_is_busy_if_other_work_has_the_cores(load, busy):
    assert measure.is_busy({"cores": 2, "load_average": load}, threads=2) is busy
