"""Several tests run side by side: one thread each, and no property test is timed."""

import pytest
import torch
from hypothesis import settings

settings.register_profile("untimed", settings(deadline=None))
settings.load_profile("untimed")


@pytest.fixture(scope="session", autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
