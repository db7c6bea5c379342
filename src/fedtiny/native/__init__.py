"""Sparse training on a CPU in native code: no torch, no dense tensors, no masks.

`library` loads the compiled code, `model` runs a graph (fedtiny.graph) with it.
"""
