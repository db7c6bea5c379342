"""The library for devices without threads, without Python and with little memory."""

import shutil
import subprocess
import sys

import numpy as np
import pytest

from fedtiny.native import library, model
from fedtiny.native.compile import SOURCES, compiler
from fedtiny.native.device_program import LIBRARY
from fedtiny.native.library import Library, NativeError, Options, Rates
from fedtiny.native.model import NativeModel

from .. import building
from ..graph.building import Builder
from .programs import linked, output
from .twins import batch, random_mask


def test_the_header_is_c(tmp_path):
    if not shutil.which("cc"):
        pytest.skip("needs a C compiler")
    source = tmp_path / "device.c"
    source.write_text('#include "fedtiny_native.h"\nint main(void) { return 0; }\n')
    flags = ["-std=c99", "-pedantic", "-Wall", "-Wextra", "-Wconversion", "-Werror"]
    subprocess.run(["cc", *flags, "-fsyntax-only", f"-I{SOURCES}", source], check=True)


@pytest.mark.skipif(compiler() is None or not library.available(), reason="needs a C++ compiler")
def test_no_allocation_that_fails_gets_past_the_interface(tmp_path):
    program = linked("out_of_memory", library.path(), tmp_path)
    for threads in (1, 2):
        assert int(output([program, threads]).split()[0]) > 100


@pytest.mark.skipif(sys.platform != "linux", reason="memory is watched by Linux's calls")
@pytest.mark.skipif(compiler() is None or not library.available(), reason="needs a C++ compiler")
def test_a_batch_smaller_than_planned_stays_within_its_memory(tmp_path):
    program = linked("small_batch", library.path(), tmp_path)
    assert output([program]) == "29 batches in 1 block\n"


def trained(native, monkeypatch):
    """The tensors of a small network after a few steps, in this library."""
    monkeypatch.setattr(model, "library", lambda: native)
    net = Builder((2, 9, 9))
    window = {"kernel": (3, 3), "padding": (1, 1)}
    z = net.relu(net.batch_norm("bn", net.convolution("conv", 0, 12, **window)))
    z = net.convolution("depthwise", z, 12, stride=(2, 2), groups=12, **window)
    net.linear("fc", net.flatten(net.adaptive_pool(z, (1, 1))), 5)
    rng = np.random.default_rng(3)
    small = NativeModel(net.graph)
    kept = {name: random_mask(small.size(name), 0.3, rng) for name in ("conv.weight", "fc.weight")}
    small.prepare(Options(batch=20), kept)
    for name in small.tensors:
        count = len(kept[name]) if name in kept else small.size(name)
        small.set(name, np.abs(rng.standard_normal(count)).astype(np.float32))
    small.start(Rates(1e-2))
    for seed in range(4):
        small.train(*batch(rng, 20, (2, 9, 9), 5), seed=seed)
    return {name: small.get(name) for name in small.tensors}


@pytest.mark.slow
@pytest.mark.skipif(compiler() is None or not library.available(), reason="needs a C++ compiler")
def test_one_thread_gives_the_same_bits(tmp_path_factory, tmp_path, monkeypatch):
    static = building.parts(tmp_path_factory) / LIBRARY
    whole = ("-shared", "-Wl,--whole-archive", static, "-Wl,--no-whole-archive")
    subprocess.run([*compiler(), *whole, "-o", tmp_path / "single.so"], check=True)
    single = Library(tmp_path / "single.so")
    expected = trained(library.library(), monkeypatch)
    found = trained(single, monkeypatch)
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values)
    net = Builder((1, 1, 1))
    net.linear("fc", net.flatten(0), 2)
    with pytest.raises(NativeError, match="threads must be from 1 to 1"):
        NativeModel(net.graph).plan(Options(threads=2))
