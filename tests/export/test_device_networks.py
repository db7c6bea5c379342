"""Networks that people put on devices: every export has the logits that torch has."""

import re
import subprocess
from dataclasses import replace

import numpy as np
import pytest
import torch

from fedtiny import models
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
    "resnet8": ((3, 16, 16), 8),
    "resnet18_gn": ((3, 16, 16), 8),
    "squeezenet": ((3, 16, 16), 16),
    "cnn1d": ((6, 64), 8),
    "lenet5": ((3, 32, 32), 3),
    "vit_tiny": ((3, 16, 16), 24),
    "mlp": ((20,), 16),
}
MORE = {"efficientnet_lite0": ((3, 16, 16), 8), "resnet20": ((3, 16, 16), 4)}
ALL = pytest.mark.parametrize(
    "name", [*NETWORKS, *(pytest.param(name, marks=pytest.mark.slow) for name in MORE)]
)
INPUTS = 50


def exported(name, density=0.1):
    """The network in torch, what is shipped of it as read from a file, and its inputs."""
    shape, width = (NETWORKS | MORE)[name]
    made = measured(models.build(name, shape, 10, width=width), shape, density)
    taken_as_measured = replace(tiny_model(made), reads="values")
    model = packed.unpacked(packed.packed(taken_as_measured))
    return made, model, made.images(INPUTS)


def before_normalising(images, model):
    """Values that are normalised to these, in the shape that exports take."""
    mean, std = (
        np.reshape(part, (-1, 1, 1)).astype(np.float32)
        for part in (model.normalisation.mean, model.normalisation.std)
    )
    return images.reshape(-1, *model.shape) * std + mean


@ALL
def test_packed_and_onnx(name):
    made, model, images = exported(name)
    raw, wanted = before_normalising(images, model), made.logits(images)
    assert_close(NumpyModel(model)(raw), wanted)
    with torch.no_grad():
        assert_close(PackedNetwork(model).eval()(torch.from_numpy(raw)).numpy(), wanted)
    for plain in (False, True):
        (found,) = session(onnx_bytes(model, plain=plain)).run(["logits"], {"image": raw})
        assert_close(found, wanted)


@needs_compiler
@ALL
def test_c(name, tmp_path):
    made, model, images = exported(name)
    write_c(model, tmp_path, values="fp32")
    _, _, found = run(compiled(tmp_path, *SANITIZED), images.reshape(-1, *model.shape))
    assert_close(found, made.logits(images))


@needs_compiler
@pytest.mark.parametrize("name", ["cnn1d", "mlp"])
def test_the_program_of_sensors_and_tables_reads_what_they_measure(name, tmp_path):
    made, model, images = exported(name)
    write_c(model, tmp_path, values="fp32")
    raw = before_normalising(images, model)
    program = compiled(tmp_path, *SANITIZED)
    classes, _, found = run(program, raw, "raw")
    assert_close(found, made.logits(images))
    assert_close(found, NumpyModel(model)(raw))
    np.testing.assert_array_equal(classes, found.argmax(1))
    raw.tofile(tmp_path / "samples.f32")
    again = subprocess.run([program, "samples.f32"], cwd=tmp_path, capture_output=True, check=True)
    assert [int(line.split(b"\t")[0]) for line in again.stdout.splitlines()] == list(classes)
    for words in (["gone.f32"], ["--raw"], ["--values", "a", "b"]):
        assert subprocess.run([program, *words], capture_output=True, check=False).returncode == 2


def test_the_header_of_sensors_has_the_function_for_measured_values_first(tmp_path):
    _, model, _ = exported("cnn1d")
    write_c(model, tmp_path)
    offered = re.findall(r"^int (model_run\w*)", (tmp_path / "model.h").read_text(), re.MULTILINE)
    assert offered == ["model_run_raw", "model_run_values", "model_run"]


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("compiler", COMPILERS)
@ALL
def test_c_of_all_weights_as_it_ships(name, compiler, tmp_path):
    made, model, images = exported(name, density=1.0)
    write_c(model, tmp_path, values="fp32")
    program = compiled(tmp_path, "-O3", "-ffp-contract=fast", compiler=compiler)
    _, _, found = run(program, images.reshape(-1, *model.shape))
    assert_close(found, made.logits(images))
