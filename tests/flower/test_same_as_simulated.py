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
@pytest.mark.parametrize("method", ["fedtiny", "feddst", "fedsgc", "fedrts", "fedfit", "set"])
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


@pytest.mark.parametrize(
    ("rule", "backend"), [("fisher", "native"), ("votes", "torch"), ("shared", "native")]
)
def test_kinds_of_candidates_and_rules_of_growth_are_the_same(rule, backend, tmp_path):
    config = tiny(
        method="fedtiny",
        device_backend=backend,
        rounds=3,
        selection={"pool": "flow,random", "pool_size": 2, "tolerance": 0.003},
        pruning={"growth": rule, "drop": "after_training", "delta_r": 2, "iterations": 3}
        | {"granularity": "entire"},
    )
    simulated, federated = both(config, tmp_path)
    assert sum(line["mask_change"] > 0 for line in simulated["metrics"]) >= 2
    assert [name for name in simulated if simulated[name] != federated[name]] == []


def test_a_recipe_of_a_method_is_the_same(tmp_path):
    config = tiny(method="fedtiny_flow", rounds=3, pruning={"iterations": 3})
    simulated, federated = both(config, tmp_path)
    assert not any(line["mask_change"] for line in simulated["metrics"])
    assert [name for name in simulated if simulated[name] != federated[name]] == []


def test_extrusion_is_the_same(tmp_path):
    config = tiny(method="fedmef", model="resnet18_ns", width=4, rounds=2)
    simulated, federated = both(config, tmp_path)
    assert [name for name in simulated if simulated[name] != federated[name]] == []


@pytest.mark.parametrize("backend", ["torch", "native"])
def test_scores_of_a_dense_model_are_the_same(backend, tmp_path):
    simulated, federated = both(tiny(method="ssfl", device_backend=backend, rounds=1), tmp_path)
    assert [name for name in simulated if simulated[name] != federated[name]] == []
