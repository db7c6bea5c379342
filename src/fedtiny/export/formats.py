"""Writing a model in the format that was asked for."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from fedtiny.errors import ExportError
from fedtiny.export import packed
from fedtiny.export.network import TinyModel, Values
from fedtiny.export.onnx_file import onnx_bytes
from fedtiny.export.source import tiny_model, trained
from fedtiny.export.torch_files import recipe_of
from fedtiny.runs.folder import make_folder, write_atomically
from fedtiny.runs.formatting import size

Format = Literal["packed", "onnx", "torch", "c"]
C_DEFAULT: Values = "int8"


@dataclass(frozen=True)
class Order:
    """Take the tiny model of a run away, and see how large it is in every format.

    packed: one small file for fedtiny predict and fedtiny.load. onnx: with sparse initializers.
    torch: a dense state dict and how to build it. c: C99 source without dependencies.
    """

    source: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(name="DIR")]
    """The run folder, or a packed model."""
    format: Format = "packed"
    """What to write."""
    out: Path | None = None
    """Where to write it; default: beside the model."""
    values: Values | None = None
    """How weights are held: packed fp32, fp16 or int8; c fp32 or int8 (its default)."""
    fold: bool = True
    """Make batch norm part of the layer before it."""
    plain: bool = False
    """ONNX without sparse initializers."""

    def __post_init__(self) -> None:
        if self.values not in (None, "fp32") and self.format in ("onnx", "torch"):
            raise ExportError(f"--values {self.values} is for packed and c; {self.format} has fp32")
        if self.plain and self.format != "onnx":
            raise ExportError("--plain is for --format onnx")
        if self.source.is_file() and (self.format == "torch" or not self.fold):
            asked = "--format torch" if self.fold else "--no-fold"
            raise ExportError(f"{asked} needs the run folder, not its packed model")
        if self.out is not None:
            self._check_free(self.out)

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
        return self.values or (C_DEFAULT if self.format == "c" else "fp32")

    @property
    def place(self) -> Path:
        """Where the export goes: beside the model unless something else was said."""
        if self.out is not None:
            return self.out
        folder, stem = (
            (self.source, "model")
            if self.source.is_dir()
            else (self.source.parent, self.source.name.removesuffix(".packed"))
        )
        marks = {"packed": self._marks, "onnx": ".plain" if self.plain else ""}.get(self.format, "")
        return folder / f"{stem}{marks}{ENDINGS[self.format]}"

    @property
    def _marks(self) -> str:
        values = "" if self.stored == "fp32" else f".{self.stored}"
        return values if self.fold else f"{values}.unfolded"


ENDINGS = {"packed": ".packed", "onnx": ".onnx", "torch": ".torch.safetensors", "c": "_c"}


@dataclass(frozen=True)
class Written:
    """The files of an export, with a remark on them."""

    files: tuple[Path, ...]
    remark: str = ""


def export(order: Order) -> tuple[TinyModel, Written]:
    """Write a model in one of the formats; gives the model as well."""
    model = tiny_model(order.source, fold=order.fold)
    make_folder(order.place.parent)
    return model, WRITERS[order.format](model, order)


def _write_packed(model: TinyModel, order: Order) -> Written:
    write_atomically(order.place, packed.packed(model, order.stored))
    return Written((order.place,))


def _write_onnx(model: TinyModel, order: Order) -> Written:
    write_atomically(order.place, onnx_bytes(model, plain=order.plain))
    return Written((order.place,), "runtimes make its weights dense: small, but not faster")


def _write_torch(model: TinyModel, order: Order) -> Written:
    from fedtiny.export import torch_files

    return Written(tuple(torch_files.write(trained(order.source), order.place)), "dense")


def _write_c(model: TinyModel, order: Order) -> Written:
    from fedtiny.export.c_source import write_c

    made = write_c(model, order.place, values=order.stored)
    return Written(made.files, f"flash {size(made.flash_bytes)}, RAM {size(made.ram_bytes)}")


WRITERS: dict[str, Callable[[TinyModel, Order], Written]] = {
    "packed": _write_packed,
    "onnx": _write_onnx,
    "torch": _write_torch,
    "c": _write_c,
}
