"""A model as dependency-free C99: constant tables, sparse loops, static buffers, no malloc."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any

from fedtiny.errors import ExportError
from fedtiny.export import c_runtime
from fedtiny.export.c_band_search import FLOATS, schedule
from fedtiny.export.c_calls import Calls, functions
from fedtiny.export.c_plan import OVERREAD, Plan, plan
from fedtiny.export.c_program import program
from fedtiny.export.c_steps import Program
from fedtiny.export.c_tables import Table, layer_tables, pixel_tables
from fedtiny.export.c_text import comment, string
from fedtiny.export.network import TinyModel, Values
from fedtiny.files import make_own_folder, write_atomically

BYTES_OF_KEPT, BYTES_OF_FLOAT = 8, 4
MAX_BYTES = (1 << 31) - 1  # what an int counts

PIXELS = {
    "samples": "raw images",
    "layout": "An image is MODEL_CHANNELS planes of MODEL_HEIGHT x MODEL_WIDTH bytes.",
    "type": "uint8_t",
    "run": "model_run",
}
"""What the program for trying a model of images reads."""
VALUES = {
    "samples": "measured values",
    "layout": "A sample is MODEL_CHANNELS rows of MODEL_WIDTH float32 values\n"
    "   as they were measured, in the byte order of the machine, as NumPy's tofile writes them.",
    "type": "float",
    "run": "model_run_raw",
}
"""What that of a model of sequences or tables reads."""


@dataclass(frozen=True)
class CReport:
    """What was written: bytes of constant tables (flash), of static buffers (RAM), the files."""

    flash_bytes: int
    ram_bytes: int
    files: tuple[Path, ...]


def write_c(
    model: TinyModel, out: Path, *, values: Values = "int8", prefix: str = c_runtime.PREFIX
) -> CReport:
    """Write model.c, model.h and main.c into the folder `out`.

    Weights are held as `values`: int8 with a scale a filter, or fp32. Names begin with `prefix`.
    """
    return write_source(Source(model, values, prefix), out)


def write_source(source: "Source", out: Path) -> CReport:
    """Write the files of a source."""
    texts = {
        f"{source.prefix}.c": source.model(),
        f"{source.prefix}.h": source.header(),
        "main.c": source.main(),
    }
    make_own_folder(out)
    for name, text in texts.items():
        write_atomically(out / name, text.encode("ascii"))
    return CReport(source.table_bytes, source.ram_bytes, tuple(out / name for name in texts))


def flash_bytes(model: TinyModel, values: Values) -> int:
    """Bytes of constant tables that the C code of a model has."""
    return Source(model, values).table_bytes


class Source:
    """All of the text is made before any file is written."""

    def __init__(
        self,
        model: TinyModel,
        values: Values,
        prefix: str = c_runtime.PREFIX,
        *,
        bands: bool = True,
    ) -> None:
        if values == "fp16":
            raise ExportError("C code holds weights as int8 or fp32, not as fp16")
        self.tiny, self.values, self.prefix, self.bands = model, values, prefix, bands
        self.program = program(model.net.graph)
        outputs = self.program.shapes[self.program.steps[-1].gives]
        if outputs != (len(model.classes), 1, 1):
            raise ExportError(
                f"a model that gives {outputs} values cannot be one of {len(model.classes)} classes"
            )
        model.net.check_values()
        self._prepare()
        if self.ram_bytes > MAX_BYTES:
            raise ExportError(f"in C the model would take {self.ram_bytes} bytes of RAM")
        self.declarations = self.calls.declarations()
        self.parts = self._parts()

    def _prepare(self) -> None:
        """Lay out tables, memory and calls."""
        tables = layer_tables(self.tiny.net, self.values)
        weights = self.tiny.net.weights
        bands = schedule(self.program, {}, weights, FLOATS) if self.bands else None
        self.plan = plan(self.program, schedule=bands)
        self.max_kept, self.max_sums = _scratch(self.program, self.plan, tables)
        self.calls = Calls(self.program, self.plan, tables, self.tiny.net)
        self.pixels = pixel_tables(self.tiny.normalisation, raw=self.is_signal)

    @property
    def table_bytes(self) -> int:
        """Bytes of constant tables."""
        return self.declarations.size + self.pixels.size

    @property
    def is_signal(self) -> bool:
        """Whether it reads lines, which are seldom bytes, and not planes."""
        return self.tiny.shape[1] == 1

    @property
    def reads(self) -> Mapping[str, str]:
        """What a program for trying the model reads."""
        return VALUES if self.is_signal else PIXELS

    @property
    def ram_bytes(self) -> int:
        """Bytes of static buffers."""
        floats = self.plan.arena + self.max_sums
        return BYTES_OF_FLOAT * floats + BYTES_OF_KEPT * self.max_kept

    def header(self) -> str:
        """The text of model.h."""
        sides = dict(zip(("channels", "height", "width"), self.tiny.shape, strict=True))
        return Template(self._text("model.h")).substitute(
            sides,
            card=comment(self._card()),
            classes=len(self.tiny.classes),
            table_bytes=self.table_bytes,
            ram_bytes=self.ram_bytes,
            steps=1 + len(self.calls.steps),
            functions=self._text("model_raw.h" if self.is_signal else "model_bytes.h"),
        )

    def main(self) -> str:
        """The text of main.c."""
        text = Template(self._text("main.c")).substitute(self.reads)
        return c_runtime.prefixed(text, self.prefix)

    def model(self) -> str:
        """The text of model.c."""
        parts = (
            comment(self._card()),
            self._includes(),
            self._definitions(),
            *(self._text("tensor.c"), *self.pixels.lines),
            *(self._text(f"{part}.c") for part in self.parts),
            *self.declarations.lines,
            self._profile(),
            *self._runs(),
        )
        return "\n".join(parts)

    def _includes(self) -> str:
        headers = ("math.h", "stddef.h", "string.h")
        lines = "".join(f"#include <{header}>\n" for header in headers)
        return f'#include "{self.prefix}.h"\n\n{lines}'

    def _profile(self) -> str:
        """What measures steps, behind a macro."""
        named = ["load", *(name for name, _ in self.calls.steps)]
        names = "\n".join(f"    {string(name)}," for name in named)
        return Template(self._text("profile.c")).substitute(step_names=names)

    def _runs(self) -> list[str]:
        """What a program calls."""
        return [self._functions(f"{file}.c") for file in ("run", "run_raw")[: 1 + self.is_signal]]

    def _text(self, name: str) -> str:
        """A file of the runtime, under the names of this model."""
        return c_runtime.prefixed(c_runtime.text(name), self.prefix)

    def _card(self) -> list[str]:
        kept = sum(t.weights.size for t in self.calls.tables.values())
        return [
            "A model made by fedtiny, as C99 that needs nothing but a compiler.",
            "",
            *_told(self.tiny.card),
            f"weights: {kept} as {self.values}; tables: {self.table_bytes} bytes of flash; "
            f"buffers: {self.ram_bytes} bytes of RAM",
            "",
            f"compile: {self._command()}",
        ]

    def _command(self) -> str:
        """What compiles it, with the mathematical library where a part calls a function of it."""
        library = " -lm" if set(c_runtime.FROM_LIBM) & set(self.parts) else ""
        files = f"{self.prefix}.c main.c -o {self.prefix}"
        return f"cc -std=c99 -O3 -ffp-contract=fast {files}{library}"

    def _definitions(self) -> str:
        weight = "float" if self.values == "fp32" else "int8_t"
        lines = [f"typedef {weight} Weight;\n"]
        if self.max_kept:
            lines += [
                f"#define MOST_KEPT {self.max_kept}",
                f"#define MOST_SUMS {self.max_sums}\n",
            ]
        return "\n".join([*lines, *self._arena("float")])

    def _arena(self, type: str) -> list[str]:
        """The arena, which a macro may place."""
        placing = f"{self.prefix.upper()}_ARENA"
        return [
            "/* What places the arena, such as an attribute that names a section. */",
            f"#ifndef {placing}",
            f"#define {placing}",
            "#endif",
            "",
            f"{placing} static {type} arena[{self.plan.arena}];\n",
        ]

    def _parts(self) -> list[str]:
        """The parts of the runtime that its statements need."""
        steps = self.program.steps
        called = functions([*self.calls.clearing(steps[0]), *self.calls.statements])
        limited = "relu6" if any(step.limit == "RELU6" for step in steps) else "relu"
        return c_runtime.needed({limited, *called, *(["load_raw"] if self.is_signal else [])})

    def _functions(self, file: str, **more: int) -> str:
        load = self.program.steps[0]
        names = "\n".join(f"    {string(name)}," for name in self.tiny.classes)
        body = "\n".join(f"    {line}" for line in self.calls.body)
        clear = "".join(f"    {line}\n" for line in self.calls.clearing(load))
        image = self.plan.tensors[load.gives].name
        return Template(self._text(file)).substitute(
            names=names, body=body, clear=clear, image=image, **more
        )


def _told(card: Mapping[str, Any]) -> list[str]:
    """The lines of a model card, without the whole config."""
    plain = {name: value for name, value in card.items() if not isinstance(value, Mapping)}
    return [f"{n}: {v:.4g}" if isinstance(v, float) else f"{n}: {v}" for n, v in plain.items()]


def _scratch(program: Program, plan: Plan, tables: Mapping[str, Table]) -> tuple[int, int]:
    """Room for the kept weights of a filter and their end, and for the sums of a plane."""
    kept, sums = 0, 0
    for step in program.steps:
        if step.convolves:
            kept = max(kept, tables[step.node.name].max_kept + 1)
            sums = max(sums, plan.sums(step) + OVERREAD)
    return kept, sums
