"""NVIDIA's run-time compiler, as pip's torch brings it, found and called through ctypes."""

import ctypes
import importlib.util
import os
from collections.abc import Iterator
from ctypes import CDLL, POINTER, byref, c_char_p, c_int, c_size_t, c_void_p
from functools import cache
from pathlib import Path
from typing import Any

import torch

from fedtiny.devices.gpu.sparse import cache as kernel_cache
from fedtiny.errors import KernelError

OPTIONS = ("-std=c++17", "--fmad=false")  # fmaf is called where it is meant, as on a CPU
NOT_FOUND = (
    "sparse kernels are built with NVRTC, which is not installed; "
    "pip install nvidia-cuda-nvrtc brings it"
)
_OUT = POINTER(c_void_p)
_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "Version": (POINTER(c_int), POINTER(c_int)),
    "GetNumSupportedArchs": (POINTER(c_int),),
    "GetSupportedArchs": (POINTER(c_int),),
    "CreateProgram": (_OUT, c_char_p, c_char_p, c_int, c_void_p, c_void_p),
    "CompileProgram": (c_void_p, c_int, POINTER(c_char_p)),
    "GetProgramLogSize": (c_void_p, POINTER(c_size_t)),
    "GetProgramLog": (c_void_p, c_char_p),
    "GetCUBINSize": (c_void_p, POINTER(c_size_t)),
    "GetCUBIN": (c_void_p, c_char_p),
    "GetPTXSize": (c_void_p, POINTER(c_size_t)),
    "GetPTX": (c_void_p, c_char_p),
    "DestroyProgram": (_OUT,),
}


def unavailable() -> str:
    """Why there is no NVRTC; empty if there is one."""
    return NOT_FOUND if library() is None else ""


def compile_source(source: str, capability: tuple[int, int]) -> bytes:
    """What the driver loads: machine code, or PTX for a card that is newer than NVRTC."""
    nvrtc = library()
    if nvrtc is None:
        raise KernelError(NOT_FOUND)
    major, minor = capability
    options, what = target(10 * major + minor, supported(nvrtc))
    key = kernel_cache.key_of((source, *options, version(nvrtc)))
    suffix = ".cubin" if what == "CUBIN" else ".ptx"
    if kept := kernel_cache.find(key, suffix):
        return kept.read_bytes()
    image = _compiled(nvrtc, source, options, what)
    kernel_cache.keep(key, image, suffix)
    return image


def target(card: int, known: list[int]) -> tuple[tuple[str, ...], str]:
    """The options for a card, and what to ask NVRTC for.

    >>> target(90, [80, 90])
    (('-std=c++17', '--fmad=false', '--gpu-architecture=sm_90'), 'CUBIN')
    >>> target(120, [80, 90])
    (('-std=c++17', '--fmad=false', '--gpu-architecture=compute_90'), 'PTX')
    """
    if card in known:
        return (*OPTIONS, f"--gpu-architecture=sm_{card}"), "CUBIN"
    older = [one for one in known if one < card]
    if not older:
        raise KernelError(
            f"NVRTC compiles for sm_{min(known)} and newer, but the card is sm_{card}"
        )
    return (*OPTIONS, f"--gpu-architecture=compute_{max(older)}"), "PTX"


def version(nvrtc: CDLL) -> str:
    """Its version, as major.minor."""
    major, minor = c_int(), c_int()
    _call(nvrtc, "Version", byref(major), byref(minor))
    return f"NVRTC {major.value}.{minor.value}"


def supported(nvrtc: CDLL) -> list[int]:
    """The architectures that it makes machine code for."""
    count = c_int()
    _call(nvrtc, "GetNumSupportedArchs", byref(count))
    found = (c_int * count.value)()
    _call(nvrtc, "GetSupportedArchs", found)
    return list(found)


def _compiled(nvrtc: CDLL, source: str, options: tuple[str, ...], what: str) -> bytes:
    program = c_void_p()
    _call(nvrtc, "CreateProgram", byref(program), source.encode(), b"kernels.cu", 0, None, None)
    try:
        texts = (c_char_p * len(options))(*(option.encode() for option in options))
        if nvrtc.nvrtcCompileProgram(program, len(options), texts):
            raise compile_error(_text(nvrtc, "ProgramLog", program).decode(errors="replace"))
        return _text(nvrtc, what, program)
    finally:
        _call(nvrtc, "DestroyProgram", byref(program))


def compile_error(log: str) -> KernelError:
    """One sentence with the first error of a compiler's log; the whole log is its note."""
    lines = [line.strip("\0 ") for line in log.splitlines()]
    first = next((line for line in lines if "error" in line), next(iter(lines), "no log"))
    error = KernelError(f"the sparse kernels do not compile: {first}")
    error.add_note(log)
    return error


def _text(nvrtc: CDLL, what: str, program: c_void_p) -> bytes:
    size = c_size_t()
    _call(nvrtc, f"Get{what}Size", program, byref(size))
    data = ctypes.create_string_buffer(size.value)
    _call(nvrtc, f"Get{what}", program, data)
    return data.raw


def _call(nvrtc: CDLL, name: str, *values: Any) -> None:
    if status := getattr(nvrtc, f"nvrtc{name}")(*values):
        raise KernelError(f"NVRTC cannot be used: nvrtc{name} returned {status}")


@cache
def library() -> CDLL | None:
    """The first NVRTC that can be loaded, with its builtins; None if there is none."""
    for path in candidates():
        try:
            for builtins in sorted(Path(path).parent.glob("libnvrtc-builtins.so*")):
                if ".alt." not in builtins.name:
                    CDLL(str(builtins), mode=ctypes.RTLD_GLOBAL)
            nvrtc = CDLL(path)
            for name, kinds in _SIGNATURES.items():
                getattr(nvrtc, f"nvrtc{name}").argtypes = kinds
            return nvrtc
        except (OSError, AttributeError):  # AttributeError: too old
            continue
    return None


def candidates() -> Iterator[str]:
    """Where NVRTC may be: pip's packages, torch's own folder, the system; torch's version first."""
    major = (torch.version.cuda or "").partition(".")[0]
    spec = importlib.util.find_spec("nvidia")
    folders = [
        *(
            path
            for root in (spec and spec.submodule_search_locations) or ()
            for path in _libs(root)
        ),
        Path(torch.__file__).parent / "lib",
        *(Path(root) / "lib64" for name in ("CUDA_HOME", "CUDA_PATH") if (root := os.getenv(name))),
        Path("/usr/local/cuda/lib64"),
    ]
    found = [str(path) for folder in folders for path in sorted(folder.glob("libnvrtc[.-]*so*"))]
    found = [path for path in found if "builtins" not in path and ".alt." not in path]
    yield from sorted(found, key=lambda path: f".so.{major}" not in path)
    for number in (major, "13", "12", "11.2"):
        yield f"libnvrtc.so.{number}"


def _libs(root: str) -> list[Path]:
    return sorted(Path(root).glob("*/lib"))
