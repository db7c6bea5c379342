"""Every operation in C gives what it gives in NumPy, over shapes and settings by chance."""

import re

import numpy as np
import pytest

from fedtiny.errors import ExportError
from fedtiny.export import c_calls, c_program
from fedtiny.export.c_program import ACTIONS
from fedtiny.export.c_source import write_c
from fedtiny.graph.node import Kind

from .c_operations import Branches, model_of_branches
from .c_program import SANITIZED, compiled, needs_compiler, run
from .c_reference import as_held, logits

SEEDS = range(4)
MORE_SEEDS = range(100, 112)


def assert_c_gives_the_same(model, folder, values):
    write_c(model, folder, values=values)
    images = np.random.default_rng(0).standard_normal((3, *model.shape)).astype(np.float32)
    _, _, found = run(compiled(folder, *SANITIZED), images)
    expected = logits(as_held(model.net, values), images)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@needs_compiler
@pytest.mark.parametrize("seed", SEEDS)
def test_all_operations(seed, tmp_path, monkeypatch):
    monkeypatch.setattr(c_calls, "WORTH_CODE", 1 if seed < 2 else c_calls.WORTH_CODE)
    values = ("fp32", "int8")[seed % 2]
    assert_c_gives_the_same(model_of_branches(seed), tmp_path, values)


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("seed", MORE_SEEDS)
def test_all_operations_more_often(seed, tmp_path):
    assert_c_gives_the_same(model_of_branches(seed), tmp_path, "fp32")


def test_the_branches_have_every_operation():
    kinds = {node.kind for node in model_of_branches(0).net.graph.nodes}
    assert kinds == {*ACTIONS} == {*Kind} - {Kind.DROPOUT}


def model_of(*kinds, shape=(2, 4, 4), **fields):
    """A linear layer of what these operations make of each other."""
    b, last = Branches(0, shape), 0
    for kind in kinds:
        last = b.add(kind, last, **fields)
    b.ends.append(b.layer(Kind.LINEAR, b.add(Kind.FLATTEN, last), 3))
    return b.model()


def written(model, folder):
    write_c(model, folder)
    return (folder / "model.c").read_text()


def test_only_what_a_model_needs_is_written(tmp_path):
    plain = written(model_of(Kind.RELU), tmp_path / "plain")
    functions = set(re.findall(r"^static \w+ \*?(\w+)\(", plain, re.MULTILINE))
    layer = {"advance", "read_from_start", "scale_of", "bias_of", "limited", "connect"}
    always = {"row_of", "load_pixels", "load_values", "flatten", "largest_of", "compute"}
    always |= {"start_profile", "end_step"}
    assert functions == {*layer, *always, "rectify"}
    assert "main.c -o model\n" in plain


@pytest.mark.parametrize("kind", [Kind.SIGMOID, Kind.GELU, Kind.TANH, Kind.SOFTMAX])
def test_the_mathematical_library_is_named_where_it_is_needed(kind, tmp_path):
    assert "main.c -o model -lm\n" in written(model_of(kind), tmp_path)


def test_a_layer_that_runs_twice_has_its_weights_once(tmp_path):
    b = Branches(0, (3, 4, 4))
    fields = {"name": "twice", "channels": 3, "kernel": (3, 3), "padding": (1, 1)}
    once = b.add(Kind.CONVOLUTION, 0, **fields)
    b.weights["twice"] = b.random_weights((3, 3, 3, 3), 3, False)
    b.ends.append(b.add(Kind.CONVOLUTION, once, **fields))
    text = written(b.model(), tmp_path)
    assert len(re.findall(r"^static const int8_t ", text, re.MULTILINE)) == 1
    assert len(re.findall(r"^static const Layer ", text, re.MULTILINE)) == 2


def test_what_c_lacks_is_said_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.delitem(c_program.ACTIONS, Kind.GELU)
    with pytest.raises(ExportError, match=r"the C export lacks gelu \(mlp.1\); ONNX and packed ha"):
        write_c(model_of(Kind.GELU, module="mlp.1"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_number_that_is_no_float_is_refused(tmp_path):
    with pytest.raises(ExportError, match=r"a step with the number 1e\+300"):
        write_c(model_of(Kind.SCALE, factor=1e300), tmp_path / "out")


def test_more_memory_than_an_int_counts_is_refused(tmp_path):
    b = Branches(0, (1 << 10, 1, 1))
    wide = {"kernel": (3, 3), "padding": (1000, 1000), "stride": (1, 1)}
    last = b.layer(Kind.CONVOLUTION, 0, 1, **wide)
    b.ends.append(b.add(Kind.ADAPTIVE_POOL, last, size=(1, 1)))
    with pytest.raises(ExportError, match=r"would take \d{10,} bytes of RAM"):
        write_c(b.model(), tmp_path / "out")
