"""The compiled library and its C structures (see csrc/fedtiny_native.h)."""

import ctypes
import os
from ctypes import (
    POINTER,
    Structure,
    c_char_p,
    c_double,
    c_float,
    c_int32,
    c_int64,
    c_uint64,
    c_void_p,
)
from functools import cache
from pathlib import Path
from typing import Any

from fedtiny.errors import FedTinyError

ENVIRONMENT = "FEDTINY_NATIVE_LIBRARY"


def _each(kind: Any, *names: str) -> tuple[tuple[str, Any], ...]:
    return tuple((name, kind) for name in names)


class NodeRecord(Structure):
    """fedtiny_node."""

    _fields_ = (
        *_each(c_int32, "kind", "first", "second", "channels", "height", "width"),
        *_each(c_int32 * 2, "kernel", "stride", "padding"),
        *_each(c_int32, "bias", "count_padding"),
        *_each(c_float, "epsilon", "momentum", "probability"),
    )


class OptionsRecord(Structure):
    """fedtiny_options."""

    _fields_ = (
        *_each(c_int32, "batch", "forward_batch", "threads", "lanes", "half", "recompute"),
        *_each(c_int32, "remove_dead", "optimizer", "input_gradient", "top_count"),
        ("budget", c_int64),
    )


class MemoryRecord(Structure):
    """fedtiny_memory."""

    _fields_ = _each(c_int64, "total", "parameters", "lists", "activations", "scratch")


class RatesRecord(Structure):
    """fedtiny_rates."""

    _fields_ = _each(c_double, "learning_rate", "momentum", "decay", "beta1", "beta2", "epsilon")


class ScoreRecord(Structure):
    """fedtiny_score."""

    _fields_ = (("loss", c_double), ("correct", c_int64))


class GradQueryRecord(Structure):
    """fedtiny_grad_query."""

    _fields_ = (
        *_each(c_int32, "node", "count"),
        *_each(c_void_p, "indices", "values", "dense"),
    )


class PassRecord(Structure):
    """fedtiny_pass."""

    _fields_ = (
        ("mode", c_int32),
        ("query_count", c_int32),
        ("queries", c_void_p),
        ("images", c_void_p),
        ("labels", c_void_p),
        ("count", c_int64),
        ("seed", c_uint64),
        ("epsilon", c_double),
        ("logits", c_void_p),
    )


_P = c_void_p
_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "create": (POINTER(NodeRecord), c_int32, POINTER(_P)),
    "plan": (_P, POINTER(OptionsRecord), _P, POINTER(MemoryRecord)),
    "prepare": (_P, POINTER(OptionsRecord), _P, _P),
    "taken": (_P, POINTER(MemoryRecord)),
    "set": (_P, c_int32, c_int32, _P, c_int64),
    "get": (_P, c_int32, c_int32, _P, c_int64),
    "get_gradient": (_P, c_int32, c_int32, _P, c_int64),
    "get_input_gradient": (_P, _P, c_int64),
    "start": (_P, POINTER(RatesRecord)),
    "run": (_P, POINTER(PassRecord), POINTER(ScoreRecord)),
}


class NativeError(FedTinyError):
    """The native library refused what it was given."""


class Library:
    """The functions of the compiled library, checked."""

    def __init__(self, path: Path) -> None:
        self._library = ctypes.CDLL(str(path))
        for name, arguments in _SIGNATURES.items():
            function = getattr(self._library, f"fedtiny_{name}")
            function.argtypes, function.restype = arguments, c_int32
        self._library.fedtiny_last_error.restype = c_char_p
        self._library.fedtiny_instructions.restype = c_char_p
        self._library.fedtiny_destroy.argtypes = (c_void_p,)
        self._library.fedtiny_destroy.restype = None

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function by its name; what it refuses is raised."""
        if getattr(self._library, f"fedtiny_{name}")(*arguments):
            raise NativeError(self._library.fedtiny_last_error().decode())

    def destroy(self, handle: c_void_p) -> None:
        """Give a network's memory back."""
        self._library.fedtiny_destroy(handle)

    @property
    def instructions(self) -> str:
        """The instruction set that this processor gets."""
        name: bytes = self._library.fedtiny_instructions()
        return name.decode()


def path() -> Path | None:
    """Where the compiled library lies, if it does."""
    named = os.environ.get(ENVIRONMENT)
    place = Path(named) if named else Path(__file__).parent / "_fedtiny_native.so"
    return place if place.exists() else None


def available() -> bool:
    """Whether the native library was built with this installation."""
    return path() is not None


@cache
def library() -> Library:
    """The library, loaded once."""
    place = path()
    if place is None:
        raise NativeError(
            "fedtiny was installed without its native library, since no C++ compiler was there; "
            "install one and reinstall fedtiny, or use --device-backend torch"
        )
    return Library(place)
