"""Secure aggregation: the server learns the sum of the devices' vectors and no single one.

After Bonawitz et al. (2017) and Bell et al. (2020), with keys that live for a run:

    keys      each device signs its X25519 key with its node's own Ed25519 key, once
    masked    it sends its vector plus masks shared with its neighbors, which cancel in the sum,
              plus a mask of its own, whose seed it shares among the neighbors (Shamir)
    reveal    only if devices dropped out: survivors tell the seeds of masks shared with these, of
              this exchange alone; who is silent counts as dropped out too, until none is
    unmask    survivors tell their shares of the own seeds of survivors

So an exchange without dropouts takes one message and one unmasking. No key is ever shared or told.
A device tells about a peer the seed of a shared mask or the share of its own seed, never both, and
neither if fewer than a threshold of its neighbors are left; `device.py` has every refusal.
"""
