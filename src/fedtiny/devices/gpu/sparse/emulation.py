"""Kernels on a CPU: compiled by the host's C++ compiler with emulation.h, run thread by thread."""

import platform
import subprocess
import tempfile
from collections.abc import Callable
from ctypes import PyDLL, Structure, addressof, c_char_p, c_size_t, c_uint, c_void_p
from pathlib import Path
from typing import Any

import torch

from fedtiny.devices.gpu.sparse import cache
from fedtiny.devices.gpu.sparse.kernel import Grid, Kernel
from fedtiny.devices.gpu.sparse.nvrtc import compile_error
from fedtiny.errors import KernelError
from fedtiny.native.compile import X86, compiler

NO_COMPILER = (
    "sparse kernels on a CPU need a C++ compiler, and there is none; set CXX to use one by name"
)
OPTIONS = (
    *("-std=c++17", "-O1", "-ffp-contract=off", "-fno-strict-aliasing"),
    *("-fPIC", "-shared", "-fvisibility=hidden", "-w"),
)


def unavailable() -> str:
    """Why nothing can be emulated here; empty if it can."""
    return "" if compiler() else NO_COMPILER


def load(source: str) -> "Library":
    """The kernels of a source that begins with emulation.h."""
    command = [*(compiler() or ()), *OPTIONS, *_instructions()]
    key = cache.key_of((source, *command, platform.machine()))
    if kept := cache.find(key, ".so"):
        return Library(kept)
    with tempfile.TemporaryDirectory() as folder:
        built = Path(folder) / "kernels.so"
        _compile(source, command, built)
        cache.keep(key, built.read_bytes(), ".so")
        return Library(built)


def _instructions() -> tuple[str, ...]:
    """Flags that make fmaf one instruction, where the processor has it; its result is the same."""
    wide = torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")
    return X86["avx2"] if wide else ()


def _compile(source: str, command: list[str], target: Path) -> None:
    written = target.with_suffix(".cpp")
    written.write_text(source, encoding="utf-8")
    try:
        done = subprocess.run(
            [*command, str(written), "-o", str(target)],
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError as error:
        raise KernelError(
            f"the C++ compiler {command[0]} cannot be run ({error}); set CXX to one that can"
        ) from error
    if done.returncode:
        raise compile_error(done.stderr)


class Library:
    """The kernels of one compiled source. A call holds the interpreter: one grid at a time."""

    def __init__(self, path: Path) -> None:
        try:
            self._library = PyDLL(str(path))
        except OSError as error:
            raise KernelError(f"the emulated kernels cannot be loaded: {error}") from error

    def __getitem__(self, name: str) -> "EmulatedKernel":
        try:
            function = self._library[f"{name}_emulated"]
        except AttributeError as error:
            raise KernelError(f"there is no kernel {name} in the source") from error
        function.argtypes = [c_uint, c_uint, c_uint, c_uint, c_size_t, c_void_p]
        function.restype = c_char_p
        return EmulatedKernel(function)


class EmulatedKernel(Kernel):
    """A kernel that runs when it is launched, and is done when that returns."""

    def __init__(self, function: Any) -> None:
        self._function = function

    def bind(self, grid: Grid, threads: int, shared: int, args: Structure) -> Callable[[], None]:
        function, values = self._function, (*grid, threads, shared, addressof(args))

        def launch(keep: Structure = args) -> None:
            if problem := function(*values):
                raise KernelError(f"in the sparse kernel {problem.decode()}")

        return launch
