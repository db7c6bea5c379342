"""A SuperLink and two SuperNodes on loopback, with TLS and node authentication, end to end.

In order, on one federation: a run to its end while an unknown node knocks; the same run with the
server killed in the middle and resumed; a run in which a node is killed in mid-round; a run in
which a device behind a gateway takes its place.
"""

import json
import queue
import shlex
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from fedtiny import config as configs
from fedtiny.flower.settings import FlowerSettings, write_app
from fedtiny.flower.trial import certificates, local
from fedtiny.runs.inputs import load_data
from fedtiny.runs.split import shards_of, share_out

from ..runs.tiny import essence, tiny

pytestmark = [pytest.mark.federation, pytest.mark.timeout(1200)]

CONFIG = tiny(
    width=4,
    density=0.2,
    rounds=2,
    data={"limit_train": 300, "limit_test": 100},
    fleet={"devices": 2},
)
STAND_IN = Path(__file__).parents[1] / "devices/stand_in.py"
PATIENCE = 600  # seconds for a run on a busy machine


class Run:
    """`flwr run`, and what it says, line by line."""

    def __init__(self, federation, app, path, *settings):
        told = " ".join([f'flower.run="{path}"', *settings])
        self.process = subprocess.Popen(
            federation.run_command(app, told),
            env=federation.processes.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.lines, self.said = queue.Queue(), []
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self):
        for line in self.process.stdout:
            self.lines.put(line)
        self.lines.put(None)

    def until(self, text):
        """Wait for a line with this text."""
        end = time.monotonic() + PATIENCE
        while True:
            line = self.lines.get(timeout=max(1, end - time.monotonic()))
            assert line is not None, f"'{text}' was never said:\n{''.join(self.said)}"
            self.said.append(line)
            if text in line:
                return line

    def close(self):
        self.process.terminate()
        self.process.wait()
        self.process.stdout.close()


@pytest.fixture(scope="module")
def app(tmp_path_factory):
    path = tmp_path_factory.mktemp("app")
    write_app(path, CONFIG, FlowerSettings(wait=120, timeout=300))
    return path


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    home = tmp_path_factory.mktemp("flower") / "home"
    with local.federation(home, nodes=2, tls=True, say=print) as found:
        yield found


@pytest.fixture
def start(federation, app):
    """Start runs, none of which outlives the test."""
    runs = []

    def start(path, *settings):
        runs.append(Run(federation, app, path, *settings))
        return runs[-1]

    yield start
    for run in runs:
        run.close()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Where the run that nobody disturbs leaves its folder."""
    return tmp_path_factory.mktemp("runs") / "whole"


def test_a_run_ends_with_a_model_and_a_stranger_is_refused(federation, start, whole, tmp_path):
    stranger = certificates.make(tmp_path / "keys", ["localhost"], nodes=1).node(0)
    knocking = federation.add_node(9, 'partition-id=0 num-partitions=2 name="stranger"', stranger)
    start(whole).until("done: accuracy")
    result = json.loads((whole / "result.json").read_text())
    assert result["rounds"] == 2
    assert result["density"] <= 0.2
    assert (whole / "model.safetensors").stat().st_size > 1000
    noted = json.loads((whole / "nodes.json").read_text())
    assert [assignment["name"] for assignment in noted["devices"].values()] == ["node-0", "node-1"]
    assert noted["turned_away"] == {}
    assert knocking.process.wait(60) != 0, "the SuperLink does not know its key"
    listed = federation.flwr("supernode", "list", local.NAME, "--format", "json")
    assert len(json.loads(listed.stdout)["nodes"]) == 2


def test_a_killed_server_resumes_to_the_same_end(federation, start, whole, tmp_path):
    """SuperLink and ServerApp die together in round 2, and nodes find the new SuperLink."""
    path = tmp_path / "killed"
    start(path).until("round 1/2")
    federation.processes.named("superlink").kill()
    assert not (path / "result.json").exists()
    federation.start_link()
    run = start(path, "flower.resume=true")
    run.until("resumed after round 1 of 2")
    run.until("done: accuracy")
    ours, theirs = essence(path), essence(whole)
    for name in ("model", "checkpoint", "selection", "config", "partition"):
        assert ours[name] == theirs[name], name
    assert ours["result"]["accuracy"] == theirs["result"]["accuracy"]


def wait_for_work(node):
    """Until a ClientApp is at work on a node, which idles as two processes."""
    end = time.monotonic() + PATIENCE
    while len(node.family()) < 3:
        assert time.monotonic() < end, "the node has nothing to do"
        time.sleep(0.1)


def test_a_run_completes_without_a_node_that_dies_in_mid_round(federation, start, tmp_path):
    path, node = tmp_path / "bereft", federation.processes.named("supernode-1")
    run = start(path, 'rounds=1 method="feddst" train.local_epochs=300')
    run.until("2 devices, Dirichlet")
    wait_for_work(node)
    node.kill()
    said = run.until("round 1/1")
    assert "devices missing: 1 " in said
    run.until("done: accuracy")
    assert any("device 1 (node-1) is left out of 'train'" in line for line in run.said)
    (record,) = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    assert record["answered"] == [0]
    assert list(record["failed"]) == ["1"]
    assert (path / "model.safetensors").exists()


def test_a_device_behind_a_gateway_takes_the_place_of_a_node(federation, start, tmp_path):
    """The node that died comes back, with its key, for a device that has its data."""
    resolved = configs.resolve(CONFIG)
    data = load_data(resolved)
    file = tmp_path / "device1.ftd"
    file.write_bytes(shards_of(data, share_out(data, resolved), resolved)[1].to_bytes())
    program = shlex.join([sys.executable, str(STAND_IN), str(file)])
    command = [sys.executable, "-m", "fedtiny", "gateway", program, "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as gateway:
        assert "device 1" in gateway.stdout.readline()
        address = gateway.stdout.readline().partition('gateway="')[2].partition('"')[0]
        node_config = f'gateway="{address}" name="board"'
        federation.add_node(1, node_config, federation.keys.node(1))
        path = tmp_path / "board"
        run = start(path, 'rounds=1 device_backend="native"')
        run.until("device 1 (board) is here")
        run.until("done: accuracy")
        gateway.terminate()
    (record,) = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    assert (record["answered"], record["failed"]) == ([0, 1], {})
