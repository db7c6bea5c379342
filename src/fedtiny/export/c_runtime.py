"""The parts of the C runtime, and which of them a program needs."""

import re
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files

PREFIX = "model"
PARTS = {
    "relu": (),
    "relu6": (),
    "clear": (),
    "open_band": (),
    "load_pixels": (),
    "load_values": (),
    "load_raw": (),
    "layer": (),
    "gather": ("layer",),
    "convolve": ("gather",),
    "list_weights": ("gather",),
    "convolve_groups": ("list_weights",),
    "connect": ("layer",),
    "connect_all": ("layer",),
    "split": (),
    "convolve_planes": ("list_weights", "split"),
    "spread": (),
    "normalise": (),
    "group_norm": (),
    "layer_norm": (),
    "add": (),
    "multiply": (),
    "multiply_planes": (),
    "multiply_matrices": (),
    "scale": (),
    "rectify": (),
    "leaky_relu": (),
    "activate": (),
    "logistic": (),
    "sigmoid": ("activate", "logistic"),
    "silu": ("activate", "logistic"),
    "ramp": (),
    "hard_sigmoid": ("activate", "ramp"),
    "hard_swish": ("activate", "ramp"),
    "hyperbolic_tangent": ("activate",),
    "gelu": ("activate",),
    "gelu_by_tanh": ("activate",),
    "softmax": (),
    "span": (),
    "window": ("span",),
    "max_pool": ("window",),
    "sum": ("span",),
    "mean_pool": ("window", "sum"),
    "adaptive_pool": ("sum",),
    "upsample": (),
    "copy": (),
    "reshape": (),
    "permute": (),
    "flatten": (),
    "result": (),
}
"""Every part, by the function that a program calls or others need, with the parts that it needs; in
the order in which they come."""
ALWAYS = ("load_pixels", "load_values", "flatten", "result")
FROM_LIBM = (
    *("logistic", "hyperbolic_tangent", "gelu", "gelu_by_tanh", "softmax"),
    *("group_norm", "layer_norm"),
)
"""What calls a function of the mathematical library."""


def needed(called: Iterable[str]) -> list[str]:
    """The parts with the functions that are called, and all that those need."""
    return closure(PARTS, (*called, *ALWAYS))


def closure(parts: Mapping[str, Sequence[str]], called: Iterable[str]) -> list[str]:
    """What is called and all that it needs, in the order of the parts."""
    found: set[str] = set()
    left = [*called]
    while left:
        part = left.pop()
        if part not in found:
            found.add(part)
            left += parts[part]
    return [part for part in parts if part in found]


def text(name: str) -> str:
    """A file of the runtime."""
    return files("fedtiny.export").joinpath("runtime", name).read_text(encoding="ascii")


def prefixed(text: str, prefix: str) -> str:
    """A file of the runtime whose public names begin with another word than `model`.

    >>> prefixed("int model_run(void); MODEL_CLASSES", "digits")
    'int digits_run(void); DIGITS_CLASSES'
    """
    text = re.sub(r"\b(FEDTINY_)?MODEL_", lambda found: f"{found[1] or ''}{prefix.upper()}_", text)
    return re.sub(r'\bmodel(?=_|\.h")', prefix, text)
