"""Kernels that compute at the kept weights only, built at run time from one CUDA C++ source."""
