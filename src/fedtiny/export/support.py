"""Which backend has a form of which operation, read from the backends' own tables."""

from fedtiny.export import c_program, onnx_forms
from fedtiny.graph.arithmetic import FORMS
from fedtiny.graph.node import Kind
from fedtiny.graph.operations import NATIVE

LEFT_OUT = {Kind.DROPOUT}  # acts in training only; no export needs a form of it
BACKENDS: dict[str, set[Kind]] = {
    "native": set(NATIVE),
    "C": set(c_program.ACTIONS) | LEFT_OUT,
    "NumPy": set(FORMS),
    "ONNX": set(onnx_forms.FORMS),
    "packed": set(FORMS),
}


def table() -> dict[str, tuple[bool, ...]]:
    """By operation, whether each backend has it; PyTorch has all.

    >>> table()["matmul"] == tuple(backend != "native" for backend in BACKENDS)
    True
    """
    kinds = [kind for kind in Kind if kind != Kind.INPUT]
    return {
        kind.name.lower(): tuple(kind in forms for forms in BACKENDS.values()) for kind in kinds
    }
