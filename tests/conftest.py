"""Several tests run side by side: one thread each, and no property test is timed."""

from pathlib import Path

import pytest
import torch
from hypothesis import settings

from fedtiny.errors import naming_flags
from fedtiny.native.library import available

settings.register_profile("untimed", settings(deadline=None))
settings.load_profile("untimed")


@pytest.fixture(scope="session", autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def _sentences_name_flags():
    """As on the command line; what they name in Python is for tests/api."""
    with naming_flags():
        yield


NATIVE = ("native", "bench", "runs/test_backend.py", "cli/test_bench.py")


def pytest_collection_modifyitems(items):
    """Without a C++ compiler fedtiny is installed without its native library, and works."""
    if available():
        return
    here = Path(__file__).parent
    skip = pytest.mark.skip(reason="needs the native library")
    for item in items:
        if any(item.path.is_relative_to(here / place) for place in NATIVE):
            item.add_marker(skip)
