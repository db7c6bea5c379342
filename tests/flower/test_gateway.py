"""A node that stands for a device without Python: the same bytes as one that computes itself."""

import contextlib
import socket
import threading
from dataclasses import replace

import pytest
from flwr.app import RecordDict

from fedtiny import config as configs
from fedtiny.devices import visitors
from fedtiny.devices.gateway import DeviceGateway
from fedtiny.devices.listener import Listener
from fedtiny.devices.place_names import place_of
from fedtiny.devices.remote_devices import RemoteDevice
from fedtiny.devices.workers import Task
from fedtiny.errors import FedTinyError
from fedtiny.federation.messages import train
from fedtiny.flower import client, messages
from fedtiny.flower.node_spec import NodeSpec
from fedtiny.native.library import available
from fedtiny.runs.inputs import load_data
from fedtiny.runs.split import shards_of, share_out

from ..devices.test_programs import InThread
from ..devices.test_remote import at_home, spec_of
from ..devices.tiny import everything, lab, settings, tasks
from ..runs.tiny import essence
from .federation import Grid, federate, parts, tiny

pytestmark = pytest.mark.skipif(not available(), reason="needs the native library")
FAR = 1  # the device that is behind a gateway


def shard_of(config):
    """The data that the run gives the device."""
    resolved = configs.resolve(config)
    data = load_data(resolved)
    return shards_of(data, share_out(data, resolved), resolved)[FAR]


@pytest.fixture
def gateway():
    """Open a gateway to a device that tells these lies, one after the other."""
    opened = []

    def open_(shard, *stories):
        door, place = Listener("127.0.0.1", 0), InThread(shard, *stories)
        gateway = DeviceGateway(place, 20.0)
        opened.extend([door, gateway])

        threading.Thread(target=_ignore, args=(gateway.serve, door), daemon=True).start()
        return door.address, place

    yield open_
    for each in opened:
        each.close()


def nodes(address, **more):
    """Three nodes, one of which stands for a device."""
    found = parts(3)
    number = list(found)[FAR]
    return found | {number: {"gateway": address, "name": "board", **more}}


def played(config, out, address=""):
    """What a run over Flower comes to."""
    return essence(federate(Grid(nodes(address) if address else None), config, out))


@pytest.fixture
def config():
    return tiny(device_backend="native", rounds=3, eval_devices=True)


def test_a_run_with_a_device_behind_a_gateway_is_the_same(config, gateway, tmp_path):
    address, place = gateway(shard_of(config))
    expected = played(config, tmp_path / "python")
    found = played(config, tmp_path / "gateway", address)
    assert [name for name in expected if expected[name] != found[name]] == []
    assert place.met == 1, "the gateway holds one connection, whoever asks"


def test_a_device_that_is_lost_is_met_again(config, gateway, tmp_path):
    address, place = gateway(shard_of(config), "later dies", "")
    expected = played(config, tmp_path / "python")
    found = played(config, tmp_path / "gateway", address)
    assert [name for name in expected if expected[name] != found[name]] == []
    assert place.met == 2


def test_a_device_that_stays_away_has_failed_and_the_run_goes_on(config, gateway, tmp_path):
    address, _ = gateway(shard_of(config), "later dies", "away")
    found = played(config, tmp_path / "gateway", address)
    failed = [line["failed"] for line in found["metrics"]]
    assert all(list(each) == [str(FAR)] for each in failed[1:])


def joined(bench, node):
    """What a node says when it joins a bench's run."""
    train = bench.data.train
    spec = NodeSpec(bench.spec, False, train.shape, train.classes)
    question = messages.Question(spec.key, 0, b"", spec.text)
    return client.arrive(question, client.Memory(RecordDict()), {"name": "board", **node})


@pytest.mark.parametrize("claim", [{}, {"partition-id": FAR}])
def test_a_node_says_who_its_device_is(gateway, claim):
    bench = lab()
    address, _ = gateway(bench.shards[FAR])
    found = joined(bench, {"gateway": address, **claim})
    assert (found.samples, found.claim) == (len(bench.shards[FAR]), FAR)


@pytest.mark.parametrize(
    ("node", "told"),
    [
        ({"partition-id": 2}, "device 2: it has the data of device 1, not those of device 2"),
        ({"gateway": "nowhere"}, "'gateway://nowhere' is no address"),
        ({"gateway": "127.0.0.1:1"}, "the device cannot be reached: no gateway at 127.0.0.1:1"),
    ],
)
def test_a_node_whose_device_cannot_join_says_why(gateway, node, told):
    bench = lab()
    address, _ = gateway(bench.shards[FAR])
    with pytest.raises(FedTinyError, match=told):
        joined(bench, {"gateway": address, **node})


def test_devices_of_a_run_in_pytorch_cannot_be_behind_a_gateway():
    bench = lab()
    bench.spec = replace(bench.spec, graph=None)
    with pytest.raises(FedTinyError, match='device_backend="native"'):
        joined(bench, {"gateway": "127.0.0.1:1"})


def test_who_asks_a_gateway_without_its_device_is_told(config):
    class Away(InThread):
        def open(self, device, timeout, wait):
            if self.met:
                raise FedTinyError("nobody has connected")
            return super().open(device, timeout, wait)

    gateway = DeviceGateway(Away(shard_of(config)), 5.0)
    gateway.device.close()
    door = Listener("127.0.0.1", 0)
    threading.Thread(target=_ignore, args=(gateway.serve, door), daemon=True).start()
    place = place_of(f"gateway://{door.address}")
    with pytest.raises(FedTinyError, match="cannot be reached: nobody has connected"):
        place.open(FAR, 5.0, 5.0)
    door.close()


def stranger(address):
    """Somebody who has connected to a gateway."""
    host, port = address.split(":")
    return socket.create_connection((host, int(port)), timeout=5.0)


def test_silent_strangers_keep_nobody_from_a_gateway(gateway, monkeypatch):
    monkeypatch.setattr(visitors, "MAX_UNKNOWN", 3)
    bench = lab()
    address, _ = gateway(bench.shards[FAR])
    silent = [stranger(address) for _ in range(5)]
    assert joined(bench, {"gateway": address}).claim == FAR
    while silent[0].recv(1000):  # its hello, and then the end: it was the oldest
        pass
    for connection in silent:
        connection.close()


@pytest.mark.parametrize(
    "said",
    [
        b"FTch" + (1 << 62).to_bytes(8, "little"),
        b"FTch" + bytes(8),  # a device that got it would forget its spec
        b"GET / HTTP/1.1\r\n\r\n",
    ],
)
def test_what_no_node_says_ends_its_connection(gateway, said):
    bench = lab()
    address, place = gateway(bench.shards[FAR])
    with contextlib.closing(stranger(address)) as connection:
        connection.sendall(said)
        with contextlib.suppress(ConnectionResetError):
            while connection.recv(1000):
                pass
    assert joined(bench, {"gateway": address}).claim == FAR
    assert place.met == 1


def test_two_runs_at_once_get_each_its_own_answers(gateway):
    first, second = lab(settings(seed=1)), lab(settings(seed=2))
    address, place = gateway(first.shards[FAR])
    devices = [RemoteDevice(FAR, place_of(f"gateway://{address}"), 20.0) for _ in range(2)]
    for device, bench in zip(devices, (first, second), strict=True):
        device.equip(spec_of(bench))
    for _ in range(2):
        for device, bench in zip(devices, (first, second), strict=True):
            task = tasks(bench, train(1))[FAR]
            shard = first.shards[FAR]
            near = next(at_home(bench).answers([Task(shard, task.request)]))
            assert everything(device.answer(task.request)) == everything(near)
    for device in devices:
        device.close()
    assert place.met == 1


def _ignore(work, *arguments):
    try:
        work(*arguments)
    except OSError:
        return
