"""What flows through networks of absolute weights, whatever their norms and activations."""

import numpy as np
import pytest

from fedtiny import models
from fedtiny.models.synaptic_flow import measure

NAMES = ("mobilenetv2", "mobilenetv3_small", "resnet18_gn", "squeezenet", "vit_tiny", "lenet5")


@pytest.mark.parametrize("name", NAMES)
def test_every_weight_of_a_network_has_its_share_of_the_flow(name):
    shape = (1, 16, 16)
    network = models.build(name, shape, 4, width=8 if name != "vit_tiny" else 32)
    prunable = models.analyze(network, shape).prunable
    scores = measure(network, shape, tuple(prunable))(dict.fromkeys(prunable))
    values = np.concatenate(list(scores.values()))
    assert np.isfinite(values).all()
    assert (values >= 0).all()
    assert (values > 0).mean() > 0.99
