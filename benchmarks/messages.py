"""Bytes and milliseconds of sparse messages: python benchmarks/messages.py [--density 0.1 ...]."""

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np

from fedtiny.federation.messages import Request, train
from fedtiny.federation.wire import (
    NOTHING_KNOWN,
    Known,
    decode_request,
    encode_request,
    request_size,
)
from fedtiny.models import analyze, build
from fedtiny.models.param_spec import ParamSpec
from fedtiny.sparse.densities import uniform
from fedtiny.sparse.mask import Mask
from fedtiny.sparse.theta import Theta, length


def random_theta(param_spec: ParamSpec, density: float) -> Theta:
    """A model under a random mask."""
    draw = np.random.default_rng(0)
    kept = {
        layer: np.sort(draw.choice(size, size=int(count), replace=False))
        for (layer, size), count in zip(
            param_spec.sizes.items(), uniform(param_spec, density), strict=True
        )
    }
    mask = Mask(param_spec, kept)
    return Theta(mask, draw.standard_normal(length(mask), dtype=np.float32))


def milliseconds(work: Callable[[], object], repeats: int = 7) -> float:
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        work()
        times.append(1000 * (time.perf_counter() - started))
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--density", type=float, nargs="+", default=[0.1, 0.05, 0.01, 0.001])
    shape = (3, 32, 32)
    param_spec = analyze(build("resnet18", shape, 10), shape)
    dense = 4 * (param_spec.prunable_count + param_spec.dense_count)
    print(f"ResNet18, {param_spec.prunable_count:,} prunable weights, {dense / 1e6:.1f} MB dense")
    for density in parser.parse_args().density:
        theta = random_theta(param_spec, density)
        request = Request("train", "fedtiny", 0, (train(5),), theta)
        known = Known(mask=theta.mask.version)
        whole, again = (request_size(request, k) for k in (NOTHING_KNOWN, known))
        data = encode_request(request, NOTHING_KNOWN)
        encode = milliseconds(lambda r=request: encode_request(r, NOTHING_KNOWN))
        decode = milliseconds(lambda d=data: decode_request(d, param_spec))
        print(
            f"density {density:<6g} {whole / 1e6:7.3f} MB with its mask ({whole / dense:.2%} of "
            f"dense), {again / 1e6:7.3f} MB without; positions "
            f"{(whole - again) / theta.mask.count:.3f} bytes a weight; "
            f"encode {encode:.1f} ms, decode {decode:.1f} ms"
        )


if __name__ == "__main__":
    main()
