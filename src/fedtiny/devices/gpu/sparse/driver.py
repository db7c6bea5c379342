"""Kernels on a GPU: loaded and launched with CUDA's driver, in the context that torch uses."""

import ctypes
from collections.abc import Callable
from ctypes import CDLL, POINTER, Structure, byref, c_char_p, c_int, c_uint, c_void_p
from functools import cache
from typing import Any

import torch

from fedtiny.devices.gpu.sparse.kernel import Grid, Kernel
from fedtiny.errors import KernelError

INVALID_CONTEXT = 201
MAX_DYNAMIC_SHARED, SHARED_CARVEOUT = 8, 9  # attributes of a function
_OUT = POINTER(c_void_p)
_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cuInit": (c_uint,),
    "cuGetErrorString": (c_int, POINTER(c_char_p)),
    "cuDevicePrimaryCtxRetain": (_OUT, c_int),
    "cuCtxSetCurrent": (c_void_p,),
    "cuModuleLoadData": (_OUT, c_char_p),
    "cuModuleGetFunction": (_OUT, c_void_p, c_char_p),
    "cuFuncSetAttribute": (c_void_p, c_int, c_int),
    "cuLaunchKernel": (c_void_p, *[c_uint] * 7, c_void_p, c_void_p, c_void_p),
}


def unavailable() -> str:
    """Why there is no driver; empty if there is one."""
    return "" if library() else "sparse kernels need CUDA's driver, libcuda.so.1, which is missing"


@cache
def library() -> CDLL | None:
    """CUDA's driver, or None."""
    try:
        cuda = CDLL("libcuda.so.1")
    except OSError:
        return None
    for name, kinds in _SIGNATURES.items():
        getattr(cuda, name).argtypes = kinds
    return cuda


def _cuda() -> CDLL:
    cuda = library()
    if cuda is None:
        raise KernelError(unavailable())
    return cuda


def _check(status: int, what: str) -> None:
    if not status:
        return
    text = c_char_p()
    _cuda().cuGetErrorString(status, byref(text))
    raise KernelError(f"a sparse kernel failed: {what}: {(text.value or b'error').decode()}")


def _call(name: str, *values: Any) -> None:
    _check(getattr(_cuda(), name)(*values), name)


@cache
def _primary_context(device: int) -> c_void_p:
    torch.cuda.init()
    _call("cuInit", 0)
    context = c_void_p()
    _call("cuDevicePrimaryCtxRetain", byref(context), device)
    return context


@cache  # a module stays loaded: captured graphs use it
def load(image: bytes, device: int) -> "Module":
    """Compiled kernels, on a device."""
    return Module(image, device)


class Module:
    """The kernels of one compiled source."""

    def __init__(self, image: bytes, device: int) -> None:
        self.device = device
        self._module = c_void_p()
        with torch.cuda.device(device):
            self.make_current()
            _call("cuModuleLoadData", byref(self._module), image)
        self._kernels: dict[str, DeviceKernel] = {}

    def make_current(self) -> None:
        """Give this thread torch's context of the device."""
        _call("cuCtxSetCurrent", _primary_context(self.device))

    def __getitem__(self, name: str) -> "DeviceKernel":
        if name not in self._kernels:
            function = c_void_p()
            with torch.cuda.device(self.device):
                self.make_current()
                get = _cuda().cuModuleGetFunction
                _check(get(byref(function), self._module, name.encode()), f"{name} in the source")
            self._kernels[name] = DeviceKernel(self, name, function)
        return self._kernels[name]


class DeviceKernel(Kernel):
    """A kernel that is queued on torch's current stream when it is launched."""

    def __init__(self, module: Module, name: str, function: c_void_p) -> None:
        self._module, self._name, self._function = module, name, function
        self._shared = 0  # the most dynamic shared memory asked for

    def _allow(self, shared: int) -> None:
        if shared <= self._shared:
            return
        with torch.cuda.device(self._module.device):
            self._module.make_current()
            _call("cuFuncSetAttribute", self._function, SHARED_CARVEOUT, 100)
            _call("cuFuncSetAttribute", self._function, MAX_DYNAMIC_SHARED, shared)
        self._shared = shared

    def bind(self, grid: Grid, threads: int, shared: int, args: Structure) -> Callable[[], None]:
        self._allow(shared)
        module, name, start = self._module, self._name, _cuda().cuLaunchKernel
        pointers = (c_void_p * 1)(ctypes.addressof(args))
        before = (self._function, *map(c_uint, (*grid, threads, 1, 1, shared)))
        device, current = module.device, torch.cuda.current_stream

        def launch(keep: Structure = args) -> None:
            stream = current(device).cuda_stream
            status = start(*before, stream, pointers, None)
            if status == INVALID_CONTEXT:  # a thread that has not used the device yet
                module.make_current()
                status = start(*before, stream, pointers, None)
            if status:
                _check(status, f"the launch of {name}")

        return launch
