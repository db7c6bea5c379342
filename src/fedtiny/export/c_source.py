"""A model as dependency-free C99: constant tables, sparse loops, static buffers, no malloc."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

import numpy as np

from fedtiny.data.transforms import Preparation
from fedtiny.errors import ExportError
from fedtiny.export.c_calls import Calls, Declarations, Table, comment, string, table
from fedtiny.export.c_program import OVERREAD, Plan, Program, plan, program
from fedtiny.export.network import TinyModel, Values
from fedtiny.files import make_own_folder, write_atomically

# The parts of the runtime that a step needs, in the order in which they come.
PARTS = {
    "relu": ("convolve", "connect", "normalise", "add", "rectify", "max_pool"),
    "clear": ("clear",),
    "load": ("load",),
    "layer": ("convolve", "connect"),
    "convolve": ("convolve",),
    "linear": ("connect",),
    "split": ("split",),
    "norm": ("normalise",),
    "add": ("add",),
    "rectify": ("rectify",),
    "span": ("max_pool", "mean_pool", "adaptive_pool"),
    "window": ("max_pool", "mean_pool"),
    "max_pool": ("max_pool",),
    "sum": ("mean_pool", "adaptive_pool"),
    "mean_pool": ("mean_pool",),
    "adaptive_pool": ("adaptive_pool",),
}
BYTES_OF_KEPT, BYTES_OF_FLOAT = 8, 4


@dataclass(frozen=True)
class CReport:
    """What was written: bytes of constant tables (flash), of static buffers (RAM), the files."""

    flash_bytes: int
    ram_bytes: int
    files: tuple[Path, ...]


def write_c(model: TinyModel, out: Path, *, values: Values = "int8") -> CReport:
    """Write model.c, model.h and main.c into the folder `out`.

    Weights are held as `values`: int8 with a scale a filter, or fp32.
    """
    if values == "fp16":
        raise ExportError("C code holds weights as int8 or fp32, not as fp16")
    source = _Source(model, values)
    texts = {"model.c": source.model(), "model.h": source.header(), "main.c": _runtime("main.c")}
    make_own_folder(out)
    for name, text in texts.items():
        write_atomically(out / name, text.encode("ascii"))
    return CReport(source.table_bytes, source.ram_bytes, tuple(out / name for name in texts))


def flash_bytes(model: TinyModel, values: Values) -> int:
    """Bytes of constant tables that the C code of a model has."""
    return _Source(model, values).table_bytes


class _Source:
    """All of the text is made before any file is written."""

    def __init__(self, model: TinyModel, values: Values) -> None:
        self.tiny, self.values = model, values
        self.program = program(model.net.graph)
        outputs = self.program.shapes[self.program.steps[-1].gives]
        if outputs != (len(model.classes), 1, 1):
            raise ExportError(
                f"a model that gives {outputs} values cannot be one of {len(model.classes)} classes"
            )
        model.net.check_values()
        tables = {name: table(weights, values) for name, weights in model.net.weights.items()}
        self.plan = plan(self.program)
        self.max_kept, self.max_sums = _scratch(self.program, self.plan, tables)
        self.calls = Calls(self.program, self.plan, tables, model.net.norms)
        self.declarations = self.calls.declarations()
        self.pixels = _pixels(model.normalisation)

    @property
    def table_bytes(self) -> int:
        """Bytes of constant tables."""
        return self.declarations.size + self.pixels.size

    @property
    def ram_bytes(self) -> int:
        """Bytes of static buffers."""
        floats = self.plan.arena + self.max_sums
        return BYTES_OF_FLOAT * floats + BYTES_OF_KEPT * self.max_kept

    def header(self) -> str:
        """The text of model.h."""
        sides = dict(zip(("channels", "height", "width"), self.tiny.shape, strict=True))
        return Template(_runtime("model.h")).substitute(
            sides,
            card=comment(self._card()),
            classes=len(self.tiny.classes),
            table_bytes=self.table_bytes,
            ram_bytes=self.ram_bytes,
        )

    def model(self) -> str:
        """The text of model.c."""
        parts = (
            comment(self._card()),
            '#include "model.h"\n\n#include <math.h>\n#include <stddef.h>\n#include <string.h>\n',
            self._definitions(),
            *(_runtime("tensor.c"), *self.pixels.lines),
            *(_runtime(f"{part}.c") for part in self._parts()),
            *self.declarations.lines,
            self._functions(),
        )
        return "\n".join(parts)

    def _card(self) -> list[str]:
        kept = sum(t.weights.size for t in self.calls.tables.values())
        return [
            "A model made by fedtiny, as C99 that needs nothing but a compiler.",
            "",
            *_told(self.tiny.card),
            f"weights: {kept} as {self.values}; tables: {self.table_bytes} bytes of flash; "
            f"buffers: {self.ram_bytes} bytes of RAM",
            "",
            "compile: cc -std=c99 -O3 -ffp-contract=fast model.c main.c -o model",
        ]

    def _definitions(self) -> str:
        weight = "float" if self.values == "fp32" else "int8_t"
        lines = [f"typedef {weight} Weight;\n"]
        if self.max_kept:
            lines += [
                f"#define MOST_KEPT {self.max_kept}",
                f"#define MOST_SUMS {self.max_sums}\n",
            ]
        return "\n".join([*lines, f"static float arena[{self.plan.arena}];\n"])

    def _parts(self) -> list[str]:
        actions = {step.action for step in self.program.steps} | {"clear"}
        if not self.plan.cleared:
            actions.remove("clear")
        used = [part for part, users in PARTS.items() if actions & set(users)]
        return [*used, "flatten", "result"]

    def _functions(self) -> str:
        load = self.program.steps[0]
        names = "\n".join(f"    {string(name)}," for name in self.tiny.classes)
        body = "\n".join(f"    {line}" for line in self.calls.statements())
        clear = "".join(f"    {line}\n" for line in self.calls.clearing(load))
        image = self.plan.tensors[load.gives].name
        return Template(_runtime("run.c")).substitute(
            names=names, body=body, clear=clear, image=image
        )


def _told(card: Mapping[str, Any]) -> list[str]:
    """The lines of a model card, without the whole config."""
    plain = {name: value for name, value in card.items() if not isinstance(value, Mapping)}
    return [f"{n}: {v:.4g}" if isinstance(v, float) else f"{n}: {v}" for n, v in plain.items()]


def _scratch(program: Program, plan: Plan, tables: Mapping[str, Table]) -> tuple[int, int]:
    """Room for the kept weights of a filter and their end, and for the sums of a plane."""
    kept, sums = 0, 0
    for step in program.steps:
        if step.action == "convolve":
            read, (_, rows, columns) = plan.tensors[step.reads[0]], program.shapes[step.gives]
            kept = max(kept, tables[step.node.name].max_kept + 1)
            sums = max(sums, (rows - 1) * read.pitch + columns + OVERREAD)
    return kept, sums


def _pixels(normalisation: Preparation) -> Declarations:
    """What a byte of an image is multiplied by and shifted by."""
    mean, std = (np.asarray(v, dtype=np.float64) for v in (normalisation.mean, normalisation.std))
    made = Declarations()
    made.array("pixel_scale", (1 / (255 * std)).astype(np.float32))
    made.array("pixel_shift", (-mean / std).astype(np.float32))
    return made


def _runtime(name: str) -> str:
    return files("fedtiny.export").joinpath("runtime", name).read_text(encoding="ascii")
