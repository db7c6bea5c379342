"""A model with int8 activations as C99: the integers of `integers.py`, in an arena of bytes."""

from dataclasses import astuple
from pathlib import Path

from fedtiny.export import c_int8_runtime, c_runtime
from fedtiny.export.c_band_search import Costs, schedule
from fedtiny.export.c_calls import functions
from fedtiny.export.c_int8_calls import Int8Calls, zero_points
from fedtiny.export.c_int8_runtime import WIDTHS, Target
from fedtiny.export.c_plan import plan
from fedtiny.export.c_source import CReport, Source, write_source
from fedtiny.export.c_tables import layer_tables
from fedtiny.export.c_text import Declarations
from fedtiny.export.integers import Arithmetic
from fedtiny.export.network import TinyModel

BYTES_OF_KEPT, BYTES_OF_SUM = 8, 4


def write_int8(
    model: TinyModel, out: Path, *, target: Target = "generic", prefix: str = c_runtime.PREFIX
) -> CReport:
    """Write the C code of a quantized model into the folder `out`."""
    return write_source(Int8Source(model, target, prefix), out)


def int8_flash_bytes(model: TinyModel) -> int:
    """Bytes of constant tables that the C code of a quantized model has."""
    return Int8Source(model, "generic", c_runtime.PREFIX).table_bytes


class Int8Source(Source):
    """The text of a model whose activations are int8."""

    def __init__(
        self, model: TinyModel, target: Target, prefix: str, *, bands: bool = True
    ) -> None:
        self.target = target
        self.arithmetic = Arithmetic(model)
        super().__init__(model, "int8", prefix, bands=bands)

    def _prepare(self) -> None:
        """Tables, places in memory and calls."""
        net = self.tiny.net
        tables = layer_tables(net, "int8")
        zeros = zero_points(self.program, self.arithmetic)
        wide, middle, narrow, *_ = astuple(WIDTHS[self.target])
        costs = Costs(wide, middle, narrow, listed=7, complete=3, filter=60, moved=0.8)
        bands = schedule(self.program, zeros, net.weights, costs) if self.bands else None
        self.plan = plan(self.program, zeros, bands)
        calls = Int8Calls(
            self.program, self.plan, tables, net, arithmetic=self.arithmetic, zeros=zeros
        )
        self.calls = calls
        self.max_kept, self.max_sums = self._scratch(calls)
        self.pixels = self._pixels()

    def _scratch(self, calls: Int8Calls) -> tuple[int, int]:
        """Room for the kept weights that are listed, and for the sums of a plane."""
        kept, sums = 0, 0
        for step in self.program.steps:
            if step.convolves:
                sums = max(sums, self.plan.sums(step) + WIDTHS[self.target].wide)
                if calls.function(step) != "convolve_all":
                    kept = max(kept, calls.tables[step.node.name].max_kept + 1)
        return kept, sums

    def _pixels(self) -> Declarations:
        made = Declarations()
        if self.is_signal:
            mean, factor = self.arithmetic.raw
            made.array("raw_mean", mean)
            made.array("raw_scale", factor)
        else:
            made.array("pixel_table", self.arithmetic.pixels)
        return made

    @property
    def ram_bytes(self) -> int:
        """Bytes of static buffers."""
        return self.plan.arena + BYTES_OF_SUM * self.max_sums + BYTES_OF_KEPT * self.max_kept

    def _text(self, name: str) -> str:
        name = name.removesuffix(".c")
        return c_runtime.prefixed(c_int8_runtime.text(name, self.target), self.prefix)

    def _command(self) -> str:
        return f"cc -std=c99 -O3 {self.prefix}.c main.c -o {self.prefix}"

    def _definitions(self) -> str:
        lines = [f"#define MOST_KEPT {self.max_kept}"] if self.max_kept else []
        lines += [f"#define MOST_SUMS {self.max_sums}"] if self.max_sums else []
        return "\n".join([*lines, "", *self._arena("int8_t")])

    def _parts(self) -> list[str]:
        load = self.program.steps[0]
        called = functions([*self.calls.clearing(load), *self.calls.statements])
        return c_int8_runtime.needed({"load_raw" if self.is_signal else "load_pixels", *called})

    def _includes(self) -> str:
        return f'#include "{self.prefix}.h"\n\n#include <stddef.h>\n#include <string.h>\n'

    def _runs(self) -> list[str]:
        zero = self.arithmetic.qparams[0].zero_point
        run = "run_raw.c" if self.is_signal else "run_bytes.c"
        return [self._functions("run.c"), self._functions(run, zero=zero)]
