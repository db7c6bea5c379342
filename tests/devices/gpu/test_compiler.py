"""Kernels built at run time: the same source on a CPU, thread by thread, and on a GPU."""

from concurrent.futures import ThreadPoolExecutor
from ctypes import Structure, c_int, c_void_p
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from fedtiny.devices.gpu.sparse import cache, driver, emulation, nvrtc
from fedtiny.devices.gpu.sparse.compiler import compile_kernels, unavailable, with_header
from fedtiny.errors import KernelError

CPU = torch.device("cpu")
SOURCE = """
struct Args { const float *a, *b; float* out; int count, extra; };
template <int FACTOR, bool SUM>
static __device__ __forceinline__ void scaled(const Args& args) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < args.count) args.out[i] = fmaf(FACTOR, __ldg(args.a + i), SUM ? __ldg(args.b + i) : 0.f);
}
static __device__ __forceinline__ float warp_sum(float v) {
  for (int lanes = 16; lanes; lanes >>= 1) v += __shfl_xor_sync(0xffffffffu, v, lanes);
  return v;
}
template <int WARPS>
static __device__ __forceinline__ float block_sum(float v) {
  SHARED(float, sums, [WARPS]);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  v = warp_sum(v);
  if (lane == 0) sums[warp] = v;
  __syncthreads();
  return warp_sum(lane < WARPS ? sums[lane] : 0.f);
}
KERNEL(add, Args, 256, 2) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= args.count) return;
  args.out[i] = args.a[i] + args.b[i];
}
KERNEL(sum_of_warps, Args, 256, 1) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  const float sum = warp_sum(i < args.count ? args.a[i] : 0.f);
  if (i % 32 == 0) args.out[i / 32] = sum;
}
KERNEL(sum_of_blocks, Args, 256, 1) {
  if ((int)blockIdx.y == args.extra) return;  // the block, before its barrier
  const int i = (blockIdx.y * gridDim.x + blockIdx.x) * blockDim.x + threadIdx.x;
  const float sum = block_sum<8>(i < args.count ? args.a[i] : 0.f);
  if (threadIdx.x == 0) args.out[blockIdx.y * gridDim.x + blockIdx.x] = sum;
}
KERNEL(reversed, Args, 1024, 1) {
  DYN_SHARED(bytes);
  float4* four = (float4*)bytes;
  const int i = blockIdx.x * blockDim.x + threadIdx.x, last = blockDim.x - 1 - threadIdx.x;
  const float v = i < args.count ? args.a[i] : 0.f;
  four[threadIdx.x] = make_float4(v, v + 1.f, v + 2.f, v + 3.f);
  __syncthreads();
  if (i < args.count) args.out[i] = four[last].x + four[last].w;
}
KERNEL(words, Args, 64, 1) {
  const uint32_t packed = pack_bf16(args.a[threadIdx.x], args.b[threadIdx.x]);
  const unsigned third = __shfl_sync(0xffffffffu, packed, 3);
  const unsigned other = third ^ __shfl_xor_sync(0xffffffffu, packed, 1);
  __syncwarp();
  const int place = max(0, min((int)threadIdx.x, args.count - 1));
  args.out[2 * place] = __uint_as_float(packed);
  args.out[2 * place + 1] = __int_as_float((int)other);
}
"""


class Args(Structure):
    _fields_ = (("a", c_void_p), ("b", c_void_p), ("out", c_void_p), ("n", c_int), ("x", c_int))


@pytest.fixture(autouse=True)
def folder(monkeypatch, tmp_path_factory):
    """One cache for this file, not the user's."""
    made = tmp_path_factory.getbasetemp() / "compiled"
    monkeypatch.setenv("FEDTINY_CACHE", str(made))
    return made


@pytest.fixture(
    params=[
        "cpu",
        pytest.param(
            "cuda",
            marks=[
                pytest.mark.gpu,
                pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
                pytest.mark.filterwarnings("default"),
            ],
        ),
    ]
)
def device(request):
    return torch.device(request.param)


def numbers(count, seed=0):
    return np.random.default_rng(seed).standard_normal(count).astype(np.float32)


class Launched:
    """One kernel, its tensors and its arguments on a device."""

    def __init__(self, device, name, size, a, b=None, extra=-1):
        self.a, self.b = (
            torch.from_numpy(np.ascontiguousarray(v)).to(device)
            for v in (a, b if b is not None else a)
        )
        self.out = torch.full((size,), -1.0, device=device)
        pointers = (tensor.data_ptr() for tensor in (self.a, self.b, self.out))
        self.args = Args(*pointers, len(a), extra)
        self.kernel = compile_kernels(SOURCE + appended(), device)[name]

    def __call__(self, grid, threads, shared=0):
        self.kernel.launch(grid, threads, shared, self.args)
        return self.out.cpu().numpy()


def appended():
    """Instantiations as a program writes them."""
    kinds = {"scaled_3": "scaled<3, false>", "scaled_5_sum": "scaled<5, true>"}
    lines = (f"KERNEL({name}, Args, 128, 4) {{ {call}(args); }}" for name, call in kinds.items())
    return "\n".join(lines)


def test_threads_that_return_early(device):
    a, b = numbers(1000), numbers(1000, 1)
    found = Launched(device, "add", 1000, a, b)((8, 1, 1), 128)
    np.testing.assert_array_equal(found, a + b)


def test_shuffles_within_warps(device):
    a = numbers(640)
    found = Launched(device, "sum_of_warps", 24, a)((3, 1, 1), 256)
    whole = np.pad(a, (0, 128)).reshape(24, 32)
    np.testing.assert_allclose(found, whole.sum(1), rtol=1e-5, atol=1e-5)


def test_barriers_shared_memory_and_a_block_that_leaves(device):
    a = numbers(2 * 3 * 256)
    found = Launched(device, "sum_of_blocks", 6, a, extra=1)((2, 3, 1), 256)
    expected = a.reshape(6, 256).sum(1)
    expected[2:4] = -1
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("threads", [100, 1024])
def test_dynamic_shared_memory(device, threads):
    a = numbers(3 * threads)
    found = Launched(device, "reversed", 3 * threads, a)((3, 1, 1), threads, 16 * threads)
    backwards = a.reshape(3, threads)[:, ::-1].reshape(-1)
    np.testing.assert_array_equal(found, backwards + (backwards + np.float32(3)))


def test_more_shared_memory_than_a_kernel_has_by_itself(device):
    a = numbers(1024)
    found = Launched(device, "reversed", 1024, a)((1, 1, 1), 1024, 90_000)
    np.testing.assert_array_equal(found, a[::-1] + (a[::-1] + np.float32(3)))


def test_instantiations_of_templates(device):
    a, b = numbers(300), numbers(300, 1)
    three = Launched(device, "scaled_3", 300, a)((3, 1, 1), 128)
    np.testing.assert_array_equal(three, 3 * a)
    five = Launched(device, "scaled_5_sum", 300, a, b)((3, 1, 1), 128)
    exact = 5 * a.astype(np.float64) + b
    np.testing.assert_array_equal(five, exact.astype(np.float32))


def test_words_of_bf16_and_their_bits(device):
    a, b = numbers(32), numbers(32, 1)
    found = Launched(device, "words", 64, a, b)((1, 1, 1), 32).view(np.uint32).reshape(32, 2)
    low, high = (torch.from_numpy(v).bfloat16().view(torch.int16).numpy() for v in (a, b))
    packed = low.view(np.uint16) | high.view(np.uint16).astype(np.uint32) << 16
    np.testing.assert_array_equal(found[:, 0], packed)
    np.testing.assert_array_equal(found[:, 1], packed[3] ^ packed[np.arange(32) ^ 1])


def test_what_is_bound_launches_again_with_the_arguments_of_then(device):
    job = Launched(device, "add", 10, numbers(10), numbers(10, 1))
    launch = job.kernel.bind((1, 1, 1), 32, 0, job.args)
    job.args.n = 4
    launch()
    assert (job.out[4:] == -1).all()
    job.args.n = 10
    launch()
    np.testing.assert_array_equal(job.out.cpu(), (job.a + job.b).cpu())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.filterwarnings("default")
def test_launches_are_captured_and_come_from_any_thread():
    job = Launched(torch.device("cuda", 0), "add", 10, numbers(10), numbers(10, 1))
    launch = job.kernel.bind((1, 1, 1), 32, 0, job.args)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(launch).result()
    torch.cuda.synchronize()
    assert torch.equal(job.out, job.a + job.b)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch()
    job.a.add_(1)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(job.out, job.a + job.b)


def simple(number):
    return f"struct A {{ int x; }}; KERNEL(nothing, A, 32, 1) {{ (void)args; }} // {number}"


@pytest.fixture
def empty(monkeypatch, tmp_path):
    monkeypatch.setenv("FEDTINY_CACHE", str(tmp_path / "new"))
    return tmp_path / "new" / "kernels"


@pytest.fixture
def builds(monkeypatch):
    made, really = [], emulation._compile
    monkeypatch.setattr(emulation, "_compile", lambda *given: (made.append(given), really(*given)))
    return made


def test_what_was_built_is_not_built_again(empty, builds):
    for _ in range(2):
        assert compile_kernels(simple(1), CPU)["nothing"]
    assert len(builds) == len([*empty.iterdir()]) == 1
    compile_kernels(simple(2), CPU)
    assert len(builds) == 2


def test_a_damaged_cache_is_built_anew(empty, builds):
    compile_kernels(simple(3), CPU)
    (kept,) = empty.iterdir()
    kept.write_bytes(kept.read_bytes()[:1000])
    assert compile_kernels(simple(3), CPU)["nothing"]
    assert len(builds) == 2
    assert compile_kernels(simple(3), CPU)["nothing"]
    assert len(builds) == 2


def test_a_cache_that_cannot_be_written_is_no_error(monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("FEDTINY_CACHE", str(tmp_path / "file"))
    assert compile_kernels(simple(4), CPU)["nothing"]


def test_where_the_cache_is(monkeypatch, tmp_path):
    monkeypatch.delenv("FEDTINY_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache.folder() == tmp_path / "fedtiny" / "kernels"


def test_a_source_with_an_error_gives_its_first_line_and_the_log():
    with pytest.raises(
        KernelError, match=r"do not compile: kernels.cu:2:.*error.*nonsense"
    ) as told:
        compile_kernels("\nnonsense;", CPU)
    assert "nonsense" in told.value.__notes__[0]


def test_a_kernel_that_is_not_there():
    with pytest.raises(KernelError, match="no kernel other"):
        compile_kernels(simple(1), CPU)["other"]


def test_no_compiler(monkeypatch):
    monkeypatch.setattr(emulation, "compiler", lambda: None)
    assert "set CXX" in unavailable(CPU)
    with pytest.raises(KernelError, match=r"C[+][+] compiler"):
        compile_kernels(simple(1), CPU)


@pytest.fixture
def card(monkeypatch):
    """A machine that seems to have a GPU."""
    found = SimpleNamespace(capability=(9, 0))
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: found.capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: "Old Card")
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    return found


CUDA = torch.device("cuda")


def test_no_cuda(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert unavailable(CUDA) == "sparse kernels need a CUDA device, and there is none"


def test_an_old_card(card):
    card.capability = (7, 5)
    assert unavailable(CUDA) == "sparse kernels need compute capability 8.0, and Old Card has 7.5"


def test_no_nvrtc(card, monkeypatch):
    monkeypatch.setattr(nvrtc, "candidates", lambda: iter(["/nowhere/libnvrtc.so.13"]))
    monkeypatch.setattr(nvrtc, "library", nvrtc.library.__wrapped__)
    assert "NVRTC, which is not installed" in unavailable(CUDA)
    with pytest.raises(KernelError, match="pip install nvidia-cuda-nvrtc"):
        compile_kernels(simple(1), CUDA)


def test_no_driver(card, monkeypatch):
    monkeypatch.setattr(nvrtc, "unavailable", lambda: "")
    monkeypatch.setattr(driver, "library", lambda: None)
    assert "libcuda.so.1, which is missing" in unavailable(CUDA)


def test_nvrtc_is_looked_for_where_pip_puts_it(card, monkeypatch, tmp_path):
    for name in ("cu13/lib/libnvrtc.so.13", "cuda_nvrtc/lib/libnvrtc.so.12"):
        for path in (tmp_path / name, tmp_path / name.replace("nvrtc.so", "nvrtc-builtins.so")):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
    spec = SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr(nvrtc.importlib.util, "find_spec", lambda name: spec)
    found = [*nvrtc.candidates()]
    pip = [path for path in found if path.startswith(str(tmp_path))]
    assert pip == [
        str(tmp_path / "cu13/lib/libnvrtc.so.13"),
        str(tmp_path / "cuda_nvrtc/lib/libnvrtc.so.12"),
    ]
    assert "libnvrtc.so.13" in found


needs_nvrtc = pytest.mark.skipif(bool(nvrtc.unavailable()), reason="needs NVRTC")


@needs_nvrtc
def test_nvrtc_compiles_without_a_card(folder):
    source = with_header("device.h", SOURCE + appended())
    assert nvrtc.compile_source(source, (9, 0)).startswith(b"\x7fELF")
    assert b".target sm_" in nvrtc.compile_source(source, (99, 0))
    assert {path.suffix for path in (folder / "kernels").iterdir()} >= {".cubin", ".ptx"}


@needs_nvrtc
def test_an_error_that_nvrtc_finds():
    with pytest.raises(
        KernelError, match=r"do not compile: kernels.cu.2.: error: this declaration"
    ):
        nvrtc.compile_source(with_header("device.h", "\nnonsense;"), (8, 0))
