"""Bad input is refused with a clear error, and the network can be used afterwards."""

import re
import shutil
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from fedtiny.graph.ir import Kind
from fedtiny.graph.operations import NATIVE
from fedtiny.native import library
from fedtiny.native.compile import SOURCES, CannotCompileError, build
from fedtiny.native.library import NativeError, Options, Rates
from fedtiny.native.model import NativeModel

from ..graph.building import Builder
from . import fuzz
from .twins import Probe


def graph():
    net = Builder((2, 8, 8))
    x = net.relu(net.batch_norm("bn", net.convolution("conv", 0, 4, kernel=(3, 3))))
    net.linear("fc", net.flatten(net.adaptive_pool(x, (1, 1))), 3)
    return net.graph


@pytest.fixture
def model():
    native = Probe(graph())
    native.prepare(Options(batch=8, top_count=3))
    return native


POSITIONS = {
    "out of range": [0, 5, 72],
    "negative": [-1, 5],
    "duplicate": [3, 3],
    "unsorted": [5, 3],
    "fractions": [0.5],
    "two-dimensional": [[1, 2]],
    "huge": [2**40],
}


@pytest.mark.parametrize("kind", POSITIONS)
def test_bad_positions(model, kind):
    with pytest.raises(NativeError, match="position"):
        model.prepare(Options(batch=8), {"conv.weight": np.array(POSITIONS[kind])})
    model.prepare(Options(batch=8), {"conv.weight": np.array([0, 5, 71])})
    assert model.logits(np.zeros((1, 2, 8, 8))).shape == (1, 3)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_weights_that_are_no_numbers(model, value):
    weights = np.zeros(72)
    weights[7] = value
    with pytest.raises(NativeError, match="no finite number"):
        model.set("conv.weight", weights)
    np.testing.assert_array_equal(model.get("conv.weight"), np.zeros(72))


@pytest.mark.parametrize(
    ("name", "size"), [("conv.weight", 71), ("fc.bias", 4), ("bn.running_var", 3)]
)
def test_shapes_that_do_not_fit(model, name, size):
    with pytest.raises(NativeError, match="values"):
        model.set(name, np.zeros(size))


def test_a_negative_variance(model):
    with pytest.raises(NativeError, match="variance"):
        model.set("bn.running_var", -np.ones(4))


def test_tensors_that_do_not_exist(model):
    with pytest.raises(NativeError, match=r"no tensor 'other\.weight'"):
        model.set("other.weight", np.zeros(1))
    with pytest.raises(NativeError, match=r"cannot be set|no tensor"):
        model.set("bn.batch_mean", np.zeros(4))
    with pytest.raises(NativeError, match="no weight"):
        model.prepare(Options(), {"bn.weight": np.array([0])})


def test_images_and_labels_that_do_not_fit(model):
    with pytest.raises(NativeError, match="images must be"):
        model.logits(np.zeros((1, 2, 8, 7)))
    with pytest.raises(NativeError, match="as many labels"):
        model.train(np.zeros((2, 2, 8, 8)), np.zeros(3, dtype=np.int64))
    with pytest.raises(NativeError, match="1 to 8 were planned"):
        model.train(np.zeros((9, 2, 8, 8)), np.zeros(9, dtype=np.int64), update=False)
    with pytest.raises(NativeError, match="label 3 is not one of 3"):
        model.train(np.zeros((2, 2, 8, 8)), np.array([0, 3]), update=False)
    with pytest.raises(NativeError, match="1 to 8 were planned"):
        model.logits(np.zeros((0, 2, 8, 8)))


def test_an_optimizer_that_was_not_started(model):
    with pytest.raises(NativeError, match="not started"):
        model.train(np.zeros((2, 2, 8, 8)), np.array([0, 1]))
    with pytest.raises(NativeError, match="finite"):
        model.start(Rates(lr=np.nan))
    with pytest.raises(NativeError, match="finite and not negative"):
        model.start(Rates(lr=0.1, rest_decay=-1.0))


def test_a_proximal_term_needs_room_for_the_values_of_the_start(model):
    with pytest.raises(NativeError, match="were not planned for"):
        model.start(Rates(lr=0.1, proximal=0.5))
    plain = model.plan(Options(batch=8))
    kept = model.plan(Options(batch=8, proximal=True))
    assert kept.parameters > plain.parameters
    model.prepare(Options(batch=8, proximal=True))
    model.start(Rates(lr=0.1, proximal=0.5))


def test_a_budget_that_is_too_small(model):
    options = Options(batch=8)
    needed = model.plan(options).total
    with pytest.raises(NativeError, match=f"needs {needed} bytes, more than the budget"):
        model.prepare(replace(options, budget=needed - 1))
    model.prepare(replace(options, budget=needed))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (Options(batch=0), "images"),
        (Options(threads=0), "threads"),
        (Options(lanes=5), "5 lanes"),
        (Options(top_count=-1), "negative"),
    ],
)
def test_options_that_make_no_sense(model, options, words):
    with pytest.raises(NativeError, match=words):
        model.plan(options)


NETWORKS = {
    "larger than what it reads": lambda n: n.convolution("c", 0, 4, kernel=(9, 9)),
    "one logit a class": lambda n: n.linear("c", 0, 4),
    "a node before it": lambda n: n.relu(5),
    "different shapes": lambda n: n.add(0, n.convolution("c", 0, 2, kernel=(3, 3))),
    "at most half its kernel": lambda n: n.max_pool(0, (2, 2), (2, 2), (2, 2)),
    "the first node, and no other": lambda n: n.node(Kind.INPUT),
    "probability": lambda n: n.dropout(0, 1.5),
    "read by no other": lambda n: (n.relu(0), n.linear("c", n.flatten(0), 2)),
    "too many weights": lambda n: n.linear("c", n.flatten(0), 2**25),
    "among its groups": lambda n: n.convolution("c", 0, 4, groups=3),
    "no dilation": lambda n: n.node(Kind.MAX_POOL, 0, kernel=(2, 2), dilation=(2, 2)),
    "whole numbers": lambda n: n.node(Kind.UPSAMPLE, 0, size=(12, 16)),
    "another number of values": lambda n: n.node(Kind.RESHAPE, 0, channels=3, size=(8, 8)),
    "one value a channel": lambda n: n.node(Kind.MULTIPLY, 0, n.max_pool(0, (2, 2), (2, 2))),
    "of different sizes": lambda n: n.node(Kind.CONCAT, 0, n.max_pool(0, (2, 2), (2, 2))),
    "beyond what it reads": lambda n: n.node(Kind.SLICE, 0, start=1, channels=2),
    "order of its three axes": lambda n: n.node(Kind.PERMUTE, 0, order=(0, 0, 1)),
    "finite slope": lambda n: n.node(Kind.LEAKY_RELU, 0, slope=float("inf")),
    "none such": lambda n: n.linear("c", n.linear("c", 0, 4), 4),
}


@pytest.mark.parametrize("words", NETWORKS)
def test_networks_that_make_no_sense(words):
    net = Builder((2, 8, 8))
    NETWORKS[words](net)
    with pytest.raises(NativeError, match=words):
        NativeModel(net.unchecked)


def test_the_numbers_of_operations_are_those_of_the_header():
    """Kinds that the header does not name are not native."""
    header = (SOURCES / "fedtiny_native.h").read_text()
    named = re.findall(
        r"FEDTINY_(\w+) = (\d+)", header.partition("fedtiny_kind {")[2].split("}")[0]
    )
    assert {name: int(number) for name, number in named}.items() <= {
        kind.name: int(kind) for kind in Kind
    }.items()
    assert {kind.name for kind in NATIVE} <= {name for name, _ in named}


def test_one_value_a_channel_cannot_be_normalised():
    net = Builder((2, 1, 1))
    net.linear("fc", net.flatten(net.batch_norm("bn", 0)), 3)
    native = NativeModel(net.graph)
    native.prepare(Options(batch=2))
    with pytest.raises(NativeError, match="single value"):
        native.train(np.zeros((1, 2, 1, 1)), np.array([0]), update=False)


def test_without_a_library_the_error_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setenv(library.ENVIRONMENT, str(tmp_path / "none.so"))
    assert not library.available()
    library.library.cache_clear()
    with pytest.raises(NativeError, match="--device-backend torch"):
        library.library()
    monkeypatch.undo()
    library.library.cache_clear()
    assert library.library().instructions in ("sse2", "avx2", "avx512", "neon", "plain")


def test_the_library_is_used_without_torch():
    code = (
        "import sys, fedtiny.native.model, fedtiny.graph.ir\n"
        "fedtiny.native.library.library()\n"
        "print('torch' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("c++") is None, reason="needs a compiler")
@pytest.mark.timeout(900)
def test_fuzzed_calls_under_sanitizers(tmp_path):
    driver = fuzz.build_driver(tmp_path)
    run = subprocess.run([driver, "2000", "3"], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-3000:]


def test_without_a_compiler_the_build_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("CXX", str(tmp_path / "no-compiler"))
    with pytest.raises(CannotCompileError, match="cannot be run"):
        build(tmp_path / "library.so")
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CannotCompileError, match="no C\\+\\+ compiler"):
        build(tmp_path / "library.so")
    assert not list(tmp_path.iterdir())
