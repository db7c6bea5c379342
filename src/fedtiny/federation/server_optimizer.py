"""The server's optimizer: the devices' mean as a pseudo-gradient (Reddi et al., ICLR 2021).

Its state follows the mask by position: a grown weight begins with zero state, that of a dropped one
is forgotten. Batch-norm statistics are the plain mean, whatever the optimizer.
"""

import numpy as np
from numpy.typing import NDArray

from fedtiny.config import ResolvedServer
from fedtiny.federation.server import Server
from fedtiny.sparse.mask import Mask
from fedtiny.sparse.theta import Theta, length

FIRST, SECOND = "server optimizer: first moment", "server optimizer: second moment"
DEFAULT_LR = {"fedavg": 1.0, "fedavgm": 1.0, "fedadam": 0.01, "fedyogi": 0.01}
STATE = {"fedavg": (), "fedavgm": (FIRST,), "fedadam": (FIRST, SECOND), "fedyogi": (FIRST, SECOND)}

Doubles = NDArray[np.float64]


def step(server: Server, mean: Theta) -> Theta:
    """The new global model; with plain averaging it is the mean itself."""
    config = server.config.server
    lr = DEFAULT_LR[config.optimizer] if config.lr is None else config.lr
    if config.optimizer == "fedavg" and lr == 1:
        return mean
    before = server.theta.remasked(mean.mask)
    follow(server, server.theta.mask, mean.mask)
    delta = mean.vector.astype(np.float64) - before.vector
    state = {
        name: server.arrays.get(name, np.zeros(length(mean.mask), np.float32)).astype(np.float64)
        for name in STATE[config.optimizer]
    }
    direction = _direction(config, delta, state)
    server.arrays |= {name: values.astype(np.float32) for name, values in state.items()}
    moved = Theta(mean.mask, (before.vector + lr * direction).astype(np.float32))
    return moved.with_dense({name: mean.tensor(name) for name in mean.param_spec.statistics})


def _direction(config: ResolvedServer, delta: Doubles, state: dict[str, Doubles]) -> Doubles:
    """Where to go, with the state after this round put in place of that before."""
    if config.optimizer == "fedavg":
        return delta
    if config.optimizer == "fedavgm":
        state[FIRST] = config.beta1 * state[FIRST] + delta
        return state[FIRST]
    square, fresh = delta**2, 1 - config.beta2
    state[FIRST] = config.beta1 * state[FIRST] + (1 - config.beta1) * delta
    if config.optimizer == "fedadam":
        state[SECOND] = config.beta2 * state[SECOND] + fresh * square
    else:
        state[SECOND] = state[SECOND] - fresh * square * np.sign(state[SECOND] - square)
    return state[FIRST] / (np.sqrt(state[SECOND]) + config.tau)


def follow(server: Server, before: Mask, mask: Mask) -> None:
    """Bring the state from one mask to another."""
    if before == mask:
        return
    for name in (FIRST, SECOND):
        if name in server.arrays:
            server.arrays[name] = Theta(before, server.arrays[name]).remasked(mask).vector
