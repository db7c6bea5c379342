"""The handwritten digits that scikit-learn carries: real data without a network."""

import numpy as np

from fedtiny.data.choose import hold_out
from fedtiny.data.images import DataSet, ImageSet
from fedtiny.data.statistics import channel_statistics
from fedtiny.extras import require
from fedtiny.randomness import generator

SPLIT_SEED = 0
TEST_SHARE = 0.2
BRIGHTEST = 16


def digits() -> DataSet:
    """1,797 grey images of 8x8 pixels, a fifth of each digit held out for testing.

    The split is the same for every run, whatever the run's seed.
    """
    raw = require("sklearn.datasets", extra="data").load_digits()
    images = np.rint(raw.images * (255 / BRIGHTEST)).astype(np.uint8)[:, None]
    whole = ImageSet(images, raw.target.astype(np.int64), tuple("0123456789"))
    draw = generator(SPLIT_SEED, "digits split")
    train, test = map(whole.subset, hold_out(whole.labels, TEST_SHARE, draw))
    mean, std = channel_statistics(train.images)
    return DataSet("digits", train, test, mean, std, flips=False, crop_padding=0)
