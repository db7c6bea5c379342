"""fedtiny data devices, and fedtiny gateway."""

import shlex
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fedtiny import config as configs
from fedtiny.devices.device_data import NO_DEVICE, DeviceData
from fedtiny.devices.place_names import place_of
from fedtiny.errors import FedTinyError
from fedtiny.runs.inputs import load_data
from fedtiny.runs.split import shards_of, share_out

from .test_bad_input import assert_one_sentence

FEW = ("--data.limit-train", "120", "--fleet.devices", "3")
STAND_IN = Path(__file__).parents[1] / "devices/stand_in.py"


def read(path):
    """The data of a device in a file."""
    return DeviceData.from_bytes(Path(path).read_bytes())


def test_the_files_hold_what_a_run_gives_its_devices(fedtiny):
    Path("my.toml").write_text("seed = 3\n")
    said = fedtiny("data", "devices", "my.toml", *FEW)
    assert said.code == 0, said.err
    values = {"seed": 3, "data": {"limit_train": 120}, "fleet": {"devices": 3}}
    config = configs.resolve(configs.from_dict(values))
    data = load_data(config)
    shards = shards_of(data, share_out(data, config), config)
    assert said.out.splitlines()[1].startswith(f"devices/device1.ftd: {len(shards[1])} samples, ")
    assert [path.name for path in sorted(Path("devices").iterdir())] == [
        f"device{number}.ftd" for number in range(3)
    ]
    for number, shard in enumerate(shards):
        found = read(f"devices/device{number}.ftd")
        assert found.device == number
        for part in ("indices", "development"):
            mine, theirs = getattr(found, part), getattr(shard, part)
            np.testing.assert_array_equal(found.data.images[mine], data.train.images[theirs])
            np.testing.assert_array_equal(found.data.labels[mine], data.train.labels[theirs])


def test_a_program_of_devices_comes_from_flags_only(fedtiny, stopped):
    Path("my.toml").write_text('[device]\nprogram = "./evil"\n')
    said = fedtiny("run", "my.toml", "--rounds", "1")
    assert_one_sentence(said, "my.toml names a program", "give it with --device.program")
    path = stopped / "config.toml"
    path.write_text(path.read_text().replace("[device]", '[device]\nprogram = "./evil"'))
    said = fedtiny("resume", stopped)
    assert_one_sentence(said, "config.toml names a program", "give it again with --device.program")
    said = fedtiny("resume", stopped, "--device.program", "/nowhere {data}")
    assert_one_sentence(said, "--device.program needs --device-backend native")  # it is taken


def test_own_samples_are_one_device_s(fedtiny):
    images = np.random.default_rng(0).integers(0, 17, (20, 1, 8, 8)).astype(np.uint8)
    np.savez("own.npz", x=images, y=np.arange(20) % 10)
    assert fedtiny("data", "devices", "--own", "own.npz", "--device", "4").code == 0
    assert fedtiny("data", "devices", "--own", "own.npz", "--out", "any").code == 0
    found, other = read("devices/device4.ftd"), read("any/device.ftd")
    assert (found.device, other.device) == (4, NO_DEVICE)
    assert len(found) == len(other) == 20
    np.testing.assert_array_equal(found.data.images[found.indices][:, 0, :3], images[:, 0, :3])


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (("--device", "2"), "--own"),
        (("--own", "nowhere.npz"), "nowhere.npz"),
        (("--own", "wide.npz"), "the samples in wide.npz are (1, 16, 16), but the run's are (1, 8"),
        (("--own", "own.npz", "--device", "-1"), "--device must"),
        (("--data.name", "nothing"), "nothing"),
    ],
)
def test_bad_input(fedtiny, flags, told):
    np.savez("wide.npz", x=np.zeros((4, 16, 16), np.uint8), y=np.zeros(4, np.int64))
    np.savez("own.npz", x=np.zeros((4, 1, 8, 8), np.uint8), y=np.zeros(4, np.int64))
    assert_one_sentence(fedtiny("data", "devices", *flags), told)


def test_the_help_of_a_gateway_names_the_place(fedtiny):
    assert "fedtiny gateway [-h] PLACE [--listen" in " ".join(fedtiny("gateway", "-h").out.split())


def test_a_gateway_stands_for_a_program(fedtiny):
    assert fedtiny("data", "devices", *FEW).code == 0
    program = shlex.join([sys.executable, str(STAND_IN), "devices/device2.ftd"])
    command = [sys.executable, "-m", "fedtiny", "gateway", program, "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as gateway:
        first, second = (gateway.stdout.readline() for _ in range(2))
        assert first.startswith("stand-in is here: device 2, ")
        address = second.partition('gateway="')[2].partition('"')[0]
        for _ in range(2):  # one after the other
            channel, hello = place_of(f"gateway://{address}").open(None, 5.0, 5.0)
            own = read("devices/device2.ftd")
            assert hello.data == (2, *_sizes(own), (1, 8, 8), 10, own.digest)
            channel.close()
        gateway.send_signal(signal.SIGINT)
        assert gateway.wait(20) == 130
    with pytest.raises(FedTinyError, match="no gateway at"):
        place_of(f"gateway://{address}").open(None, 5.0, 5.0)


def _sizes(data):
    return len(data), len(data.development)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("true",), "the device cannot be reached: it did not introduce itself"),
        (("tcp://nowhere",), "is no address"),
        (("true", "--listen", "here"), "is no address"),
        (("true", "--listen", "[::1"), "'tcp://[::1' is no address"),
        (("true", "--timeout", "0"), "--timeout must be above 0"),
        (("true", "--timeout", "1e10"), "--timeout must be above 0 and at most 86400"),
    ],
)
def test_a_gateway_without_a_device_says_so(fedtiny, arguments, told):
    arguments = arguments if "--listen" in arguments else (*arguments, "--listen", "127.0.0.1:0")
    assert_one_sentence(fedtiny("gateway", *arguments), told)
