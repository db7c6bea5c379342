"""What the emulation of a GPU notices: writes beside memory, vain waits, missing barriers."""

from ctypes import Structure, c_int, c_void_p

import numpy as np
import pytest
import torch

from fedtiny.devices.gpu.sparse.compiler import compile_kernels
from fedtiny.errors import KernelError

CPU = torch.device("cpu")
FAULTY = """
struct Args { float* out; int count; };
KERNEL(dynamic, Args, 64, 1) {
  DYN_SHARED(bytes);
  ((float*)bytes)[(int)threadIdx.x + args.count] = 1.f;
}
KERNEL(fixed, Args, 64, 1) {
  SHARED(float, few, [8]);
  float* volatile first = few;
  if (threadIdx.x == 0) first[args.count] = 1.f;
}
KERNEL(stuck, Args, 64, 1) {
  if (threadIdx.x < 7) __syncthreads();
  __syncwarp();
}
KERNEL(fresh, Args, 64, 1) {
  DYN_SHARED(bytes);
  SHARED(float, fixed, [64]);
  const int i = threadIdx.x;
  args.out[blockIdx.x * 128 + i] = ((float*)bytes)[i];
  args.out[blockIdx.x * 128 + 64 + i] = fixed[i];
  ((float*)bytes)[i] = fixed[i] = 1.f;
}
KERNEL(gone, Args, 64, 1) {
  if (threadIdx.x % 2) return;
  args.out[threadIdx.x] = __shfl_xor_sync(0xffffffffu, 1.f, args.count);
}
KERNEL(unguarded, Args, 64, 1) {  // a barrier is missing
  SHARED(float, values, [64]);
  values[threadIdx.x] = threadIdx.x;
  args.out[blockIdx.x * 64 + threadIdx.x] = values[63 - threadIdx.x];
}
"""


class Few(Structure):
    _fields_ = (("out", c_void_p), ("count", c_int))


@pytest.fixture(autouse=True)
def folder(monkeypatch, tmp_path_factory):
    """One cache for this file, not the user's."""
    made = tmp_path_factory.getbasetemp() / "compiled"
    monkeypatch.setenv("FEDTINY_CACHE", str(made))
    return made


def faulty(name, grid=1, threads=64, shared=256, count=0, size=256):
    out = np.zeros(size, np.float32)
    args = Few(out.ctypes.data, count)
    compile_kernels(FAULTY, CPU)[name].launch((grid, 1, 1), threads, shared, args)
    return out


@pytest.mark.parametrize(
    ("name", "count", "byte", "size"),
    [
        ("dynamic", 1, 256, 256),
        ("dynamic", -1, -4, 256),
        ("fixed", 8, 32, 32),
        ("fixed", -1, -4, 32),
    ],
)
def test_a_write_beside_shared_memory_is_reported(name, count, byte, size):
    with pytest.raises(
        KernelError, match=f"{name}, block .0, 0, 0.: a write to byte {byte} of {size}"
    ):
        faulty(name, count=count)
    faulty(name)


def test_threads_that_wait_in_vain_are_reported_and_the_next_grid_runs():
    with pytest.raises(KernelError, match="thread 7 waits for threads of its warp"):
        faulty("stuck")
    faulty("dynamic")


def test_too_many_threads_are_reported():
    with pytest.raises(KernelError, match="dynamic: 96 threads, but at most 64"):
        faulty("dynamic", threads=96)


def test_shared_memory_is_not_a_number_when_a_block_starts():
    assert np.isnan(faulty("fresh", grid=2)).all()


def test_a_thread_that_returned_has_nothing_to_shuffle():
    assert np.isnan(faulty("gone", count=1)[:64:2]).all()
    assert (faulty("gone", count=2)[:64:2] == 1).all()


def test_a_missing_barrier_shows():
    found = faulty("unguarded", grid=2, size=128).reshape(2, 64)
    first, second = np.isnan(found)
    assert first[:32].all()
    assert second[32:].all()
