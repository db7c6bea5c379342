"""A packed model gives the logits of the run's model, wherever it runs."""


import numpy as np
import pytest
import torch

from fedtiny.data.array_transform import ArrayTransform
from fedtiny.export import numpy_model, packed, torch_model

from .nets import DENSITIES, SHIPPED, assert_close, shipped, tiny_model

CLASSES = tuple("abcdefghij")


def both(model, images):
    """The logits of NumPy and of torch."""
    network = torch_model.PackedNetwork(model).eval()
    with torch.no_grad():
        return numpy_model.NumpyModel(model)(images), network(torch.from_numpy(images)).numpy()


@pytest.mark.parametrize("fold", [False, True])
@pytest.mark.parametrize("density", DENSITIES)
@pytest.mark.parametrize("name", SHIPPED)
def test_every_model_comes_back_with_its_logits(name, density, fold):
    made = shipped(name, density)
    model = packed.unpacked(packed.packed(tiny_model(made, fold=fold)))
    images = np.random.default_rng(1).integers(0, 256, (6, *made.shape), dtype=np.uint8)
    expected = made.logits(ArrayTransform(*vars(model.normalisation).values()).normalise(images))
    for found in both(model, images):
        assert_close(found, expected)
