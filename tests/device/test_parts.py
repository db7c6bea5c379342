"""Parts of fedtiny-device beside what they mirror: NumPy's draws, the wire's positions, JSON."""

import ctypes
import json
import subprocess
from ctypes import c_char_p, c_double, c_int64, c_void_p
from pathlib import Path

import numpy as np
import pytest

from fedtiny.errors import WireError
from fedtiny.federation.wire.indices import Reader, coded, read_positions
from fedtiny.native.compile import STRICT, compiler
from fedtiny.native.device_program import EXACT, SOURCES
from fedtiny.randomness import generator

from ..building import once

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(compiler() is None, reason="needs a C++ compiler"),
]
USED = ("bytes", "json", "json_view", "random", "model", "positions")


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    def make(target):
        sources = [Path(__file__).with_name("parts.cpp"), *(SOURCES / f"{n}.cpp" for n in USED)]
        flags = ["-std=c++17", "-O1", "-fPIC", "-shared", *STRICT, *EXACT, f"-I{SOURCES}"]
        subprocess.run([*compiler(), *flags, *sources, "-o", target], check=True)

    library = ctypes.CDLL(str(once(tmp_path_factory, "parts.so", make)))
    library.shuffled.argtypes = (c_int64, c_char_p, c_int64, c_int64, c_void_p, c_int64)
    library.drawn.argtypes = (*(c_int64,) * 4, *(c_void_p,) * 4)
    library.coded.argtypes = (c_void_p, c_int64, c_int64, c_void_p)
    library.decoded.argtypes = (c_char_p, c_int64, c_int64, c_void_p)
    library.coded.restype = library.decoded.restype = library.understood.restype = c_int64
    library.number_text.argtypes = (c_double, c_char_p)
    library.understood.argtypes = (c_char_p, c_int64, c_char_p, c_int64)
    return library


def test_permutations_are_numpys(parts):
    draw = np.random.default_rng(0)
    for number in range(2000):
        seed = int(draw.integers(2**63)) if number % 2 else number
        round, device = (int(draw.integers(2**31)) for _ in range(2))
        size = int(draw.integers(1, 300)) if number % 100 else 70_000
        values = draw.integers(0, 10**6, size)
        wanted = generator(seed, "permutation 1", round=round, device=device).permutation(values)
        parts.shuffled(seed, b"permutation 1", round, device, values.ctypes.data, size)
        assert np.array_equal(values, wanted)


def test_choices_and_numbers_are_numpys(parts):
    draw = np.random.default_rng(1)
    for number in range(2000):
        below = int(draw.integers(1, 400)) if number % 50 else int(draw.integers(10_001, 30_000))
        count = int(draw.integers(0, below + 1)) if number % 50 else int(draw.integers(100, 900))
        bound = int(draw.choice([1, 2, 9, 1000, 2**32 - 1, 2**32, 2**32 + 1, 2**61]))
        wanted = generator(number, "gradient batch", round=3, device=1)
        chosen, wholes = np.empty(count, np.int64), np.empty(count, np.int64)
        reals, last = np.empty(count), np.empty(1, np.uint64)
        places = (array.ctypes.data for array in (chosen, wholes, reals, last))
        parts.drawn(number, below, count, bound, *places)
        assert np.array_equal(chosen, wanted.choice(np.arange(below), count, replace=False))
        assert np.array_equal(wholes, wanted.integers(0, bound, size=count))
        assert np.array_equal(reals, wanted.random(count))
        assert last[0] == wanted.integers(2**63)


def test_positions_are_those_of_the_wire_format(parts):
    draw = np.random.default_rng(2)
    for number in range(1500):
        size = int(draw.integers(1, 3000)) if number % 30 else 200_000
        density = float(draw.choice([0, 0.001, 0.01, 0.1, 0.4, 0.9, 1]))
        places = np.flatnonzero(draw.random(size) < density).astype(np.int32)
        wanted = b"".join(coded(places, size))
        code = ctypes.create_string_buffer(size + 64)
        written = parts.coded(places.ctypes.data, len(places), size, ctypes.addressof(code))
        assert code.raw[:written] == wanted
        found = np.empty(size, np.int32)
        assert parts.decoded(wanted, len(wanted), size, found.ctypes.data) == len(places)
        assert np.array_equal(found[: len(places)], places)


def test_damaged_positions_are_refused_as_in_python(parts):
    draw, size, refused = np.random.default_rng(3), 500, 0
    for _ in range(5000):
        places = np.flatnonzero(draw.random(size) < draw.choice([0.02, 0.3])).astype(np.int32)
        code = bytearray(b"".join(coded(places, size)))
        code[int(draw.integers(min(len(code), 14)))] = int(draw.integers(256))
        found = np.empty(size, np.int32)
        count = parts.decoded(bytes(code), len(code), size, found.ctypes.data)
        reader = Reader(memoryview(bytes(code)))
        try:
            wanted = read_positions(reader, size)
            reader.finish()
        except WireError:
            assert count == -1
            refused += 1
            continue
        assert np.array_equal(found[:count], np.arange(size) if wanted is None else wanted)
    assert 1000 < refused < 5000


def test_numbers_are_written_as_python_writes_them(parts):
    draw = np.random.default_rng(4)
    values = draw.random(3000) * 10.0 ** draw.integers(-20, 25, 3000)
    odd = [0.0, -0.0, 1.0, 0.1, 1e16, 1e-5, 123456789.0, 5e-324, np.nan, np.inf, -np.inf]
    text = ctypes.create_string_buffer(64)
    for value in map(float, [*odd, *values]):
        parts.number_text(value, text)
        assert text.value.decode() == json.dumps(value)


def test_json_is_read_as_python_reads_it(parts):
    def understood(text):
        raw, room = text.encode("utf-8", "surrogatepass"), ctypes.create_string_buffer(4096)
        length = parts.understood(ctypes.create_string_buffer(raw), len(raw), room, 4096)
        return None if length < 0 else room.raw[:length].decode()

    assert understood('{"a b":[1,-2.5e3,true,null],"\\u00e9\\n":"x\\\\"}') == (
        "{<a b>[1,-2500.0,true,null,],<é\n><x\\>,]"
    )
    assert understood(" [ ] ") == "[]"
    assert understood('"\\ud83d\\ude00"') == "<😀>"
    assert understood("9223372036854775807") == "9223372036854775807"
    wrong = ("", "[", "[1,]", "{1:2}", '{"a"}', "01", "1.", "+1", "nul", '"', '"\\x"', "[1] 2")
    wrong += ("NaN", "Infinity", "9223372036854775808", "1e999", "[" * 50, '"\n"', "-")
    for text in wrong:
        assert understood(text) is None, text
