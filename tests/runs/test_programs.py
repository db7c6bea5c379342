"""Runs in which devices are programs without Python: the same bytes, resumed, and planned for."""

import shlex
import sys
from functools import partial
from pathlib import Path

import pytest

import fedtiny
from fedtiny.devices.hello import Hello
from fedtiny.errors import ConfigError, FedTinyError
from fedtiny.native.library import Options, available
from fedtiny.native.model import NativeModel, _with_lanes, largest_fit
from fedtiny.runs import resolve
from fedtiny.runs.assembly import assemble
from fedtiny.runs.reporter import Silent

from ..devices.gpu.twins import quick
from .test_backend import files

pytestmark = pytest.mark.skipif(not available(), reason="needs the native library")
STAND_IN = Path(__file__).parents[1] / "devices/stand_in.py"
COMMAND = f"{shlex.quote(sys.executable)} {shlex.quote(str(STAND_IN))} {{data}}"


def config(program, **changes):
    """A run with some devices that are programs."""
    return quick(device_backend="native", device={"program": program}, **changes)


class StopError(Exception):
    pass


class Stopping(Silent):
    """Ends a run after its first round."""

    def round_done(self, record):
        raise StopError


@pytest.mark.slow
def test_programs_change_no_bit_and_a_run_is_resumed_with_them(tmp_path):
    program = f"1={COMMAND}"
    whole = fedtiny.run(quick(device_backend="native"), out=tmp_path / "a", reporter=Silent())
    with pytest.raises(StopError):
        fedtiny.run(config(program, workers=2), out=tmp_path / "b", reporter=Stopping())
    with pytest.raises(ConfigError, match=r"give it again with --device\.program"):
        fedtiny.resume(tmp_path / "b", reporter=Silent())
    fedtiny.resume(tmp_path / "b", device_program=program, reporter=Silent())
    assert files(tmp_path / "b") == files(whole.path)


@pytest.mark.slow
def test_a_program_that_dies_in_every_round_counts_as_failed(tmp_path):
    result = fedtiny.run(
        config(f"1={COMMAND} --lie dies", rounds=1), out=tmp_path / "run", reporter=Silent()
    )
    assert list(result.metrics[0]["failed"]) == ["1"]
    assert "device 1 is gone" in result.metrics[0]["failed"]["1"]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"device_backend": "torch"}, r"--device\.program needs --device-backend native"),
        ({"simulator": "gpu"}, "GPU simulator"),
        ({"method": "fedsgc"}, "method 'fedsgc' asks for what devices without Python cannot do"),
        ({"method": "fedmef"}, "method 'fedmef' asks for what devices without Python cannot do"),
        ({"pruning": {"extrude": True}}, "method 'fedtiny' with --pruning.extrude asks for what"),
        ({"privacy": {"secure_aggregation": True}}, "cannot mask their replies"),
        ({"device": {"program": "9=true"}}, "names device 9"),
        ({"device": {"timeout": 0}}, "must be above 0"),
        ({"device": {"timeout": 1e10}}, "at most 86400, a day"),
    ],
)
def test_what_programs_cannot_do(changes, told):
    with pytest.raises(ConfigError, match=told):
        assemble(quick(**({"device_backend": "native", "device": {"program": "true"}} | changes)))


def hello(lanes, memory=0):
    """A device that computes so many images at once."""
    return Hello("board", None, 10, 2, (1, 8, 8), 10, "", lanes, memory)


def test_budgets_are_those_of_the_devices():
    asked = assemble(quick(device_backend="native", memory_budget="2MB", memory_model="device"))
    asked.server.transport.close()
    count = asked.config.fleet.devices
    assert resolve.budgets_of(asked.config, {}) == {0: 2_000_000}
    some = {0: hello(4), 1: hello(8, 1_500_000), 2: hello(8, 3_000_000)}
    assert resolve.budgets_of(asked.config, some) == {0: 2_000_000, 4: 2_000_000, 8: 1_500_000}
    every = dict.fromkeys(range(count), hello(4))
    assert resolve.budgets_of(asked.config, every) == {4: 2_000_000}


def test_a_narrow_device_fits_what_a_wide_one_does_not():
    asked = assemble(quick(device_backend="native"))
    asked.server.transport.close()
    model = NativeModel(resolve.known_graph(asked.graph))
    counts = {layer: size // 10 for layer, size in asked.server.theta.mask.counts.items()}
    options, least = Options(batch=32), Options(batch=2, storage="float16", recompute=True)
    needed = {lanes: model.plan(_with_lanes(least, lanes), counts).total for lanes in (4, 8, 16)}
    assert needed[4] < needed[8] == needed[16], "half of 16 lanes would idle"
    between = (needed[4] + needed[8]) // 2
    assert largest_fit(model, options, counts, {4: between}).batch >= 2
    for budgets in ({16: between}, {4: between, 8: between}):
        with pytest.raises(FedTinyError, match="needs at least"):
            largest_fit(model, options, counts, budgets)
    wide = {16: 2 * needed[16]}
    both = [largest_fit(model, options, counts, b).batch for b in (wide, wide | {4: between})]
    assert both[0] > both[1]


def test_a_run_plans_with_what_a_device_tells():
    lie = """--lie '{"lanes": 4, "memory": 100000}'"""
    tight = config(f"1={COMMAND} {lie}", memory_budget="20MB", memory_model="device")
    with pytest.raises(ConfigError, match=r"more than the budget of 0\.1 MB, at density 0\.1"):
        assemble(tight)


def test_a_program_s_code_messages_and_images_are_planned_for_too():
    asked = assemble(quick(device_backend="native"))
    asked.server.transport.close()
    method, param_spec = asked.method, asked.server.param_spec
    beside = partial(resolve.beside_arena, asked.config, method, param_spec)
    assert beside(1000, []) == {}
    limited, free = hello(4, 3_000_000), hello(8)
    found = beside(1000, [limited, free])
    assert found[8] - found[4] == resolve.IDLE_PROGRAM
    least = 4 * asked.config.train.batch_size * 64 + resolve.VALUE_BYTES * 1000
    assert found[4] > least
    assert beside(2000, [limited])[4] - found[4] == resolve.VALUE_BYTES * 1000
    model, options = NativeModel(resolve.known_graph(asked.graph)), Options(batch=32)
    counts = {layer: size // 10 for layer, size in asked.server.theta.mask.counts.items()}
    whole = model.plan(_with_lanes(options, 8), counts).total
    assert largest_fit(model, options, counts, {8: whole}).batch == 32
    assert largest_fit(model, options, counts, {8: whole + found[8]}, found).batch == 32
    assert largest_fit(model, options, counts, {8: found[8]}).batch >= 2
    with pytest.raises(FedTinyError, match="needs at least"):
        largest_fit(model, options, counts, {8: found[8]}, found)
