"""Exported models on bare Cortex-M cores that QEMU emulates: flash, RAM, stack, instructions.

Each is exported as a CMake project, compiled, and run on images; logits are compared with NumPy's,
those of int8 activations bit for bit. Flash and RAM are those of the model's object. Instructions
are counted by QEMU's -icount; they are no cycles. What takes more than it may fails.

    python benchmarks/board.py [--run DIR] [--data ROOT] [--images 4] [--only NAME]
                               [--bands off] [--json benchmarks/results/board.json]

The digits are those of a run folder; without one, `fedtiny run --width 64 --density 0.01` makes it
under build/board. The others are the packed files of benchmarks/models, trained on CIFAR-10, whose
accuracy is measured where --data has its test images: on all of them, by the same C code compiled
for this computer, which gives the bits of NumPy.
"""

import argparse
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from fedtiny import data
from fedtiny.data import ImageSet
from fedtiny.export.c_int8 import Int8Source, write_int8
from fedtiny.export.c_project import write_project
from fedtiny.export.c_source import Source
from fedtiny.export.calibration import quantized, samples
from fedtiny.export.integer_model import IntegerModel
from fedtiny.export.network import TinyModel
from fedtiny.export.numpy_model import NumpyModel
from fedtiny.export.packed import packed, shipped, unpacked
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
MODELS = Path(__file__).parent / "models"
MANY = 200  # images that one firmware of each int8 model classifies
LIMITS = {
    "digits": {"instructions": 4_000_000},
    "resnet18": {"flash": 300_000, "ram": 170_000, "instructions": 30_000_000},
}
"""Most of a firmware with int8 activations, on the first of the boards."""


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
    images: int
    """Whose logits were compared."""
    agrees: bool
    accuracy: float | None = None
    """On the test images, where they are there."""
    float_accuracy: float | None = None
    """Of the run, whose weights and activations are float32."""

    @property
    def excess(self) -> list[str]:
        """What it takes more of than it may."""
        judged = self.activations == "int8" and self.board == BOARDS[0]
        most = LIMITS.get(self.model, {}) if judged else {}
        return [key for key, limit in most.items() if getattr(self, key) > limit]


@dataclass(frozen=True, eq=False)
class Subject:
    """A model that is measured, by its name."""

    name: str
    floats: TinyModel
    integers: TinyModel
    test: ImageSet
    is_real: bool = True
    """Whether the images are those of its test set."""


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


def measure(
    name: str,
    model: TinyModel,
    images: np.ndarray,
    folder: Path,
    few: int | None = None,
    *,
    bands: bool = True,
) -> Iterator[Row]:
    """Export a model and run it on every board; all firmwares but the first on `few` images."""
    is_int8 = model.activations is not None
    activations = "int8" if is_int8 else "float32"
    project = folder / f"{name}_{activations}"
    source = (
        Int8Source(model, "cortex-m", "model", bands=bands)
        if is_int8
        else Source(model, "int8", bands=bands)
    )
    write_project(source, project, "cmake")
    wanted = expected(model, images)
    for board in BOARDS:
        for level in LEVELS:
            given = images if (board, level) == (BOARDS[0], LEVELS[0]) else images[:few]
            place = build(project, board, level)
            found, size = classify(place, board, given), sizes(place)
            away = np.abs(found.logits - wanted[: len(given)]).max()
            agrees = away == 0 if is_int8 else away <= TOLERANCE * np.abs(wanted).max()
            yield Row(
                *(name, activations, board, level, size.flash, size.ram, found.stack),
                *(found.instructions, multiply_adds(model), len(given), bool(agrees)),
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


def digits(run: Path | None) -> Subject:
    """A trained model of the digits."""
    run = run or PLACE / "digits"
    if not (run / "model.packed").exists():
        order = [sys.executable, "-m", "fedtiny", "run", "--width", "64", "--density", "0.01"]
        subprocess.run([*order, "--out", run], check=True)
    model = tiny_model(run)
    integers, told = quantized(model, samples(run, None, model))
    print(told)
    return Subject("digits", model, integers, data.load("digits").test)


def trained(name: str, root: Path | None) -> Subject:
    """A packed model of this folder; on noise where its data are not there."""
    model = shipped(MODELS / f"{name}.packed")
    floats = replace(model, activations=None)
    if root is not None:
        return Subject(name, floats, model, data.load(model.card["data"], root).test)
    noise = np.random.default_rng(0).integers(0, 256, (MANY, *model.shape), dtype=np.uint8)
    test = ImageSet(noise, np.zeros(MANY, np.int64), model.classes)
    return Subject(name, floats, model, test, is_real=False)


def accuracy(subject: Subject, folder: Path) -> float | None:
    """Of the integers, by C that is compiled for this computer."""
    if not subject.is_real:
        return None
    write_int8(subject.integers, folder)
    program = folder / "program"
    _quiet("cc", "-std=c99", "-O3", folder / "model.c", folder / "main.c", "-o", program)
    images, labels = subject.test.images, subject.test.labels
    out = subprocess.run([program], input=images.tobytes(), capture_output=True, check=True).stdout
    found = [int(line.split(b"\t")[0]) for line in out.splitlines()]
    return float((np.array(found) == labels).mean())


HEADING = (
    *("model", "activations", "board", "level", "flash", "RAM", "stack"),
    *("million instructions", "a multiply-add", "NumPy", "accuracy", "float accuracy"),
)


def line(row: Row) -> str:
    """A line of the table in Markdown."""
    numbers = (
        *(f"{row.flash / 1e3:.1f} kB", f"{row.ram / 1e3:.1f} kB", f"{row.stack} B"),
        *(f"{row.instructions / 1e6:.2f}", f"{row.instructions / row.multiply_adds:.2f}"),
    )
    agrees = ("same bits" if row.activations == "int8" else "close") if row.agrees else "DIFFERS"
    found = ("" if each is None else f"{each:.4f}" for each in (row.accuracy, row.float_accuracy))
    told = (f"{agrees}, {row.images} images", *found)
    return f"| {' | '.join((row.model, row.activations, row.board, row.level, *numbers, *told))} |"


def tell(rows: Iterable[Row]) -> list[Row]:
    """Print rows as they come."""
    found = []
    for row in rows:
        print(line(row), flush=True)
        found.append(row)
    return found


def rows_of(subject: Subject, count: int, *, bands: bool) -> Iterator[Row]:
    """Both forms of a model on every board."""
    measured = accuracy(subject, PLACE / f"{subject.name}_host")
    name, images = subject.name, subject.test.images
    many = images[: max(MANY, count)]
    for row in measure(name, subject.integers, many, PLACE, count, bands=bands):
        yield replace(row, accuracy=measured, float_accuracy=subject.integers.card["run_accuracy"])
    yield from measure(name, subject.floats, images[:count], PLACE, bands=bands)


def names() -> list[str]:
    """The models that there are."""
    return ["digits", *sorted(file.stem for file in MODELS.glob("*.packed"))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", type=Path, help="a run folder of the digits")
    parser.add_argument("--data", type=Path, help="the folder of data sets")
    parser.add_argument("--images", type=int, default=4)
    parser.add_argument("--only", choices=names())
    parser.add_argument("--bands", choices=("auto", "off"), default="auto")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    if lacks := missing():
        sys.exit(f"this needs Debian's {', '.join(lacks)}: apt-get install {' '.join(lacks)}")
    print(f"| {' | '.join(HEADING)} |\n{'|---' * len(HEADING)}|")
    rows = []
    for name in [asked.only] if asked.only else names():
        subject = digits(asked.run) if name == "digits" else trained(name, asked.data)
        rows += tell(rows_of(subject, asked.images, bands=asked.bands == "auto"))
    if asked.json:
        asked.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    if wrong := [row for row in rows if not row.agrees]:
        sys.exit(f"{len(wrong)} firmwares give other logits than NumPy")
    if large := [
        f"{row.model} at {row.level}: {', '.join(row.excess)}" for row in rows if row.excess
    ]:
        sys.exit(f"more than they may take: {'; '.join(large)}")


if __name__ == "__main__":
    main()
