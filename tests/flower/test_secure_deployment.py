"""Secure aggregation on a SuperLink and four SuperNodes on loopback, with TLS and node keys.

Every message starts a process of its own on a node. One node is killed while it works on a round:
the others reveal what masked its reply, and the model has the bits of a simulation without it.
"""

import json

import pytest

from fedtiny.devices.simulator import Simulator
from fedtiny.federation.transport import STRAGGLER
from fedtiny.flower.settings import FlowerSettings, write_app
from fedtiny.flower.trial import local

from ..runs.tiny import essence, tiny, train
from .test_deployment import Run, wait_for_work

pytestmark = [pytest.mark.federation, pytest.mark.timeout(600)]

CONFIG = tiny(
    width=4,
    density=0.2,
    rounds=1,
    device_backend="native",
    data={"limit_train": 300, "limit_test": 100},
    fleet={"devices": 4, "partition": "iid"},
    selection={"kind": "vanilla"},
    privacy={"secure_aggregation": True},
)
LATE = 30  # seconds after which the dead node is given up


def test_a_killed_node_is_left_out_of_an_exact_sum(tmp_path, monkeypatch):
    app, path = tmp_path / "app", tmp_path / "run"
    write_app(app, CONFIG, FlowerSettings(wait=120, timeout=LATE))
    with local.federation(tmp_path / "home", 4, tls=True, say=print, secure=True) as federation:
        run = Run(federation, app, path)
        run.until("chosen candidate")
        node = federation.processes.named("supernode-3")
        wait_for_work(node)
        node.kill()
        run.until("done: accuracy")
        run.close()
    (record,) = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    assert record["answered"] == [0, 1, 2]
    assert list(record["failed"]) == ["3"]

    def trouble(self, device, request):
        return STRAGGLER if request.action == "train" and device == 3 else ""

    monkeypatch.setattr(Simulator, "_trouble", trouble)
    ours, theirs = essence(path), essence(train(CONFIG, tmp_path / "simulated").path)
    assert ours["model"] == theirs["model"]
    chosen = [found["selection"]["selection"]["chosen"] for found in (ours, theirs)]
    assert chosen[0] == chosen[1]
