"""Projects for boards: the files of each, and the same classes on a desktop as from NumPy."""

import subprocess
from importlib.resources import files

import numpy as np
import pytest

from fedtiny import models
from fedtiny.errors import ExportError
from fedtiny.export.c_int8 import Int8Source
from fedtiny.export.c_project import CODE, FILES, SHARED, write_project
from fedtiny.export.c_source import Source
from fedtiny.export.integer_model import IntegerModel
from fedtiny.export.numpy_model import NumpyModel
from fedtiny.export.quantize import quantize

from .c_program import COMPILERS, STRICT, compiled, needs_compiler, run
from .nets import measured, shipped, tiny_model

HEADERS = {
    "Arduino.h": """
        #include <stddef.h>
        struct Port {
            void begin(unsigned long);
            size_t readBytes(char *, size_t);
            void print(const char *);
            void println(unsigned long);
        };
        extern Port Serial;
        unsigned long micros();
        void setup();
        void loop();
    """,
    "zephyr/device.h": """
        struct device { int number; };
        extern const struct device board_console;
        #define DT_CHOSEN(name) 0
        #define DEVICE_DT_GET(node) (&board_console)
    """,
    "zephyr/drivers/uart.h": """
        int uart_poll_in(const struct device *, unsigned char *);
        void uart_poll_out(const struct device *, unsigned char);
    """,
    "zephyr/kernel.h": """
        #include <stdint.h>
        uint32_t k_cycle_get_32(void);
    """,
}
"""What the templates use of frameworks that are not here, as these declare it."""


@pytest.fixture(scope="module")
def model():
    return tiny_model(shipped("small", 0.3))


@pytest.fixture(scope="module")
def images(model):
    return np.random.default_rng(0).integers(0, 256, (20, *model.shape)).astype(np.uint8)


def test_every_template_is_written_and_none_lies_idle():
    folder = files("fedtiny.export").joinpath("boards")
    for project, names in FILES.items():
        assert {entry.name for entry in folder.joinpath(project).iterdir()} == set(names) - set(
            SHARED
        )
    assert {entry.name for entry in folder.joinpath("shared").iterdir()} == set(SHARED)


@pytest.mark.parametrize("project", FILES)
def test_a_project_has_the_model_and_its_files(project, model, tmp_path):
    report = write_project(Source(model, "int8", "digits"), tmp_path, project)
    inside = "" if project == "cmake" else "src/"
    assert {str(path.relative_to(tmp_path)) for path in report.files} == {
        *(f"{inside}digits.c", f"{inside}digits.h"),
        *(f"{inside}{name}" if name.endswith(CODE) else name for name in FILES[project]),
    }
    told = (tmp_path / "README.md").read_text()
    assert "`digits.c`" in told or "`src/digits.c`" in told
    assert "1 plane of 8 x 8 bytes" in told
    assert ("This is a template" in told) == (project != "cmake")
    assert not any("$prefix" in path.read_text() for path in report.files)


@needs_compiler
@pytest.mark.parametrize("project", ["cmake", "platformio"])
def test_on_a_desktop_it_classifies_as_numpy_does(project, model, images, tmp_path):
    made = quantize(model, images)
    write_project(Int8Source(made, "cortex-m", "digits"), tmp_path, project)
    folder = tmp_path if project == "cmake" else tmp_path / "src"
    program = compiled(folder, sources=("digits.c", "classify.c", "desktop.c"))
    classes, _, logits = run(program, images)
    np.testing.assert_array_equal(logits, IntegerModel(made)(images))
    np.testing.assert_array_equal(classes, logits.argmax(axis=1))
    cut = subprocess.run([program], input=images.tobytes()[:-1], capture_output=True, check=False)
    *lines, last = cut.stdout.splitlines()
    assert (cut.returncode, len(lines), last) == (1, 19, b"the last sample is cut short")


@needs_compiler
@pytest.mark.parametrize("activations", ["float32", "int8"])
def test_a_profile_has_every_step(activations, model, images, tmp_path):
    int8 = activations == "int8"
    made = quantize(model, images) if int8 else model
    source = Int8Source(made, "generic", "digits") if int8 else Source(model, "int8", "digits")
    write_project(source, tmp_path, "cmake")
    files = ("digits.c", "classify.c", "desktop.c")
    plain = _printed(compiled(tmp_path, sources=files), images[:1])
    result, *steps = _printed(
        compiled(tmp_path, "-O2", "-DDIGITS_PROFILE", sources=files), images[:1]
    )
    assert [result] == plain
    names = [line[11:] for line in steps]
    assert names[0] == "load"
    assert names[-1] == ("connect 13" if int8 else "logits")
    assert [name for name in names if name.startswith("convolve")] == [
        *("convolve 0", "convolve 4", "convolve 8"),
    ]
    assert all(int(line[:10]) >= 0 for line in steps)
    assert f"#define DIGITS_STEPS {len(steps)}\n" in (tmp_path / "digits.h").read_text()


def _printed(program, images):
    done = subprocess.run([program], input=images.tobytes(), capture_output=True, check=True)
    return done.stdout.decode().splitlines()


@needs_compiler
def test_sensors_are_read_as_floats(tmp_path):
    shape = (6, 64)
    model = tiny_model(measured(models.build("cnn1d", shape, 10, width=8), shape, 0.3))
    write_project(Source(model, "fp32"), tmp_path, "cmake")
    values = np.random.default_rng(0).standard_normal((5, *model.shape)).astype(np.float32)
    program = compiled(tmp_path, sources=("model.c", "classify.c", "desktop.c"))
    _, _, logits = run(program, values, "raw")
    np.testing.assert_allclose(logits, NumpyModel(model)(values), rtol=1e-3, atol=1e-4)
    assert "6 rows of 64 float32 values" in (tmp_path / "README.md").read_text()


@needs_compiler
@pytest.mark.parametrize(
    ("project", "file"), [("platformio", "arduino.cpp"), ("zephyr", "zephyr.c")]
)
def test_templates_are_without_a_warning(project, file, model, tmp_path):
    write_project(Source(model, "int8"), tmp_path, project)
    for name, text in HEADERS.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    strict = STRICT[1:] if file.endswith(".cpp") else STRICT
    order = [COMPILERS[0], *strict, "-I.", "-c", f"src/{file}", "-o", "file.o"]
    done = subprocess.run(order, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr


def test_weights_that_c_has_not_are_refused(model):
    with pytest.raises(ExportError, match="int8 or fp32, not as fp16"):
        Source(model, "fp16")
