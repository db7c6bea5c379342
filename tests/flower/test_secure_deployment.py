"""Secure aggregation on a SuperLink and six SuperNodes on loopback, with TLS and node keys.

Every message starts a process of its own on a node. In each round a node is killed: before the
masked stage, within it, after it, and one too many. What is left of their masks is revealed, and
the model has the bits of a simulation that loses the same devices; the last round moves nothing.
"""

import re
import shutil
import time
from contextlib import closing

import pytest
from safetensors.numpy import load_file

from fedtiny.devices.simulator import Simulator
from fedtiny.federation.transport import ABSENT, STRAGGLER
from fedtiny.flower.settings import PACKAGE, FlowerSettings, write_app
from fedtiny.flower.trial import local

from ..runs.tiny import essence, lines, tiny, train
from . import gated_client
from .test_deployment import PATIENCE, Run

pytestmark = [pytest.mark.federation, pytest.mark.timeout(600)]

CONFIG = tiny(
    width=4,
    density=0.2,
    rounds=4,
    device_backend="native",
    data={"limit_train": 300, "limit_test": 100},
    fleet={"devices": 6, "partition": "iid"},
    selection={"kind": "vanilla"},
    privacy={"secure_aggregation": True},
)
BEFORE, WITHIN, AFTER, ONE_TOO_MANY = range(4)  # who dies in which round
LAST = 5
"""The node whose answer keeps the server in the selection until the first one is dead."""
OTHERS = {"bytes_down", "bytes_up", "failed"}  # dead nodes are told of in other words
SAID = (
    "device 0 (node-0) is left out of 'train': out of reach",
    "device 1 (node-1) is left out of 'train': out of reach",
    "device 2 (node-2) does not answer 'unmask': out of reach",
    "device 3 (node-3) is left out of 'train': out of reach",
    "'train' counts for nothing: 1 of the neighbors of device 4 are left, and 2 are needed",
    "done: accuracy",
)


class Stages:
    """Nodes that wait at a stage, to be killed there."""

    def __init__(self, federation, gates):
        self.federation, self.gates = federation, gates

    def node(self, device):
        return self.federation.processes.named(f"supernode-{device}")

    def hold(self, device, kind, count):
        """Let a node do the work of its message of this kind, and send nothing."""
        self._gate(device, kind, count).touch()

    def release(self, device, kind, count):
        self._gate(device, kind, count).unlink()

    def _gate(self, device, kind, count):
        return self.gates / f"node-{device} {kind} {count}"

    def done(self, device, kind):
        """How many answers of a kind a node has made, whether sent or not."""
        return gated_client.answers(self.gates, f"node-{device}", kind)

    def until_done(self, device, kind, count):
        _until(lambda: self.done(device, kind) == count)

    def until_sent(self, device, count):
        """Until the SuperLink has so many answers of a node."""
        log = self.node(device).log
        _until(lambda: log.read_text().count("Sent successfully") == count)

    def unregister(self, device):
        """Tell the SuperLink of a death, which it would notice a minute later."""
        (number,) = re.findall(r"SuperNode ID: (\d+)", self.node(device).log.read_text())
        ran = self.federation.flwr("supernode", "unregister", number, local.NAME)
        assert ran.returncode == 0, ran.stdout + ran.stderr


def _until(is_so):
    end = time.monotonic() + PATIENCE
    while not is_so():
        assert time.monotonic() < end, "a node does not come to its stage"
        time.sleep(0.05)


@pytest.fixture
def stages(tmp_path, monkeypatch):
    gates = tmp_path / "gates"
    gates.mkdir()
    monkeypatch.setenv(gated_client.GATES, str(gates))
    with local.federation(tmp_path / "home", 6, tls=True, say=print, secure=True) as federation:
        yield Stages(federation, gates)


@pytest.fixture
def app(tmp_path):
    path = tmp_path / "app"
    write_app(path, CONFIG, FlowerSettings(wait=120, timeout=120))
    shutil.copy(gated_client.__file__, path / PACKAGE / "client_app.py")
    return path


def kill_before(stages):
    """While the selection's sum is unmasked: the node is asked to train, and long dead."""
    stages.until_done(LAST, "query.unmask", 1)
    stages.until_sent(BEFORE, 3)  # it has joined, measured losses and helped to unmask their sum
    stages.node(BEFORE).kill()
    stages.release(LAST, "query.unmask", 1)
    stages.until_done(LAST, "train", 1)
    stages.unregister(BEFORE)


def kill_at(stages, device, kind, count):
    """With its answer made, and not sent."""
    stages.until_done(device, kind, count)
    stages.node(device).kill()
    stages.unregister(device)


def theta(path):
    checkpoint = load_file(path / "checkpoint.safetensors")
    return {name: array.tobytes() for name, array in checkpoint.items()}


def lose_the_same(monkeypatch):
    """The simulator's devices: who died before is out of reach, who dies is waited for."""

    def trouble(self, device, request):
        if request.action != "train" or device > request.round or device == request.round == AFTER:
            return ""
        return ABSENT if device < request.round else STRAGGLER

    monkeypatch.setattr(Simulator, "_trouble", trouble)


def test_a_node_is_killed_at_every_stage_and_no_sum_is_wrong(stages, app, tmp_path, monkeypatch):
    path = tmp_path / "run"
    stages.hold(LAST, "query.unmask", 1)
    stages.hold(WITHIN, "train", 2)
    stages.hold(AFTER, "query.unmask", 4)  # its vector is there, or it would not be asked
    stages.hold(ONE_TOO_MANY, "train", 4)
    with closing(Run(stages.federation, app, path)) as run:
        kill_before(stages)
        kill_at(stages, WITHIN, "train", 2)
        kill_at(stages, AFTER, "query.unmask", 4)
        stages.until_done(ONE_TOO_MANY, "train", 4)
        left = theta(path)
        kill_at(stages, ONE_TOO_MANY, "train", 4)
        for said in SAID:
            run.until(said)

    survivors = [[1, 2, 3, 4, 5], [2, 3, 4, 5], [2, 3, 4, 5], []]
    assert [line["answered"] for line in lines(path)] == survivors
    assert stages.done(BEFORE, "train") == 0
    assert stages.done(LAST, "query.reveal") == 2, "masks of the first two are taken off"
    assert theta(path) == left, "the refused round has moved nothing"
    lose_the_same(monkeypatch)
    simulated = train(CONFIG, tmp_path / "simulated").path
    ours, theirs = essence(path), essence(simulated)
    assert ours["model"] == theirs["model"]
    assert ours["selection"]["selection"]["chosen"] == theirs["selection"]["selection"]["chosen"]
    for one, other in zip(ours["metrics"], theirs["metrics"], strict=True):
        assert {name for name in one if one[name] != other[name]} <= OTHERS
        assert one["failed"].keys() == other["failed"].keys()
