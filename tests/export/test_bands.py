"""Bands of rows give the same bits as whole planes, in less memory."""

from itertools import takewhile

import numpy as np
import pytest

from fedtiny import models
from fedtiny.export import c_band_search, c_int8, c_source
from fedtiny.export.c_bands import BANDED, Schedule
from fedtiny.export.c_int8 import Int8Source
from fedtiny.export.c_plan import plan
from fedtiny.export.c_program import program
from fedtiny.export.c_source import Source, write_source
from fedtiny.export.integer_model import IntegerModel
from fedtiny.export.packed import shipped as unpacked
from fedtiny.export.quantize import quantize

from ..graph.building import Builder
from .c_operations import FORMS, Branches
from .c_program import FAST, SANITIZED, compiled, needs_compiler, run
from .nets import sparse, tiny_model
from .test_int8 import TARGETS, samples
from .test_trained import FILES

BY_ROWS = (
    *("convolution", "depthwise", "depthwise with a stride", "depthwise_in_place", "linear"),
    *("shared", "sum_of_two", "product_of_two", "MAX_POOL", "BATCH_NORM", "RELU6", "SILU"),
)
HEIGHTS = (1, 2, 3, 5)


class Chain(Branches):
    """A network whose steps read one of the last."""

    def source(self):
        return self.some(max(0, len(self.shapes) - 3), len(self.shapes) - 1)


def chain(seed):
    """Steps that bands may compute, with settings and sources by chance."""
    rng = np.random.default_rng(seed)
    b = Chain(seed, (int(rng.integers(1, 4)), *map(int, rng.integers(8, 17, 2))))
    while len(b.shapes) < 14 and min(b.shapes[-1][1:]) > 1:
        last = FORMS[str(rng.choice(BY_ROWS))](b)
    b.ends += [last, b.source()]
    return b.model()


def forced(monkeypatch, seed):
    """Let some number of first steps be computed by bands of some height."""
    rng = np.random.default_rng(seed)
    count, height = rng.random(), int(rng.choice(HEIGHTS))

    def chosen(steps, *_):
        able = list(takewhile(lambda step: step.action in BANDED, steps.steps[1:]))
        return Schedule(steps, 1 + int(count * len(able)), height)

    for module in (c_source, c_int8):
        monkeypatch.setattr(module, "schedule", chosen)


def assert_floats_agree(model, folder, images):
    found = []
    for bands in (False, True):
        source = Source(model, "int8", bands=bands)
        assert bool(source.plan.bands) == bands
        write_source(source, folder / str(bands))
        found.append(run(compiled(folder / str(bands), *(SANITIZED if bands else FAST)), images)[2])
    np.testing.assert_array_equal(*found)


def assert_integers_agree(model, folder, images, target):
    made = quantize(model, images)
    source = Int8Source(made, target, "model")
    assert source.plan.bands
    write_source(source, folder)
    _, _, found = run(compiled(folder, *SANITIZED), images)
    np.testing.assert_array_equal(found, IntegerModel(made)(images))


def built(name, shape, density=0.3, **options):
    return tiny_model(sparse(models.build(name, shape, 10, **options), shape, density))


@needs_compiler
@pytest.mark.parametrize("seed", [2, 5])
def test_random_networks_have_the_same_bits(seed, monkeypatch, tmp_path):
    forced(monkeypatch, seed)
    model = chain(seed)
    images = samples(model, 9)
    assert_floats_agree(model, tmp_path / "floats", images)
    assert_integers_agree(model, tmp_path / "integers", images, TARGETS[seed % 3])


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 110))
def test_more_random_networks_have_the_same_bits(seed, monkeypatch, tmp_path):
    test_random_networks_have_the_same_bits(seed, monkeypatch, tmp_path)


@needs_compiler
@pytest.mark.parametrize("name", ["resnet8", pytest.param("mobilenetv2", marks=pytest.mark.slow)])
def test_networks_of_devices_have_the_same_bits(name, monkeypatch, tmp_path):
    forced(monkeypatch, seed=4)
    model = built(name, (3, 16, 16), width=8)
    images = samples(model, 8)
    assert_floats_agree(model, tmp_path / "floats", images)
    assert_integers_agree(model, tmp_path / "integers", images, "cortex-m")


@pytest.mark.parametrize(("name", "share"), [("resnet8", 0.9), ("mobilenetv2", 0.5)])
def test_networks_of_devices_take_less_memory(name, share):
    model = built(name, (3, 32, 32))
    whole, banded = (Source(model, "int8", bands=bands) for bands in (False, True))
    assert banded.ram_bytes < share * whole.ram_bytes
    assert whole.table_bytes < banded.table_bytes < whole.table_bytes + 8000


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_trained_models_take_at_most_0_6_of_the_memory(file):
    model = unpacked(file)
    whole, banded = (Int8Source(model, "cortex-m", "model", bands=bands) for bands in (False, True))
    assert banded.ram_bytes < 0.6 * whole.ram_bytes
    assert 1 < len(banded.plan.bands) < 15


@pytest.mark.parametrize(
    ("name", "shape"),
    [("small", (1, 8, 8)), ("cnn1d", (6, 64)), ("mlp", (20,)), ("mobilenetv3_small", (3, 32, 32))],
)
def test_whole_planes_where_bands_save_little(name, shape):
    """Few values, one row, or a pool over whole planes before the peak."""
    model = built(name, shape)
    assert not Source(model, "int8").plan.bands


def test_bands_are_left_out_where_they_cost_too_much(monkeypatch):
    model = built("resnet8", (3, 32, 32))
    assert Source(model, "int8").plan.bands
    monkeypatch.setattr(c_band_search, "MAX_EXTRA", 0.001)
    assert not Source(model, "int8").plan.bands


def residual(side):
    """A convolution, and a block whose sum is written over what that gives."""
    net, window = Builder((1, side, side)), {"kernel": (3, 3), "padding": (1, 1)}
    stem = net.convolution("stem", 0, 4, **window)
    first = net.convolution("first", stem, 4, **window)
    added = net.add(net.convolution("second", first, 4, **window), stem)
    net.linear("head", net.flatten(net.adaptive_pool(added, (1, 1))), 3)
    return program(net.graph), stem, first, added


def test_each_band_gives_as_many_rows_and_the_last_ones_come_as_slowly():
    steps, stem, first, added = residual(8)
    found = Schedule(steps, 3, 2)
    given = [found.given_by_band(step) for step in found.steps]
    assert given == [[1, 2, 2, 2, 1, 0], [0, 2, 2, 2, 2, 0], [0, 1, 2, 2, 2, 1]]
    assert {0, added} < found.complete
    assert not {stem, first} & found.complete
    window = found.window([first])
    assert window.rows == 4  # two that come, and two that the next band reads again
    assert window.first.tolist() == [-1, -1, -1, 0, 2, 4, 5]


def test_a_sum_is_written_over_what_it_adds():
    steps, stem, _, added = residual(8)
    assert Schedule(steps, 3, 2).may_replace(steps.steps[3], stem)
    found = plan(steps, schedule=Schedule(steps, 3, 2))
    assert found.tensors[added] == found.tensors[stem]


def test_a_depthwise_convolution_is_not_written_over_rows_that_a_later_band_reads():
    net = Builder((1, 8, 8))
    wide = net.convolution("wide", 0, 4, kernel=(3, 3), padding=(1, 1))
    own = net.convolution("own", wide, 4, kernel=(3, 3), padding=(1, 1), groups=4)
    net.linear("head", net.flatten(own), 3)
    steps = program(net.graph)
    whole, banded = plan(steps), plan(steps, schedule=Schedule(steps, 2, 2))
    assert whole.tensors[wide] == whole.tensors[own]
    assert banded.tensors[wide].start != banded.tensors[own].start
    assert banded.tensors[wide].shape == (4, banded.held[wide], 8)
