"""Every operation in C gives what it gives in NumPy, over shapes and settings by chance."""

import numpy as np
import pytest

from fedtiny.export.c_program import ACTIONS
from fedtiny.export.c_source import write_c
from fedtiny.graph.node import Kind

from .c_operations import model_of_branches
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
def test_all_operations(seed, tmp_path):
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
