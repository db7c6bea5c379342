"""Exported models on bare Cortex-M cores that QEMU emulates: flash, RAM, stack, instructions.

Each is exported as a CMake project, compiled, and run on images; logits are compared with NumPy's,
those of int8 activations bit for bit. Flash and RAM are those of the model's object. Instructions
are counted by QEMU's -icount; they are no cycles.

    python benchmarks/board.py [--run DIR] [--images 20] [--only digits|resnet18|resnet8]
                               [--json PATH]

The digits are those of a run folder; without one, `fedtiny run --width 64 --density 0.01` makes it
under build/board. ResNet18 for 32 x 32 images is that of benchmarks/export.py at density 0.01, and
ResNet8 (MLPerf Tiny's) beside it is dense; both are untrained.
"""

import argparse
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from fedtiny import data
from fedtiny.export.c_int8 import Int8Source
from fedtiny.export.c_project import write_project
from fedtiny.export.c_source import Source
from fedtiny.export.calibration import quantized, samples
from fedtiny.export.integer_model import IntegerModel
from fedtiny.export.network import TinyModel
from fedtiny.export.numpy_model import NumpyModel
from fedtiny.export.packed import packed, unpacked
from fedtiny.export.quantize import quantize
from fedtiny.export.source import tiny_model

BOARDS = ("mps2-an386", "mps2-an500")
LEVELS = ("-O2", "-O3")
PACKAGES = {
    "cmake": "cmake",
    "make": "make",
    "arm-none-eabi-gcc": "gcc-arm-none-eabi",
    "qemu-system-arm": "qemu-system-arm",
}
"""Debian's, by the program; newlib is libnewlib-arm-none-eabi."""
INSTRUCTIONS_OF_A_TICK = 40  # of a nanosecond each, where ticks have 25 MHz
QEMU = (
    *("-display", "none", "-monitor", "none", "-serial", "none", "-icount", "shift=0"),
    *("-semihosting-config", "enable=on,target=native"),
)
TOLERANCE = 1e-4  # of the largest logit, for floats
PLACE = Path("build") / "board"


@dataclass(frozen=True)
class Sizes:
    """Bytes of a model's object: code and tables, and static buffers."""

    flash: int
    ram: int


@dataclass(frozen=True)
class Classified:
    """What a firmware printed."""

    logits: np.ndarray
    stack: int
    instructions: int
    """Of the sample that took the most."""


@dataclass(frozen=True)
class Row:
    """A line of the table."""

    model: str
    activations: str
    board: str
    level: str
    flash: int
    ram: int
    stack: int
    instructions: int
    multiply_adds: int
    agrees: bool


def missing() -> list[str]:
    """The Debian packages of what is not installed."""
    found = [package for tool, package in PACKAGES.items() if not shutil.which(tool)]
    return found if _has_newlib() else [*found, "libnewlib-arm-none-eabi"]


def _has_newlib() -> bool:
    if not shutil.which("arm-none-eabi-gcc"):
        return False
    order = ["arm-none-eabi-gcc", "-print-file-name=nano.specs"]
    return Path(subprocess.check_output(order, text=True).strip()).is_absolute()


def build(project: Path, board: str, level: str = "-O2", *more: str) -> Path:
    """Compile a CMake project for a board; gives the folder with firmware.elf."""
    place = project / "build" / f"{board}{level}"
    toolchain = ("-DCMAKE_TOOLCHAIN_FILE=cortex-m.cmake", f"-DBOARD={board}")
    _quiet(
        "cmake", "-B", place, "-S", project, *toolchain, f"-DCMAKE_C_FLAGS_RELEASE={level}", *more
    )
    _quiet("cmake", "--build", place)
    return place


def _quiet(*order: str | Path) -> str:
    done = subprocess.run(order, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, order))} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def sizes(place: Path, prefix: str = "model") -> Sizes:
    """Of the model's object in a build folder."""
    told = _quiet("arm-none-eabi-size", place / f"lib{prefix}.a")
    text, data_bytes, bss = map(int, told.splitlines()[1].split()[:3])
    return Sizes(text + data_bytes, data_bytes + bss)


def emulated(firmware: Path, board: str, given: bytes) -> tuple[str, str]:
    """The standard output and error output of a firmware."""
    order = ["qemu-system-arm", "-M", board, *QEMU, "-kernel", firmware]
    done = subprocess.run(order, input=given, capture_output=True, check=False, timeout=300)
    out, errors = done.stdout.decode(), done.stderr.decode()
    if done.returncode:
        raise RuntimeError(f"{firmware} on {board} ended with {done.returncode}: {out}{errors}")
    return out, errors


def classify(place: Path, board: str, images: np.ndarray) -> Classified:
    """Run a firmware on images."""
    out, errors = emulated(place / "firmware.elf", board, images.tobytes())
    logits = np.array([line.split("\t")[2:] for line in out.splitlines()], dtype=np.float32)
    used = np.array(re.findall(r"ticks (\d+) stack (\d+)", errors), dtype=np.int64)
    assert len(logits) == len(used) == len(images), out + errors
    ticks, stack = used.max(axis=0)
    return Classified(logits, int(stack), int(ticks) * INSTRUCTIONS_OF_A_TICK)


def measure(name: str, model: TinyModel, images: np.ndarray, folder: Path) -> Iterator[Row]:
    """Export a model with and without int8 activations, and run it on every board."""
    is_int8 = model.activations is not None
    activations = "int8" if is_int8 else "float32"
    project = folder / f"{name}_{activations}"
    source = Int8Source(model, "cortex-m", "model") if is_int8 else Source(model, "int8")
    write_project(source, project, "cmake")
    wanted = expected(model, images)
    for board in BOARDS:
        for level in LEVELS:
            place = build(project, board, level)
            found, size = classify(place, board, images), sizes(place)
            close = np.abs(found.logits - wanted).max() <= TOLERANCE * np.abs(wanted).max()
            same = np.array_equal(found.logits, wanted)
            yield Row(
                *(name, activations, board, level, size.flash, size.ram),
                *(found.stack, found.instructions, multiply_adds(model)),
                bool(same if is_int8 else close),
            )


def multiply_adds(model: TinyModel) -> int:
    """Of the kept weights, for an image."""
    graph, weights = model.net.graph, model.net.weights
    return sum(
        weights[node.name].values.size * rows * columns
        for node, (_, rows, columns) in zip(graph.nodes, graph.shapes, strict=True)
        if node.name in weights
    )


def expected(model: TinyModel, images: np.ndarray) -> np.ndarray:
    """NumPy's logits, by the integers or by float32 with the weights that C has."""
    if model.activations is not None:
        return IntegerModel(model)(images)
    return NumpyModel(unpacked(packed(model, "int8")))(images)


def digits(run: Path | None) -> tuple[TinyModel, TinyModel, np.ndarray]:
    """A trained model of the digits, its integers, and test images."""
    run = run or PLACE / "digits"
    if not (run / "model.packed").exists():
        order = [sys.executable, "-m", "fedtiny", "run", "--width", "64", "--density", "0.01"]
        subprocess.run([*order, "--out", run], check=True)
    model = tiny_model(run)
    integers, told = quantized(model, samples(run, None, model))
    print(told)
    return model, integers, data.load("digits").test.images


def random(name: str, width: int, density: float) -> tuple[TinyModel, TinyModel, np.ndarray]:
    """An untrained network for 32 x 32 images, its integers, and random images."""
    import export

    model = export.tiny_model(name, *export.sparse_network(name, width, density))
    images = np.random.default_rng(0).integers(0, 256, (32, *export.SHAPE), dtype=np.uint8)
    return model, quantize(model, images), images


MODELS = {
    "digits": digits,
    "resnet18": lambda _: random("resnet18", 64, 0.01),
    "resnet8": lambda _: random("resnet8", 16, 1.0),
}
HEADING = (
    *("model", "activations", "board", "level", "flash", "RAM", "stack"),
    *("million instructions", "a multiply-add", "NumPy"),
)


def line(row: Row) -> str:
    """A line of the table in Markdown."""
    numbers = (
        *(f"{row.flash / 1e3:.1f} kB", f"{row.ram / 1e3:.1f} kB", f"{row.stack} B"),
        *(f"{row.instructions / 1e6:.2f}", f"{row.instructions / row.multiply_adds:.2f}"),
    )
    agrees = ("same bits" if row.activations == "int8" else "close") if row.agrees else "DIFFERS"
    cells = (row.model, row.activations, row.board, row.level, *numbers, agrees)
    return f"| {' | '.join(cells)} |"


def tell(rows: Iterator[Row]) -> list[Row]:
    """Print rows as they come."""
    found = []
    for row in rows:
        print(line(row), flush=True)
        found.append(row)
    return found


def table(models: Sequence[str], run: Path | None, count: int) -> list[Row]:
    """Measure models, and print a table."""
    made = {name: MODELS[name](run) for name in models}
    print(f"| {' | '.join(HEADING)} |\n{'|---' * len(HEADING)}|")
    return [
        row
        for name, (floats, integers, images) in made.items()
        for model in (integers, floats)
        for row in tell(measure(name, model, images[:count], PLACE))
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", type=Path, help="a run folder of the digits")
    parser.add_argument("--images", type=int, default=20)
    parser.add_argument("--only", choices=tuple(MODELS))
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    if lacks := missing():
        sys.exit(f"this needs Debian's {', '.join(lacks)}: apt-get install {' '.join(lacks)}")
    models = [asked.only] if asked.only else [*MODELS]
    rows = table(models, asked.run, asked.images)
    if asked.json:
        asked.json.write_text(json.dumps([asdict(row) for row in rows], indent=2) + "\n")
    if wrong := [row for row in rows if not row.agrees]:
        sys.exit(f"{len(wrong)} firmwares give other logits than NumPy")


if __name__ == "__main__":
    main()
