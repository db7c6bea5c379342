"""Every kind of sparse kernel once, on small shapes, for NVIDIA's compute-sanitizer.

compute-sanitizer --tool racecheck python -m tests.devices.gpu.sanitized
compute-sanitizer --tool memcheck python -m tests.devices.gpu.sanitized
"""

import numpy as np
import torch

from fedtiny import models
from fedtiny.data import ImageSet
from fedtiny.data.transforms import Preparation
from fedtiny.devices.device_data import DeviceData
from fedtiny.devices.engine import Adam, RngKey
from fedtiny.devices.gpu.image_store import Images
from fedtiny.devices.gpu.sparse.choice import plan_for
from fedtiny.devices.gpu.sparse.network import SparseNetwork
from fedtiny.devices.gpu.sparse.trainer import Trainer, Training
from fedtiny.models.networks import BUILDERS
from fedtiny.sparse.mask import Mask
from fedtiny.sparse.theta import Theta

SHAPE, CLASSES, WIDTH, BATCH, DENSITY = (3, 32, 32), 10, 16, 4, 0.1


def train(name: str, precision: str) -> None:
    """One step of two devices, the second of which then drops out, and one more of the first."""
    draw, device = np.random.default_rng(0), torch.device("cuda", 0)
    model = BUILDERS[name](SHAPE[0], CLASSES, WIDTH)
    graph = models.traced(model, SHAPE)
    spec = models.analyze(model, SHAPE, graph)
    plan = plan_for(model, spec, graph, device, batch=BATCH, precision=precision)
    kept = {
        layer: np.sort(draw.choice(size, int(DENSITY * size), replace=False))
        for layer, size in spec.sizes.items()
    }
    state = {key: value.numpy() for key, value in model.state_dict().items()}
    theta = Theta.from_tensors(state, Mask(spec, kept))
    images = draw.integers(0, 256, (3 * BATCH, *SHAPE), dtype=np.uint8)
    data = ImageSet(images, draw.integers(0, CLASSES, len(images)), tuple("abcdefghij"))
    preparation = Preparation((0.5,) * 3, (0.25,) * 3, 4, True, 8)
    network = SparseNetwork(plan, 2, device, adam=True)
    trainer = Trainer(network, Images(data, preparation, device), None, graphs=False)
    parts = (np.arange(2 * BATCH), np.arange(2 * BATCH, 3 * BATCH))
    shards = [DeviceData(number, data, part, part[:2]) for number, part in enumerate(parts)]
    trained = trainer.train(theta, [Training(s, RngKey(0, 0, s.device), 1) for s in shards], Adam())
    torch.cuda.synchronize()
    assert all(np.isfinite(each.vector).all() for each in trained)
    print(name, precision, [each.loss for each in trained])


if __name__ == "__main__":
    for name, precision in (("resnet18", "bf16"), ("vgg11_small", "bf16"), ("small", "fp32")):
        train(name, precision)
