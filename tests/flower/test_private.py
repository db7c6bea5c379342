"""Differential privacy over a grid is that of the simulator, bit for bit."""

import pytest

from fedtiny.errors import FedTinyError

from ..runs.tiny import lines, train
from .federation import Grid, federate, tiny


def model(path):
    return (path / "model.safetensors").read_bytes()


@pytest.mark.parametrize("noise", [0.0, 1.0])
def test_nodes_and_simulated_devices_make_the_same_private_model(tmp_path, noise):
    if noise:
        pytest.importorskip("dp_accounting")
    config = tiny(privacy={"noise_multiplier": noise, "clip": 0.5}, fleet={"fraction": 0.7})
    path = federate(Grid(), config, tmp_path / "nodes")
    simulated = train(config, tmp_path / "simulated").path
    assert model(path) == model(simulated)
    told = [[line["epsilon"] for line in lines(own)] for own in (path, simulated)]
    assert told[0] == told[1]


def test_nodes_that_would_evaluate_are_refused(tmp_path):
    config = tiny(privacy={"noise_multiplier": 0.0, "clip": 0.5})
    with pytest.raises(FedTinyError, match="give the server a test set"):
        federate(Grid(), config, tmp_path / "run", test="devices")
