"""Build CUDA C++ at run time: for a GPU with NVRTC, or the same source thread by thread on a CPU.

The source declares its kernels with macros that both headers beside this file define:

    struct Args { const float* from; float* to; int count; };
    KERNEL(twice, Args, 256, 1) {  // at most 256 threads a block, at least 1 block a multiprocessor
      const int i = blockIdx.x * blockDim.x + threadIdx.x;
      if (i < args.count) args.to[i] = 2 * args.from[i];
    }

Shared memory is declared with ``SHARED(float, sums, [32])`` or ``DYN_SHARED(bytes)``. On a CPU it
starts as NaN bits, and a write beside it is reported.
"""

from functools import cache
from pathlib import Path

import torch

from fedtiny.devices.gpu.sparse import driver, emulation, nvrtc
from fedtiny.devices.gpu.sparse.kernel import Kernels
from fedtiny.errors import KernelError

CUDA = Path(__file__).with_name("cuda")
OLDEST = (8, 0)  # the first with bf16


def compile_kernels(source: str, device: torch.device) -> Kernels:
    """The kernels of a source for a device, built unless the cache has them."""
    if reason := unavailable(device):
        raise KernelError(reason)
    if device.type == "cpu":
        return emulation.load(with_header("emulation.h", source))
    index = torch.cuda.current_device() if device.index is None else device.index
    capability = torch.cuda.get_device_capability(index)
    return driver.load(nvrtc.compile_source(with_header("device.h", source), capability), index)


def unavailable(device: torch.device) -> str:
    """Why sparse kernels cannot be built for a device; empty if they can."""
    if device.type == "cpu":
        return emulation.unavailable()
    if device.type != "cuda" or torch.version.cuda is None or not torch.cuda.is_available():
        return "sparse kernels need a CUDA device, and there is none"
    capability = torch.cuda.get_device_capability(device)
    if capability < OLDEST:
        name = torch.cuda.get_device_name(device)
        return f"sparse kernels need compute capability 8.0, and {name} has {_dotted(capability)}"
    return nvrtc.unavailable() or driver.unavailable() or _trouble(capability, device.index or 0)


@cache
def _trouble(capability: tuple[int, int], index: int) -> str:
    """What goes wrong with the smallest of kernels."""
    source = with_header("device.h", "struct None {};\nKERNEL(nothing, None, 32, 1) {}\n")
    try:
        driver.load(nvrtc.compile_source(source, capability), index)
    except KernelError as error:
        return str(error)
    return ""


def _dotted(capability: tuple[int, int]) -> str:
    return ".".join(map(str, capability))


@cache
def _header(name: str) -> str:
    return (CUDA / name).read_text(encoding="utf-8")


def with_header(name: str, source: str) -> str:
    """A source with the header that defines what its kernels are declared with."""
    return f'#line 1 "{name}"\n{_header(name)}\n#line 1 "kernels.cu"\n{source}'
