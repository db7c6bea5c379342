"""Networks that people put on devices: every export has the logits that torch has."""

import pytest
import torch

from fedtiny import models
from fedtiny.data.transforms import ArrayTransform
from fedtiny.export import packed
from fedtiny.export.c_source import write_c
from fedtiny.export.numpy_model import NumpyModel
from fedtiny.export.onnx_file import onnx_bytes
from fedtiny.export.torch_model import PackedNetwork

from .c_program import COMPILERS, SANITIZED, compiled, needs_compiler, run
from .nets import assert_close, measured, tiny_model
from .test_onnx import session

NETWORKS = {
    "mobilenetv2": ((3, 16, 16), 8),
    "mobilenetv3_small": ((3, 16, 16), 8),
    "ds_cnn": ((1, 25, 10), 8),
    "resnet18_gn": ((3, 16, 16), 8),
    "squeezenet": ((3, 16, 16), 16),
    "cnn1d": ((6, 64), 8),
    "lenet5": ((3, 32, 32), 6),
    "vit_tiny": ((3, 16, 16), 24),
    "efficientnet_lite0": ((3, 16, 16), 8),
    "mlp": ((20,), 16),
}
ALL = pytest.mark.parametrize("name", NETWORKS)
INPUTS = 50


def exported(name, density=0.3):
    """The network in torch, what is shipped of it as read from a file, and its inputs."""
    shape, width = NETWORKS[name]
    made = measured(models.build(name, shape, 10, width=width), shape, density)
    model = packed.unpacked(packed.packed(tiny_model(made)))
    return made, model, made.images(INPUTS)


def expected(made, model, images):
    """Those of torch for values that are not normalised yet."""
    normal = ArrayTransform(model.normalisation.mean, model.normalisation.std)
    return made.logits(normal.normalise(images.reshape(-1, *model.shape)).reshape(images.shape))


@ALL
def test_packed_and_onnx(name):
    made, model, images = exported(name)
    wanted, shaped = expected(made, model, images), images.reshape(-1, *model.shape)
    assert_close(NumpyModel(model)(shaped), wanted)
    with torch.no_grad():
        assert_close(PackedNetwork(model).eval()(torch.from_numpy(shaped)).numpy(), wanted)
    for plain in (False, True):
        (found,) = session(onnx_bytes(model, plain=plain)).run(["logits"], {"image": shaped})
        assert_close(found, wanted)


@needs_compiler
@ALL
def test_c(name, tmp_path):
    made, model, images = exported(name)
    write_c(model, tmp_path, values="fp32")
    _, _, found = run(compiled(tmp_path, *SANITIZED), images.reshape(-1, *model.shape))
    assert_close(found, made.logits(images))


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("level", ["-Os", "-O3"])
@ALL
def test_c_of_all_weights_as_it_ships(name, level, compiler, tmp_path):
    made, model, images = exported(name, density=1.0)
    write_c(model, tmp_path, values="fp32")
    flags = (level, "-ffp-contract=fast")
    _, _, found = run(compiled(tmp_path, *flags, compiler=compiler), images)
    assert_close(found, made.logits(images))
