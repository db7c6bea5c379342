"""Exported models on emulated Cortex-M cores, and compiled for others; packages are Debian's."""

import importlib.util
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from fedtiny import data, models
from fedtiny.export.c_int8 import Int8Source, write_int8
from fedtiny.export.c_project import write_project
from fedtiny.export.c_source import Source, write_c
from fedtiny.export.integer_model import IntegerModel
from fedtiny.export.quantize import quantize

from .c_operations import FORMS, Branches
from .c_program import STRICT, run
from .nets import shipped, sparse, tiny_model
from .test_int8 import branches, samples

pytestmark = pytest.mark.slow
SCRIPT = Path(__file__).parents[2] / "benchmarks" / "board.py"
SPEC = importlib.util.spec_from_file_location("board_benchmark", SCRIPT)
board = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(board)
MISSING = board.missing()
needs_board = pytest.mark.skipif(bool(MISSING), reason=f"needs Debian's {', '.join(MISSING)}")

ARM = ("arm-none-eabi-gcc", "gcc-arm-none-eabi libnewlib-arm-none-eabi")
RISCV = ("riscv64-unknown-elf-gcc", "gcc-riscv64-unknown-elf picolibc-riscv64-unknown-elf")
AARCH64 = ("aarch64-linux-gnu-gcc", "g++-aarch64-linux-gnu")
CORES = {
    "M0+": (ARM, "-mcpu=cortex-m0plus -mthumb -mfloat-abi=soft"),
    "M4F": (ARM, "-mcpu=cortex-m4 -mthumb -mfpu=fpv4-sp-d16 -mfloat-abi=hard"),
    "M7": (ARM, "-mcpu=cortex-m7 -mthumb -mfpu=fpv5-d16 -mfloat-abi=hard"),
    "M55": (ARM, "-mcpu=cortex-m55 -mthumb -mfloat-abi=hard"),
    "RV32": (RISCV, "-march=rv32imac -mabi=ilp32 --specs=picolibc.specs"),
    "aarch64": (AARCH64, ""),
}
WITH_DSP = ("M4F", "M7", "M55")
BOTH = """#include "board.h"
#include "digits.h"
#include "letters.h"
#include <stdio.h>

static uint8_t image[DIGITS_CHANNELS * DIGITS_HEIGHT * DIGITS_WIDTH];

static void tell(float logit)
{
    char text[32];
    (void)snprintf(text, sizeof text, "\\t%.9g", (double)logit);
    board_write(text);
}

int classify_all(void)
{
    static float first[DIGITS_CLASSES], second[LETTERS_CLASSES];
    while (board_read(image, sizeof image) == sizeof image) {
        (void)digits_run(image, first);
        (void)letters_run(image, second);
        for (int i = 0; i < DIGITS_CLASSES; ++i)
            tell(first[i]);
        for (int i = 0; i < LETTERS_CLASSES; ++i)
            tell(second[i]);
        board_write("\\n");
    }
    return 0;
}
"""


def banded():
    """Residual blocks and a stride, whose first layers are computed by bands of rows."""
    shape = (3, 32, 32)
    return tiny_model(sparse(models.build("resnet8", shape, 10), shape, 0.3))


@pytest.fixture(scope="module")
def images():
    return data.load("digits").test.images


@needs_board
def test_a_model_of_digits_on_two_boards(images, tmp_path, capsys):
    model = tiny_model(shipped("small", 0.3))
    made = quantize(model, images[:64])
    rows = [
        row
        for each in (made, model)
        for row in board.tell(board.measure("digits", each, images[:20], tmp_path))
    ]
    assert all(row.agrees for row in rows)
    assert capsys.readouterr().out.count("same bits") == 4
    assert {row.board for row in rows} == set(board.BOARDS)
    integers, floats = rows[0], rows[4]
    assert integers.ram < 0.4 * floats.ram
    assert 10_000 < integers.flash < 25_000
    assert 0 < integers.stack < 1000
    assert 100_000 < integers.instructions < floats.instructions < 3_000_000


@needs_board
@pytest.mark.parametrize("kind", ["operations", "dense", "bands"])
def test_the_integers_of_numpy_on_a_board(kind, tmp_path):
    """Every operation, complete 3 x 3 kernels by the core's own instructions, bands."""
    models_of = {
        "operations": lambda: branches(0),
        "dense": lambda: tiny_model(shipped("small", 1.0)),
        "bands": banded,
    }
    model = models_of[kind]()
    images = samples(model, 12)
    made = quantize(model, images)
    source = Int8Source(made, "cortex-m", "model")
    assert bool(source.plan.bands) == (kind == "bands")
    write_project(source, tmp_path, "cmake")
    found = board.classify(board.build(tmp_path, "mps2-an386"), "mps2-an386", images)
    np.testing.assert_array_equal(found.logits, IntegerModel(made)(images))


@pytest.mark.skipif(not shutil.which("cmake"), reason="needs Debian's cmake")
def test_the_project_is_built_for_a_desktop(images, tmp_path):
    made = quantize(tiny_model(shipped("small", 0.3)), images[:64])
    write_project(Int8Source(made, "cortex-m", "digits"), tmp_path, "cmake")
    place = tmp_path / "build"
    for order in (["-S", tmp_path, "-B", place], ["--build", place]):
        subprocess.run(["cmake", *order], check=True, capture_output=True)
    _, _, logits = run(place / "firmware", images[:10])
    np.testing.assert_array_equal(logits, IntegerModel(made)(images[:10]))


@needs_board
def test_two_models_in_one_firmware(images, tmp_path):
    first, second = (tiny_model(shipped("small", 0.3, seed)) for seed in (0, 1))
    made = quantize(first, images[:64])
    write_c(second, tmp_path, prefix="letters")
    (tmp_path / "main.c").unlink()
    write_project(Int8Source(made, "cortex-m", "digits"), tmp_path, "cmake")
    (tmp_path / "classify.c").write_text(BOTH)
    with (tmp_path / "CMakeLists.txt").open("a") as build:
        build.write("target_sources(firmware PRIVATE letters.c)\n")
    place = board.build(tmp_path, "mps2-an386")
    out, _ = board.emulated(place / "firmware.elf", "mps2-an386", images[:10].tobytes())
    logits = np.array([line.split("\t")[1:] for line in out.splitlines()], dtype=np.float32)
    np.testing.assert_array_equal(logits[:, :10], IntegerModel(made)(images[:10]))
    wanted = board.expected(second, images[:10])
    np.testing.assert_allclose(logits[:, 10:], wanted, rtol=0, atol=1e-4 * np.abs(wanted).max())


@needs_board
@pytest.mark.parametrize("bands", [False, True])
def test_a_profile_adds_up_to_the_run(bands, tmp_path):
    model = banded() if bands else tiny_model(shipped("small", 0.3))
    images = samples(model, 8)
    source = Int8Source(quantize(model, images), "cortex-m", "digits")
    assert bool(source.plan.bands) == bands
    write_project(source, tmp_path, "cmake")
    place = board.build(tmp_path, "mps2-an386", "-O2", "-DPROFILE=ON")
    out, errors = board.emulated(place / "firmware.elf", "mps2-an386", images[:1].tobytes())
    ticks = {line[11:]: int(line[:10]) for line in out.splitlines()[1:]}
    whole = int(errors.split()[1])
    assert 0.9 * whole < sum(ticks.values()) <= whole
    assert max(ticks, key=ticks.get).startswith("convolve")


@needs_board
def test_a_sample_that_is_cut_short_ends_in_an_error(images, tmp_path):
    write_project(Source(tiny_model(shipped("small", 0.3)), "int8"), tmp_path, "cmake")
    place = board.build(tmp_path, "mps2-an386")
    with pytest.raises(RuntimeError, match="ended with 1"):
        board.emulated(place / "firmware.elf", "mps2-an386", images[:2].tobytes()[:-1])


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """Every operation, in floats and integers, and the start of a bare board."""
    folder = tmp_path_factory.mktemp("sources")
    model = branches(0)
    made = quantize(model, samples(model, 12))
    for target in ("generic", "cortex-m", "cortex-m-dsp"):
        write_int8(made, folder / target, target=target)
    dense = tiny_model(shipped("small", 1.0))
    write_int8(quantize(dense, samples(dense, 8)), folder / "dense", target="cortex-m")
    everything = Branches(1, (3, 6, 6))
    everything.ends += [form(everything) for form in FORMS.values()]
    for values in ("int8", "fp32"):
        write_c(everything.model(), folder / values, values=values)
    write_project(Source(model, "int8"), folder / "cmake", "cmake")
    by_rows = banded()
    write_c(by_rows, folder / "bands")
    write_int8(quantize(by_rows, samples(by_rows, 8)), folder / "int8_bands", target="cortex-m")
    return folder


@pytest.mark.parametrize("core", CORES)
def test_no_warning_for_a_core(core, sources, tmp_path):
    (compiler, packages), flags = CORES[core]
    if not shutil.which(compiler):
        pytest.skip(f"needs Debian's {packages}")
    names = ("generic", "cortex-m", "dense", "int8", "fp32", "bands", "int8_bands")
    files = [sources / name / "model.c" for name in names]
    assert all("open_band" in file.read_text() for file in files[-2:])
    files += [sources / "cmake" / "classify.c"]
    files += [sources / "cmake" / "cortex_m.c"] if compiler == ARM[0] else []
    order = [compiler, *flags.split(), "-include", "math.h", "-E", "-x", "c", "/dev/null"]
    if subprocess.run(order, capture_output=True, check=False).returncode:
        pytest.skip(f"has {compiler} but no library: needs Debian's {packages}")
    files += [sources / "cortex-m-dsp" / "model.c"] if core in WITH_DSP else []
    for number, file in enumerate(files):
        order = [compiler, *flags.split(), *STRICT, "-Os", "-c", file, "-o", f"{number}.o"]
        done = subprocess.run(order, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert not done.returncode, done.stderr[:2000]


@pytest.mark.skipif(not shutil.which(ARM[0]), reason=f"needs Debian's {ARM[1]}")
def test_code_for_the_extension_refuses_a_core_without_it(sources, tmp_path):
    _, flags = CORES["M0+"]
    order = [ARM[0], *flags.split(), "-c", sources / "cortex-m-dsp" / "model.c", "-o", "model.o"]
    done = subprocess.run(order, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode
    assert "export with --target cortex-m" in done.stderr
