"""Devices in processes without torch: the bits of a device at home, and no process left behind."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import tomllib
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedtiny.devices import executors
from fedtiny.devices.channel import Channel
from fedtiny.devices.device_data import DeviceData
from fedtiny.devices.device_spec import DeviceSpec
from fedtiny.devices.executors import (
    ForkExecutor,
    SerialExecutor,
    SubprocessExecutor,
    Task,
    can_fork,
)
from fedtiny.devices.native_engine import NativeEngine
from fedtiny.errors import FedTinyError
from fedtiny.federation.messages import Verb, evaluate, prune_and_grow, top_gradients, train
from fedtiny.native.library import available
from fedtiny.randomness import SERVER

from ..bare import bare_python
from .tiny import PlainNet, TinyNet, everything, lab, seeded, settings, tasks, whole_run

pytestmark = pytest.mark.skipif(not available(), reason="needs the native library")


def spec_of(bench, threads=1, **choices):
    """The spec of native devices that spend their memory and cores in this way."""
    device = replace(bench.config.device, **choices)
    return replace(bench.spec, config=replace(bench.config, threads=threads, device=device))


def at_home(bench, **choices):
    """One process alone, with a native engine."""
    return SerialExecutor(NativeEngine(spec_of(bench, **choices)), bench.config.seed)


@pytest.fixture
def hire():
    """Put device processes behind a bench's transport, and end them."""
    hired = []

    def hire_(bench, count=1, python=sys.executable, **choices):
        spec = spec_of(bench, **choices)
        hired.append(SubprocessExecutor(spec, bench.shards, python=python, count=count))
        bench.transport.executor = hired[-1]
        return hired[-1]

    yield hire_
    for executor in hired:
        executor.close()


# The same bits


@pytest.mark.parametrize("count", [1, 2, 5])
def test_a_whole_run_is_that_of_native_devices_at_home(hire, count):
    config = settings(fleet={"devices": 3, "straggler_rate": 0.2})
    near, far = (lab(config, model=seeded(TinyNet, 0.3)) for _ in range(2))
    near.transport.executor = at_home(near)
    hire(far, count)
    assert whole_run(far) == whole_run(near)
    assert far.server.theta.version == near.server.theta.version
    assert far.server.memory == near.server.memory


def test_replies_from_far_away_are_averaged_robustly_too(hire):
    config = settings(fleet={"devices": 3}, robustness={"mean": "trimmed", "clip_norm": 0.5})
    near, far, plain = lab(config), lab(config), lab(settings(fleet={"devices": 3}))
    near.transport.executor, plain.transport.executor = at_home(near), at_home(plain)
    hire(far, 2)
    assert whole_run(far) == whole_run(near) != whole_run(plain)


@pytest.mark.parametrize(
    "choices", [{"threads": 2, "remove_dead": True}, {"storage": "float16", "recompute": True}]
)
def test_choices_travel(hire, choices):
    config = settings(train={"optimizer": "sgd", "lr": 0.013})
    bench = lab(config, model=seeded(PlainNet))
    work = tasks(bench, train(2), evaluate())
    far, near = hire(bench, 2, **choices), at_home(bench, **choices)
    found, expected = (list(map(everything, executor.answers(work))) for executor in (far, near))
    assert found == expected


def test_a_device_far_away_says_all_that_one_at_home_says(hire):
    counts = {"conv1.weight": 7, "hidden.weight": 3}
    program = (
        train(1, sum_dense_gradients=True),
        prune_and_grow(counts),
        train(1),
        top_gradients(counts),
    )
    bench = lab(sizes=(20, 3, 12, 5, 9))
    both, order = (hire(bench, 2), at_home(bench)), (4, 0, 3, 1, 2)
    work = tasks(bench, *program, evaluate(), devices=order)
    found, expected = (list(map(everything, executor.answers(work))) for executor in both)
    assert found == expected
    assert [reply[0][0] for reply in found] == list(order)
    assert all(part for part in found[0]), "nothing is left out"


def test_a_device_follows_as_masks_and_thetas_change(hire):
    bench = lab()
    executor, alone = hire(bench, 2), at_home(bench)
    one, two = bench.theta(seed=1), bench.theta(seed=2)
    for theta in (one, one, two, one, bench.start):
        work = tasks(bench, train(1), theta=theta)
        versions = [
            [reply.theta.version for reply in each.answers(work)] for each in (executor, alone)
        ]
        assert versions[0] == versions[1]


# What travels


@pytest.mark.parametrize("native", [True, False])
def test_a_spec_survives_as_text(native):
    budget = {"memory_budget": "12345", "memory_model": "device"}
    bench = lab(settings(seed=3, train={"optimizer": "sgd", "lr": 0.013}, **budget))
    spec = spec_of(bench, threads=2, storage="float16")
    spec = spec if native else replace(spec, graph=None)
    again = DeviceSpec.from_plain(json.loads(json.dumps(spec.to_plain())))
    assert (again.graph.nodes == spec.graph.nodes) if native else (again.graph is None)
    assert again.param_spec == spec.param_spec
    assert again.param_spec.fingerprint == spec.param_spec.fingerprint
    assert again.preparation == spec.preparation
    assert again.config == spec.config
    assert again.config.device_budget == 12345


@pytest.mark.parametrize(
    "change",
    [
        {"config": {"rounds": 3}},
        {"config": {"no": "setting"}},
        {"preparation": {"mean": [0.5]}},
        {"preparation": {"mean": [0.5], "std": [1.0], "zoom": 3}},
        {"param_spec": {}},
        {"param_spec": None},
    ],
)
def test_what_is_no_spec_is_refused(change):
    plain = lab().spec.to_plain() | change
    with pytest.raises(FedTinyError, match="not the spec of a device"):
        DeviceSpec.from_plain(json.loads(json.dumps(plain)))
    with pytest.raises(FedTinyError, match="not the spec of a device"):
        DeviceSpec.from_plain({})


def test_a_device_gets_its_own_images_only():
    shard = lab().shards[1]
    found = DeviceData.from_bytes(shard.to_bytes())
    assert (found.device, len(found), len(found.data)) == (1, 9, 9)
    assert len(found.data.classes) == len(shard.data.classes)
    for part in ("indices", "development"):
        mine, theirs = (getattr(each, part) for each in (shard, found))
        np.testing.assert_array_equal(found.data.images[theirs], shard.data.images[mine])
        np.testing.assert_array_equal(found.data.labels[theirs], shard.data.labels[mine])


def test_a_test_set_is_a_shard_like_any_other(hire):
    bench = lab()
    few = np.arange(4)
    bench.shards.append(DeviceData(SERVER - 1, bench.data.test, few, few))
    work = tasks(bench, evaluate(), devices=(3, 0))
    found, expected = (
        list(executor.answers(work)) for executor in (hire(bench, 2), at_home(bench))
    )
    assert found == expected


def test_messages_of_any_length_go_through_a_channel():
    ends = [os.pipe() for _ in range(2)]
    (near_in, far_out), (far_in, near_out) = ends
    near = Channel(os.fdopen(near_in, "rb"), os.fdopen(near_out, "wb"))
    far = Channel(os.fdopen(far_in, "rb"), os.fdopen(far_out, "wb"))
    sent = [b"", b"a", bytes(range(256)) * 4096]
    sender = threading.Thread(target=lambda: [near.send_bytes(each) for each in sent])
    sender.start()
    assert [far.recv_bytes() for _ in sent] == sent
    sender.join()
    near.writer.write(b"a line that somebody printed")
    near.close()
    with pytest.raises(OSError, match="somebody else"):
        far.recv_bytes()
    with pytest.raises(BrokenPipeError):
        far.send_bytes(b"is anybody there?")
    far.close()


# Failures


def test_a_failure_is_given_in_its_place_and_in_the_same_words(hire):
    bench = lab(sizes=(8, 1, 9))
    both = hire(bench, 2), at_home(bench)
    for program in ((train(1),), (Verb("somersault"),), (evaluate(), Verb("handstand"))):
        far, near = (
            [str(o) for o in executor.answers(tasks(bench, *program))] for executor in both
        )
        assert far[1] == near[1]
    first, second, third = both[0].answers(tasks(bench, train(1)))
    assert (first.device, third.device) == (0, 2)
    assert isinstance(second, FedTinyError)


def test_anything_else_is_raised_with_the_child_s_traceback(hire):
    bench = lab()
    executor = hire(bench)
    with pytest.raises(RuntimeError, match=r"Traceback(.|\n)*in answer(.|\n)*TypeError"):
        list(executor.answers(tasks(bench, Verb("train", {"epochs": "many"}))))
    assert len(list(executor.answers(tasks(bench, train(1))))) == 3, "the child lives on"


def test_a_device_that_has_no_process_is_named(hire):
    bench = lab()
    executor = hire(bench)
    stranger = DeviceData(7, bench.data.train, np.arange(4), np.arange(4))
    with pytest.raises(FedTinyError, match="data of device 7"):
        executor.answers([Task(stranger, tasks(bench, train(1))[0].request)])


def test_a_network_that_the_child_refuses(hire, monkeypatch):
    monkeypatch.setenv("FEDTINY_NATIVE_LIBRARY", "/nowhere.so")
    with pytest.raises(FedTinyError, match="without its native library"):
        hire(lab(), 2)


def test_another_version_of_fedtiny_is_refused(hire, monkeypatch):
    monkeypatch.setattr(executors, "__version__", "99")
    with pytest.raises(FedTinyError, match="install the same there"):
        hire(lab())


@pytest.mark.parametrize(
    ("python", "told"),
    [
        ("/nowhere/python", "cannot start the Python '/nowhere/python': No such file"),
        (shutil.which("true"), "true cannot run a device; is fedtiny installed there"),
        (shutil.which("echo"), "echo cannot run a device"),
    ],
)
def test_what_is_no_python_is_told(hire, python, told):
    with pytest.raises(FedTinyError, match=told):
        hire(lab(), python=python)


def script(path, text):
    """An executable shell script."""
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_a_python_without_fedtiny_says_so(hire, tmp_path):
    python = script(tmp_path / "python", f'exec {sys.executable} -S -E "$@"')
    with pytest.raises(FedTinyError, match=r"fedtiny installed there(.|\n)*No module named"):
        hire(lab(), python=python)


# Processes that end


@pytest.mark.parametrize("victim", [0, 1])
def test_a_process_that_dies_is_reported(hire, victim):
    bench = lab()
    executor = hire(bench, 2)
    executor._workers[victim].process.kill()
    executor._workers[victim].process.wait()
    with pytest.raises(FedTinyError, match="a device process died"):
        list(executor.answers(tasks(bench, train(1))))


def test_a_process_killed_at_its_work_is_reported_with_its_last_words(hire, tmp_path):
    bench = lab()
    python = script(tmp_path / "python", f'echo "my last words" >&2; exec {sys.executable} "$@"')
    executor = hire(bench, python=python)
    threading.Timer(0.3, executor._workers[0].process.kill).start()
    with pytest.raises(FedTinyError, match=r"device process died(.|\n)*my last words"):
        list(executor.answers(tasks(bench, train(1_000_000))))


def test_closing_ends_the_processes(hire):
    bench = lab()
    executor = hire(bench, 3)
    processes = [child.process for child in executor._workers]
    assert len(processes) == 3
    assert all(process.poll() is None for process in processes)
    next(executor.answers(tasks(bench, train(1))))
    bench.transport.close()
    assert all(process.poll() == 0 for process in processes)
    executor.close()  # twice does no harm


@pytest.mark.skipif(not can_fork(), reason="workers need fork")
def test_a_device_ends_though_workers_were_forked_later(hire):
    bench = lab()
    (child,) = hire(bench)._workers
    workers = ForkExecutor(bench.engine, bench.spec, bench.shards, 1)
    child.pipe.close()
    ended = child.process.wait(timeout=5)
    workers.close()
    assert ended == 0


PARENT = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a script may have it ignored
sys.path.insert(0, sys.argv[1])
from fedtiny.devices.executors import SubprocessExecutor
from tests.devices.test_remote import spec_of, tasks, train
from tests.devices.tiny import lab
bench = lab()
executor = SubprocessExecutor(spec_of(bench), bench.shards, count=2)
executor._workers[0].start(tasks(bench, train(300))[0])  # one at work, one idle
print(*(child.process.pid for child in executor._workers), flush=True)
sys.stdin.read()
"""


def alive(pid):
    """Whether a process runs; one that has ended but was not fetched does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_devices_end_when_their_parent_does(how):
    root = Path(__file__).parents[2]
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, str(root)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as parent:
        children = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(children) == 2
        assert all(map(alive, children))
        parent.send_signal(how)
        parent.wait()
    deadline = time.monotonic() + 60
    while any(map(alive, children)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(alive, children))


# With NumPy alone


# The head of the log, and what Python tries to import by itself or for a `.pth` file of setuptools.
TRIED_BY_PYTHON = {"imported package", "sitecustomize", "usercustomize", "org", "_distutils_hack"}


def test_a_device_imports_numpy_alone(hire, tmp_path):
    """Every import of the child's life is written down by Python itself."""
    log = tmp_path / "imports"
    python = script(tmp_path / "python", f'exec {sys.executable} -X importtime "$@" 2>"{log}"')
    bench = lab()
    executor = hire(bench, python=python)
    whole_run(bench)
    executor.close()
    names = {line.rpartition("|")[2].strip() for line in log.read_text().splitlines()}
    assert {"numpy", "fedtiny.devices.native_engine", "fedtiny.methods.fedtiny"} <= names
    packages = {name.partition(".")[0] for name in names}
    assert packages - sys.stdlib_module_names - TRIED_BY_PYTHON == {"numpy", "fedtiny"}


NEEDED = ("numpy", "numpy.libs")


@pytest.fixture(scope="module", name="bare_python")
def bare_python_(tmp_path_factory):
    """A Python environment with fedtiny and NumPy."""
    return bare_python(tmp_path_factory.mktemp("bare"), NEEDED)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_device_takes_part_from_an_environment_without_torch(hire, bare_python, monkeypatch):
    monkeypatch.delenv("PYTHONPATH", raising=False)
    run = subprocess.run([bare_python, "-c", "import torch"], capture_output=True, text=True)
    assert "No module named 'torch'" in run.stderr
    near, far = lab(), lab()
    near.transport.executor = at_home(near)
    hire(far, 2, python=bare_python)
    assert whole_run(far) == whole_run(near)


OLDEST_NUMPY = "1.24.4"  # of the first series that a device may have


def test_the_package_asks_for_no_newer_numpy_than_a_device_needs():
    project = tomllib.loads(Path(__file__).parents[2].joinpath("pyproject.toml").read_text())
    assert f"numpy>={OLDEST_NUMPY.rpartition('.')[0]}" in project["project"]["dependencies"]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(sys.version_info >= (3, 12), reason=f"NumPy {OLDEST_NUMPY} is older than that")
def test_a_device_takes_part_with_an_old_numpy(hire, tmp_path, monkeypatch):
    monkeypatch.delenv("PYTHONPATH", raising=False)
    order = ["-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--retries", "1"]
    got = subprocess.run(
        [sys.executable, *order, "--dest", tmp_path, f"numpy=={OLDEST_NUMPY}"], capture_output=True
    )
    if got.returncode:
        pytest.skip("needs a package index that has NumPy")
    python = bare_python(tmp_path / "old", ())
    (site,) = (tmp_path / "old").glob("lib/python*/site-packages")
    (wheel,) = tmp_path.glob("numpy-*.whl")
    zipfile.ZipFile(wheel).extractall(site)
    order = [python, "-c", "import numpy; print(numpy.__version__)"]
    assert subprocess.check_output(order, text=True).strip() == OLDEST_NUMPY
    near, far = lab(), lab()
    near.transport.executor = at_home(near)
    hire(far, 1, python=python)
    assert whole_run(far) == whole_run(near)
