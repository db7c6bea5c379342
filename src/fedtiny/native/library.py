"""The compiled library and its C structures (see csrc/fedtiny_native.h)."""

import ctypes
import os
from ctypes import POINTER, Structure, c_char_p, c_double, c_float, c_int32, c_int64, c_void_p
from functools import cache
from pathlib import Path
from typing import Any

from fedtiny.errors import FedTinyError

ENVIRONMENT = "FEDTINY_NATIVE_LIBRARY"


class NodeRecord(Structure):
    """fedtiny_node."""

    _fields_ = (
        ("kind", c_int32),
        ("first", c_int32),
        ("second", c_int32),
        ("channels", c_int32),
        ("height", c_int32),
        ("width", c_int32),
        ("kernel", c_int32 * 2),
        ("stride", c_int32 * 2),
        ("padding", c_int32 * 2),
        ("bias", c_int32),
        ("count_padding", c_int32),
        ("epsilon", c_float),
        ("momentum", c_float),
        ("probability", c_float),
    )


class OptionsRecord(Structure):
    """fedtiny_options."""

    _fields_ = (
        ("batch", c_int32),
        ("forward_batch", c_int32),
        ("threads", c_int32),
        ("lanes", c_int32),
        ("half", c_int32),
        ("recompute", c_int32),
        ("remove_dead", c_int32),
        ("optimizer", c_int32),
        ("input_gradient", c_int32),
        ("top_count", c_int32),
        ("budget", c_int64),
    )


class MemoryRecord(Structure):
    """fedtiny_memory."""

    _fields_ = (
        ("total", c_int64),
        ("parameters", c_int64),
        ("lists", c_int64),
        ("activations", c_int64),
        ("scratch", c_int64),
    )


class RatesRecord(Structure):
    """fedtiny_rates."""

    _fields_ = (
        ("learning_rate", c_double),
        ("momentum", c_double),
        ("decay", c_double),
        ("beta1", c_double),
        ("beta2", c_double),
        ("epsilon", c_double),
    )


class ScoreRecord(Structure):
    """fedtiny_score."""

    _fields_ = (("loss", c_double), ("correct", c_int64))


class GradQueryRecord(Structure):
    """fedtiny_wanted."""

    _fields_ = (
        ("node", c_int32),
        ("count", c_int32),
        ("indices", c_void_p),
        ("values", c_void_p),
        ("dense", c_void_p),
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
    "train": (_P, _P, _P, c_int64, ctypes.c_uint64, c_int32, _P, c_int32, POINTER(ScoreRecord)),
    "measure": (_P, _P, _P, c_int64, ctypes.c_uint64, c_double, _P, c_int32, POINTER(ScoreRecord)),
    "forward": (_P, _P, _P, c_int64, c_int32, _P, POINTER(ScoreRecord)),
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
