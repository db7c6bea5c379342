"""The parts of the C runtime for int8 activations, and which of them a program needs."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from importlib.resources import files
from string import Template
from typing import Literal

from fedtiny.export import c_runtime

Target = Literal["generic", "cortex-m", "cortex-m-dsp", "x86"]
PARTS: dict[str, tuple[str, ...]] = {
    "limited": (),
    "scaled": (),
    "clear": (),
    "open_band": (),
    "load_pixels": (),
    "load_raw": ("limited",),
    "load_values": (),
    "layer": ("limited", "scaled"),
    "widths": ("limited", "scaled"),
    "sums": ("layer", "widths"),
    "gather": ("sums",),
    "convolve": ("gather",),
    "convolve_all": ("sums",),
    "list_weights": ("gather",),
    "convolve_groups": ("list_weights",),
    "neuron": ("layer",),
    "connect": ("neuron",),
    "connect_logits": ("neuron",),
    "split": (),
    "convolve_planes": ("list_weights", "split"),
    "spread": (),
    "add": ("limited",),
    "multiply": ("limited", "scaled"),
    "multiply_planes": ("limited", "scaled"),
    "multiply_matrices": ("limited", "scaled"),
    "norm": ("limited", "scaled"),
    "group_norm": ("norm",),
    "layer_norm": ("norm",),
    "softmax": ("limited",),
    "look_up": (),
    "span": (),
    "window": ("span",),
    "max_pool": ("window",),
    "mean": ("limited", "span"),
    "mean_pool": ("window", "mean"),
    "adaptive_pool": ("mean",),
    "upsample": (),
    "copy": (),
    "reshape": (),
    "permute": (),
    "flatten": (),
    "to_logits": (),
    "result": (),
}
"""As those of the runtime for floats."""
MOVING = (
    *("tensor", "load_values", "span", "window", "upsample", "copy", "reshape"),
    *("permute", "flatten", "spread", "open_band"),
)
"""Parts that move values and compute nothing: those for floats, with another type."""
SHARED = ("result", "profile", "model.h")


@dataclass(frozen=True)
class Widths:
    """How many neighbouring outputs are summed at a time, and how that is written."""

    wide: int
    middle: int
    narrow: int
    stored: int
    """How many sums are stored at a time."""
    form: str
    condition: str = ""
    """What refuses other cores, if something does."""


WIDTHS: dict[Target, Widths] = {
    "generic": Widths(16, 4, 1, 1, "widths_loops"),
    "cortex-m": Widths(8, 4, 1, 4, "widths_unrolled"),
    "cortex-m-dsp": Widths(8, 4, 1, 4, "widths_unrolled", "dsp_only"),
    "x86": Widths(64, 32, 16, 1, "widths_loops"),
}
"""By target; a sum may read so far behind what it needs."""


def needed(called: Iterable[str]) -> list[str]:
    """The parts with the functions that are called, and all that those need."""
    return c_runtime.closure(PARTS, (*called, "result"))


def text(name: str, target: Target) -> str:
    """A part of the runtime as it is written for a target."""
    if name in MOVING:
        return c_runtime.text(f"{name}.c").replace("float", "int8_t")
    if name in SHARED:
        return c_runtime.text(name if "." in name else f"{name}.c")
    widths = WIDTHS[target]
    wanted = [widths.condition, widths.form] if name == "widths" else [name]
    held = "\n".join(_file(each) for each in wanted if each)
    return Template(held).safe_substitute(asdict(widths))


def _file(name: str) -> str:
    file = name if "." in name else f"{name}.c"
    return files("fedtiny.export").joinpath("runtime_int8", file).read_text(encoding="ascii")
