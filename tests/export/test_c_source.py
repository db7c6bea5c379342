"""What the generated files say of themselves, and what is refused."""

import re
import shlex
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedtiny.data.transforms import Preparation
from fedtiny.errors import ExportError
from fedtiny.export.c_source import write_c
from fedtiny.export.network import TinyModel
from fedtiny.graph.arrays import Lowered, Weights

from ..graph.building import Builder
from .c_program import COMPILERS, compiled, needs_compiler, run
from .nets import shipped, tiny_model

DOCS = Path(__file__).parents[2] / "docs" / "microcontroller.md"
HOSTILE = ('a "b" \\', "c*/d??/", "é\n", "%s%n", "", *"fghij")


@pytest.fixture
def model():
    return tiny_model(shipped("small", 0.1))


@needs_compiler
@pytest.mark.parametrize("values", ["int8", "fp32"])
def test_sizes_are_those_of_the_compiled_object(model, values, tmp_path):
    report = write_c(model, tmp_path, values=values)
    flags = [COMPILERS[0], "-std=c99", "-Os", "-fno-pie", "-c", "model.c"]
    subprocess.run(flags, cwd=tmp_path, check=True)
    told = subprocess.check_output(["size", "model.o"], cwd=tmp_path, text=True)
    text, data, bss = map(int, told.splitlines()[1].split()[:3])
    assert 0 <= text - report.flash_bytes < 6000  # code and the records that name the tables
    assert data == 0
    assert 0 <= bss - report.ram_bytes < 64


def test_the_header_tells_sizes_and_shape(model, tmp_path):
    report = write_c(model, tmp_path)
    told = dict(re.findall(r"#define MODEL_(\w+) (\d+)", (tmp_path / "model.h").read_text()))
    assert told == {
        **{"CHANNELS": "1", "HEIGHT": "8", "WIDTH": "8", "CLASSES": "10"},
        "STEPS": "9",  # of a profile
        **{"TABLE_BYTES": str(report.flash_bytes), "RAM_BYTES": str(report.ram_bytes)},
    }
    assert [path.name for path in report.files] == ["model.c", "model.h", "main.c"]


def test_int8_is_the_smaller_and_the_same_model_gives_the_same_text(model, tmp_path):
    small = write_c(model, tmp_path / "int8")
    assert small.flash_bytes < write_c(model, tmp_path / "fp32", values="fp32").flash_bytes
    first = (tmp_path / "int8" / "model.c").read_bytes()
    write_c(model, tmp_path / "int8")
    assert (tmp_path / "int8" / "model.c").read_bytes() == first


def test_nothing_is_allocated(model, tmp_path):
    write_c(model, tmp_path)
    source = (tmp_path / "model.c").read_text()
    assert set(re.findall(r"#include (\S+)", source)) == {
        *('"model.h"', "<math.h>", "<stddef.h>", "<string.h>")
    }
    assert not re.search(r"malloc|calloc|free\(|printf", source)


@needs_compiler
def test_names_and_the_card_may_be_anything(model, tmp_path):
    card = {"method": "fedtiny */ int x; /*", "note": "???/", "config": {"a": "é\n#error"}}
    write_c(replace(model, classes=HOSTILE, card=card), tmp_path)
    program = compiled(tmp_path)
    done = subprocess.run([program], input=b"\0" * 64, capture_output=True, check=True)
    number, rest = done.stdout.decode().split("\t", 1)
    assert rest.startswith(HOSTILE[int(number)] + "\t")
    source = (tmp_path / "model.c").read_text()
    names = source[source.index("model_class_names") :]
    assert r'"a \"b\" \\"' in names
    assert r'"c*/d\?\?/"' in names
    assert r'"\303\251\012"' in names


@pytest.mark.skipif(not shutil.which("g++"), reason="needs a C++ compiler")
def test_the_header_is_cplusplus_too(model, tmp_path):
    write_c(model, tmp_path)
    (tmp_path / "user.cpp").write_text(
        '#include "model.h"\nint f(const uint8_t *i, float *l) { return model_run(i, l); }\n'
    )
    command = ["g++", "-Wall", "-Wextra", "-Werror", "-c", "user.cpp"]
    assert not subprocess.run(command, cwd=tmp_path, check=False).returncode


@needs_compiler
def test_the_program_tells_sizes_and_refuses_half_an_image(model, tmp_path):
    report = write_c(model, tmp_path)
    program = compiled(tmp_path)
    done = subprocess.run([program], input=b"\0" * 100, capture_output=True, check=False)
    assert done.returncode == 1
    assert len(done.stdout.splitlines()) == 1
    told = done.stderr.decode()
    assert f"tables: {report.flash_bytes} bytes of flash" in told
    assert f"buffers: {report.ram_bytes} bytes of RAM" in told
    assert "the last sample has 36 bytes instead of 64" in told
    done = subprocess.run([program, "--help"], capture_output=True, check=False)
    assert done.returncode == 2


@needs_compiler
def test_the_firmware_of_the_docs_compiles_and_runs(model, tmp_path):
    write_c(model, tmp_path)
    (example,) = re.findall(r"```c\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    board = (
        "#include <stdint.h>\n#include <stdio.h>\n"
        "void camera_read(uint8_t *to) { for (int i = 0; i < 64; ++i) to[i] = (uint8_t)(3 * i); }\n"
        'void show(const char *name) { printf("%s\\n", name); }\n'
        "void tick(void);\nint main(void) { tick(); return 0; }\n"
    )
    (tmp_path / "firmware.c").write_text(example)
    (tmp_path / "board.c").write_text(board)
    firmware = compiled(tmp_path, sources=("model.c", "firmware.c", "board.c"))
    shown = subprocess.run([firmware], capture_output=True, text=True, check=True).stdout.strip()
    image = np.arange(0, 192, 3, dtype=np.uint8).reshape(1, 1, 8, 8)
    _, names, _ = run(compiled(tmp_path), image)
    assert shown == names[0]


@pytest.mark.skipif(not shutil.which("cc"), reason="needs a C compiler")
def test_the_files_tell_the_command_of_the_docs(model, tmp_path):
    write_c(model, tmp_path)
    (command,) = re.findall(r"^cc .*$", DOCS.read_text(encoding="utf-8"), re.MULTILINE)
    command = command.replace("model_c/", "")
    assert f"compile: {command}" in (tmp_path / "model.h").read_text()
    subprocess.run(shlex.split(command), cwd=tmp_path, check=True)
    classes, _, _ = run(tmp_path / "model", np.zeros((2, 1, 8, 8), dtype=np.uint8))
    assert len(classes) == 2


def test_what_cannot_be_written_is_refused(model, tmp_path):
    with pytest.raises(ExportError, match="int8 or fp32, not as fp16"):
        write_c(model, tmp_path / "a", values="fp16")
    with pytest.raises(ExportError, match="3 classes"):
        write_c(replace(model, classes=("a", "b", "c")), tmp_path / "a")
    assert not (tmp_path / "a").exists()


@needs_compiler
@pytest.mark.parametrize("level", ["-O0", "-O1", "-O2", "-O3", "-Os"])
def test_no_compiler_fears_for_the_smallest_network(level, tmp_path):
    net = Builder((1, 1, 1))
    net.linear("head", net.flatten(net.convolution("conv", 0, 1, kernel=(1, 1))), 2, bias=False)
    held = {
        "conv": Weights((1, 1, 1, 1), None, np.ones(1, np.float32), None),
        "head": Weights((2, 1), np.array([1]), np.ones(1, np.float32), None),
    }
    model = TinyModel(Lowered(net.graph, held, {}), Preparation((0.0,), (1.0,)), ("a", "b"), {})
    write_c(model, tmp_path)
    classes, _, logits = run(compiled(tmp_path, level), np.full((1, 1, 1, 1), 3, np.float32))
    assert classes.tolist() == [1]
    np.testing.assert_allclose(logits, [[0, 3]], rtol=1e-6)
