"""What flows through networks of absolute weights, whatever their norms and activations."""

import numpy as np
import pytest
import torch
from torch import nn

from fedtiny import models
from fedtiny.models.synaptic_flow import SynapticFlow

NAMES = ("mobilenetv2", "mobilenetv3_small", "resnet18_gn", "squeezenet", "vit_tiny", "lenet5")


def everywhere(flow):
    return flow.scores(torch.arange(sum(flow.sizes))).numpy()


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


def test_normalized_flow_by_hand():
    """Both hidden units let 1 through, so that |w dR/dw| of one is what its weights behind add.

    Plain, the first unit lets 10 through and the second 1: it would lose its weights first.
    """
    network = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1))
    with torch.no_grad():
        network[0].weight.copy_(torch.tensor([[-6.0, 4.0], [0.25, 0.75]]))
        network[0].bias.fill_(torch.inf)  # counts for nothing
        network[2].weight.copy_(torch.tensor([[1.0, -3.0]]))
    names = ("0.weight", "2.weight")
    flow = SynapticFlow(network, (2,), names, normalized=True)
    np.testing.assert_allclose(everywhere(flow), np.array([0.6, 0.4, 3 * 0.25, 3 * 0.75, 1, 3]) / 4)
    kept = torch.tensor([0, 2, 3, 4, 5])
    np.testing.assert_allclose(flow.scores(kept), np.array([1, 0.75, 2.25, 1, 3]) / 4)
    kept = torch.tensor([2, 3, 4, 5])
    np.testing.assert_allclose(flow.scores(kept), [0.25, 0.75, 0, 1], err_msg="a dead unit")


@pytest.mark.parametrize("name", NAMES)
def test_normalized_flow_does_not_change_with_the_scale_of_a_unit(name):
    shape = (1, 16, 16)
    network = models.build(name, shape, 4, width=8 if name != "vit_tiny" else 32)
    prunable = tuple(models.analyze(network, shape).prunable)
    before = everywhere(SynapticFlow(network, shape, prunable, normalized=True))
    assert np.isfinite(before).all()
    weight = dict(network.named_parameters())[prunable[0]]
    with torch.no_grad():
        weight[0] *= 100
    after = everywhere(SynapticFlow(network, shape, prunable, normalized=True))
    np.testing.assert_allclose(after, before, rtol=1e-6, atol=1e-12)


def test_normalized_flow_leaves_more_units_of_a_chain_alive():
    torch.manual_seed(0)
    wide = [nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)]
    network, names = nn.Sequential(*wide), ("0.weight", "2.weight")

    def live(*, normalized):
        flow = SynapticFlow(network, (64,), names, normalized=normalized)
        kept = torch.arange(sum(flow.sizes))
        for total in (20_000, 5_000, 1_000):
            kept = kept[flow.scores(kept).topk(total).indices].sort().values
        rows = kept[kept < 64 * 256] // 64
        columns = (kept[kept >= 64 * 256] - 64 * 256) % 256
        return len(np.intersect1d(rows, columns))

    assert live(normalized=True) > 3 * live(normalized=False) > 0


def test_weights_in_another_memory_format_have_the_same_flow():
    shape = (1, 16, 16)
    network = models.build("lenet5", shape, 4)
    prunable = tuple(models.analyze(network, shape).prunable)
    plain = everywhere(SynapticFlow(network, shape, prunable))
    turned = network.to(memory_format=torch.channels_last)
    np.testing.assert_array_equal(everywhere(SynapticFlow(turned, shape, prunable)), plain)
