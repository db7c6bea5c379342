"""Many devices on one GPU: static buffers, captured steps, lanes side by side.

Everything here also runs on a CPU, without graphs, which is how it is tested.
"""
