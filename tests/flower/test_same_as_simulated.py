"""The same run over Flower and in the simulator: the same bytes of everything."""

import pytest

from ..runs.tiny import TRAINING, essence, train
from .federation import Grid, federate, tiny


def both(config, tmp_path):
    """A run in the simulator and the same run over Flower, as what must not differ."""
    simulated = train(config, tmp_path / "simulated").path
    federated = federate(Grid(), config, tmp_path / "federated")
    return essence(simulated), essence(federated)


@pytest.mark.parametrize("backend", ["torch", "native"])
@pytest.mark.parametrize("method", ["fedtiny", "feddst"])
def test_weights_masks_metrics_and_bytes_are_the_same(method, backend, tmp_path):
    config = tiny(method=method, device_backend=backend, rounds=4, eval_devices=True)
    simulated, federated = both(config, tmp_path)
    assert sum(line["mask_change"] > 0 for line in simulated["metrics"]) >= 2
    assert [name for name in simulated if simulated[name] != federated[name]] == []


@pytest.mark.parametrize("backend", ["torch", "native"])
@pytest.mark.parametrize("name", TRAINING)
def test_every_way_of_training_is_the_same(name, backend, tmp_path):
    method = "feddst" if name == "fedprox" else "fedtiny"  # FedDST changes masks on the devices
    config = tiny(method=method, device_backend=backend, **TRAINING[name])
    simulated, federated = both(config, tmp_path)
    assert [name for name in simulated if simulated[name] != federated[name]] == []
