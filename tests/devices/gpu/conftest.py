"""Lanes choose kernels for the whole process; the next test shall not notice."""

import pytest
import torch


@pytest.fixture(autouse=True)
def _same_kernels_afterwards():
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    before = cudnn.allow_tf32, cudnn.deterministic, cudnn.benchmark, matmul.allow_tf32
    yield
    cudnn.allow_tf32, cudnn.deterministic, cudnn.benchmark, matmul.allow_tf32 = before
