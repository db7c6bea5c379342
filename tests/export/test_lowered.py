"""The lowered network gives the logits of the torch network, with less in it."""

import pytest

from fedtiny.export.arithmetic import all_steps
from fedtiny.export.lowered import lower
from fedtiny.native.description import Kind

from .nets import DENSITIES, SHIPPED, assert_close, shipped


def logits(net, images):
    return all_steps(net, images.swapaxes(0, 1))[-1][:, :, 0, 0].T


@pytest.mark.parametrize("remove_dead", [False, True])
@pytest.mark.parametrize("fold", [False, True])
@pytest.mark.parametrize("density", DENSITIES)
@pytest.mark.parametrize("name", SHIPPED)
def test_every_model_keeps_its_logits(name, density, fold, remove_dead):
    made = shipped(name, density)
    net = lower(made.description, made.theta, fold=fold, remove_dead=remove_dead)
    images = made.images()
    assert_close(logits(net, images), made.logits(images))
    assert not fold or not net.norms
    assert not fold or Kind.BATCH_NORM not in {node.kind for node in net.description.nodes}
