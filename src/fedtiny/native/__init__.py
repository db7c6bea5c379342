"""Sparse training on a CPU in native code: no torch, no dense tensors, no masks.

`description` says what a network is, `library` loads the compiled code, `model` runs it;
`translate` (the one file here that imports torch) describes a torch network.
"""
