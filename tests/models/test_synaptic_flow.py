"""What flows through networks of absolute weights, whatever their norms and activations."""

import numpy as np
import pytest
import torch
from torch import nn

from fedtiny import models
from fedtiny.models.synaptic_flow import SynapticFlow

NAMES = ("mobilenetv2", "mobilenetv3_small", "resnet18_gn", "squeezenet", "vit_tiny", "lenet5")


def everywhere(flow):
    return flow.scores(torch.arange(len(flow.first))).numpy()


@pytest.mark.parametrize("name", NAMES)
def test_every_weight_of_a_network_has_its_share_of_the_flow(name):
    shape = (1, 16, 16)
    network = models.build(name, shape, 4, width=8 if name != "vit_tiny" else 32)
    prunable = models.analyze(network, shape).prunable
    values = everywhere(SynapticFlow(network, shape, tuple(prunable)))
    assert np.isfinite(values).all()
    assert (values >= 0).all()
    assert (values > 0).mean() > 0.99


def test_a_log_softmax_at_the_end_takes_nothing_of_the_flow():
    network, shape = models.build("small", (1, 8, 8), 4, width=4), (1, 8, 8)
    prunable = tuple(models.analyze(network, shape).prunable)
    plain, ended = (
        SynapticFlow(made, shape, [f"{start}{name}" for name in prunable])
        for made, start in ((network, ""), (nn.Sequential(network, nn.LogSoftmax(1)), "0."))
    )
    np.testing.assert_array_equal(everywhere(ended), everywhere(plain))
