"""Writing a model in the format that was asked for, and how large it is in every one."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import tyro

from fedtiny.errors import ExportError, FedTinyError, did_you_mean
from fedtiny.export import c_runtime, packed
from fedtiny.export.c_int8 import Int8Source, int8_flash_bytes
from fedtiny.export.c_int8_runtime import Target
from fedtiny.export.c_project import Project, write_project
from fedtiny.export.c_source import CReport, Source, flash_bytes, write_source
from fedtiny.export.calibration import quantized, samples
from fedtiny.export.network import Activations, TinyModel, Values
from fedtiny.export.onnx_file import onnx_bytes, plain_size
from fedtiny.export.onnx_int8 import onnx_int8_bytes
from fedtiny.export.source import NoGraphError, tiny_model, trained
from fedtiny.export.torch_state import recipe_of, write_torch
from fedtiny.files import make_folder, write_atomically
from fedtiny.paths import user_path
from fedtiny.runs.formatting import size

Format = Literal["packed", "onnx", "torch", "c", "cmake", "platformio", "zephyr"]
Bands = Literal["auto", "off"]
PROJECTS: tuple[Project, ...] = get_args(Project)
IN_C = ("c", *PROJECTS)


@dataclass(frozen=True)
class Order:
    """Take the tiny model of a run away, and see how large it is in every format.

    packed: one small file for fedtiny predict and fedtiny.load. onnx: with sparse initializers.
    torch: a dense state dict and how to build it. c: C99 source without dependencies. cmake,
    platformio, zephyr: that source in a project for a board.
    """

    source: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(name="DIR")]
    """The run folder, or a packed model."""
    format: Format = "packed"
    """What to write."""
    out: Path | None = None
    """Where to write it; default: beside the model."""
    values: Values | None = None
    """How weights are held: packed fp32, fp16 or int8; C code fp32 or int8 (its default)."""
    fold: bool = True
    """Make batch norm part of the layer before it."""
    plain: bool = False
    """ONNX without sparse initializers."""
    best: bool = False
    """The best round's model, of a run with --save-best; default: the final one."""
    activations: Activations | None = None
    """int8: compute with integers, in packed, C code and onnx; default: as the model does."""
    calibrate: Path | None = None
    """Images that measure the ranges of int8 activations: an .npz file, or a folder of images by
    class; default: the run's public set."""
    target: Target | None = None
    """What C code with int8 activations is written for; cortex-m-dsp refuses a core without the DSP
    extension; default: cortex-m in a project for a board, else generic."""
    prefix: str = c_runtime.PREFIX
    """What names in C begin with, so that a firmware may hold two models."""
    bands: Bands = "auto"
    """C code computes the first layers by bands of rows where that lowers the RAM for at most a
    tenth more work; off: whole planes."""

    def __post_init__(self) -> None:
        self._check_names()
        if self.values not in (None, "fp32") and self.format in ("onnx", "torch"):
            raise ExportError(f"--values {self.values} is for packed and c; {self.format} has fp32")
        self._check_int8()
        if self.plain and self.format != "onnx":
            raise ExportError("--plain is for --format onnx")
        if self.source.is_file() and (self.format == "torch" or not self.fold or self.best):
            asked = "--format torch" if self.fold else "--no-fold"
            asked = "--best" if self.best else asked
            raise ExportError(f"{asked} needs the run folder, not its packed model")
        if self.out is not None:
            self._check_free(self.place)

    def _check_int8(self) -> None:
        """Refuse settings of int8 activations, and of C, for what has none."""
        if self.activations and self.format == "torch":
            raise ExportError("--activations int8 is for packed, c and onnx, not for torch")
        if self.activations and self.plain:
            raise ExportError("ONNX with --activations int8 has no sparse initializers: no --plain")
        if self.activations and self.values not in (None, "int8"):
            raise ExportError(f"--activations int8 has int8 weights, not --values {self.values}")
        if self.calibrate is not None and not self.activations:
            raise ExportError("--calibrate is for --activations int8")
        if self.target not in (None, "generic") and self.format not in IN_C:
            raise ExportError("--target is for C code with --activations int8")
        if not re.fullmatch("[a-z][a-z0-9_]{0,30}", self.prefix):
            raise ExportError(
                f"--prefix is a word of small letters, digits and _, not {self.prefix!r:.40}"
            )
        if self.prefix != c_runtime.PREFIX and self.format not in IN_C:
            raise ExportError(f"--prefix is for C code: {', '.join(IN_C)}")
        if self.bands != "auto" and self.format not in IN_C:
            raise ExportError(f"--bands is for C code: {', '.join(IN_C)}")

    def _check_names(self) -> None:
        """Refuse a format or values that there are not; the command line has checked them."""
        choices_of = {
            "format": tuple(ENDINGS),
            "values": (None, *get_args(Values)),
            "activations": (None, *get_args(Activations)),
            "target": (None, *get_args(Target)),
            "bands": get_args(Bands),
        }
        for name, known in choices_of.items():
            value = getattr(self, name)
            if value not in known:
                choices = ", ".join(each for each in known if each)
                hint = did_you_mean(str(value), filter(None, known))
                raise ExportError(f"--{name} must be one of {choices}, got {value!r}{hint}")

    def _check_free(self, out: Path) -> None:
        """Nothing that exists is written over, nor one file of an export by the other."""
        files = [out]
        if self.format == "torch":
            files.append(recipe_of(out))
            if out.suffix.lower() == recipe_of(out).suffix:
                raise ExportError(
                    f"{out} is where the recipe would go; choose an --out that ends in .safetensors"
                )
        for file in files:
            if file.exists():
                raise ExportError(f"{file} exists already; choose another --out")

    @property
    def stored(self) -> Values:
        """How values are stored."""
        return self.values or ("int8" if self.format in IN_C or self.activations else "fp32")

    @property
    def place(self) -> Path:
        """Where the export goes: beside the model unless something else was said."""
        if self.out is not None:
            return user_path(self.out, "--out")
        folder, stem = (
            (self.source, "best" if self.best else "model")
            if self.source.is_dir()
            else (self.source.parent, self.source.name.removesuffix(".packed"))
        )
        marks = ".plain" if self.plain else ""
        marks = ".int8_activations" if self.activations else marks
        if self.format == "packed":
            held = "" if self.stored == "fp32" else f".{self.stored}"
            marks = marks or held
            marks += "" if self.fold else ".unfolded"
        if self.format in IN_C and self.activations:
            marks = "_int8"
        return folder / f"{stem}{marks}{ENDINGS[self.format]}"


ENDINGS: dict[Format, str] = {
    **{"packed": ".packed", "onnx": ".onnx", "torch": ".torch.safetensors", "c": "_c"},
    **{project: f"_{project}" for project in PROJECTS},
}


Written = tuple[TinyModel | None, tuple[Path, ...], str]
"""A model, if it has a graph, its files, and a remark on them."""
DENSE_IN_RUNTIMES = "runtimes make its weights dense: small, but not faster"


def export(order: Order, **own: Any) -> Written:
    """Write a model in one of the formats; data and a model of one's own are given again."""
    place = order.place
    make_folder(place.parent)
    try:
        model = tiny_model(order.source, fold=order.fold, best=order.best, **own)
    except NoGraphError:
        if order.format != "onnx" or order.activations:
            raise
        return None, (_traced_by_torch(order, place, **own),), DENSE_IN_RUNTIMES
    told = ""
    if order.activations and model.activations is None:
        found = samples(order.source, order.calibrate, model, own.get("data"))
        model, told = quantized(model, found)
    files, remark = _written(order, model, place, **own)
    return model, files, "\n".join(line for line in (remark, told) if line)


def _written(
    order: Order, model: TinyModel, place: Path, /, **own: Any
) -> tuple[tuple[Path, ...], str]:
    """Write a model; gives its files and a remark on them."""
    match order.format:
        case "packed":
            values = "int8" if model.activations is not None else order.stored
            write_atomically(place, packed.packed(model, values))
            return (place,), ""
        case "onnx" if model.activations is not None:
            write_atomically(place, onnx_int8_bytes(model))
            return (place,), "dense: a byte a weight, kept or not"
        case "onnx":
            write_atomically(place, onnx_bytes(model, plain=order.plain))
            return (place,), DENSE_IN_RUNTIMES
        case "torch":
            run = trained(order.source, best=order.best, **own)
            return write_torch(run, place), "dense"
    made = _written_c(order, model, place)
    return made.files, f"flash {size(made.flash_bytes)} and the code, RAM {size(made.ram_bytes)}"


def _written_c(order: Order, model: TinyModel, place: Path) -> CReport:
    """Write the C code of a model, alone or in a project for a board."""
    bands = order.bands == "auto"
    if model.activations is not None:
        target = order.target or ("cortex-m" if order.format in PROJECTS else "generic")
        source: Source = Int8Source(model, target, order.prefix, bands=bands)
    elif order.target not in (None, "generic"):
        raise ExportError("--target is for C code with --activations int8")
    else:
        source = Source(model, order.stored, order.prefix, bands=bands)
    match order.format:
        case "cmake" | "platformio" | "zephyr":
            return write_project(source, place, order.format)
    return write_source(source, place)


def _traced_by_torch(order: Order, place: Path, **own: Any) -> Path:
    """Write the ONNX file of a network that has no graph."""
    from fedtiny.export.onnx_torch import exported

    run = trained(order.source, best=order.best, **own)
    write_atomically(place, exported(run, plain=order.plain))
    return place


Size = tuple[str, int | None, str]
"""A format, its number of bytes, and a remark: without a number, why it is not to be had."""


def all_sizes(model: TinyModel) -> Iterator[Size]:
    """The size of every format, the dense model's first."""
    yield "dense (torch)", model.dense_bytes, "every weight in float32"
    integers, model = model, replace(model, activations=None)
    yield _size("onnx --plain", plain_size, model)
    yield _size("onnx", onnx_bytes, model, remark="made dense by runtimes")
    for values in ("fp32", "fp16", "int8"):
        yield _size(f"packed --values {values}", packed.packed, model, values)
    for values in ("fp32", "int8"):
        yield _size(f"c --values {values}", flash_bytes, model, values, remark="flash")
    if integers.activations is not None:
        yield _size("onnx --activations int8", onnx_int8_bytes, integers)
        yield _size("packed --activations int8", packed.packed, integers)
        yield _size("c --activations int8", int8_flash_bytes, integers, remark="flash")


def _size(
    format: str, measure: Callable[..., int | bytes], *arguments: object, remark: str = ""
) -> Size:
    try:
        found = measure(*arguments)
    except FedTinyError as error:
        return format, None, str(error)
    return format, found if isinstance(found, int) else len(found), remark
