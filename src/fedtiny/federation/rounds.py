"""The round. Start reading here: this is Algorithm 2, and every method goes through it."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from fedtiny.errors import FedTinyError
from fedtiny.federation import averaging, private, server_optimizer
from fedtiny.federation.method import Method
from fedtiny.federation.public import before_batch_norm
from fedtiny.federation.server import FINAL, Server
from fedtiny.federation.transport import REDUCERS, Outcome
from fedtiny.sparse.adjust import Changes, mask_changes
from fedtiny.sparse.mask import Mask


@dataclass(frozen=True)
class RoundResult:
    """What happened in a round; `counted` is false where too few devices answered."""

    round: int
    mask: Mask
    """What the devices trained under."""
    counted: bool
    outcome: Outcome
    changes: Changes


def federate(server: Server, method: Method, rounds: int) -> Iterator[RoundResult]:
    """Train up to the given number of rounds, from wherever the server stands."""
    prepare(server, method)
    while not is_over(server, rounds):
        yield next_round(server, method, rounds)


def next_round(
    server: Server, method: Method, rounds: int, without: Collection[int] = ()
) -> RoundResult:
    """Play a round of so many; after the last, an average over rounds becomes the model."""
    result = play_round(server, method, without)
    if is_over(server, rounds):
        averaging.finish(server)
    return result


def is_over(server: Server, rounds: int) -> bool:
    """Whether all rounds are played, or another would exceed the budget of privacy."""
    return server.round >= rounds or private.is_spent(server)


def prepare(server: Server, method: Method) -> None:
    """Before the first round: coarse pruning (Alg. 1 for FedTiny). Done once in a run."""
    if server.coarse_pruned:
        return
    with _contract(method):
        method.check(server.param_spec)
        private.begin(server, len(method.coarse_requests(server.param_spec)))
        before = server.theta
        method.coarse_prune(server)
        if power := method.rescale:
            layers = before_batch_norm(server.public, server.param_spec)
            server.theta = server.theta.with_norms_of(before, layers, power)
        _check_density(server, method, "before the first round")
    server.coarse_pruned = True


def play_round(server: Server, method: Method, without: Collection[int] = ()) -> RoundResult:
    """One round: devices train and measure, the server averages and adjusts (Alg. 2)."""
    mask = server.theta.mask
    server.arrays.pop(FINAL, None)  # of a run that was over, and now goes on
    with _contract(method):
        program = (*method.train_locally(server), *method.score(server))
        outcome = server.ask(
            "train",
            program,
            arrays=method.request_arrays(server),
            reducer=method.reducer,
            top_weights=method.top_weights(server),
            without=without,
        )
        counted = server.enough(outcome)
        if counted:
            mean = method.aggregate(server, outcome)
            server.theta = server_optimizer.step(server, mean)
            method.adjust(server, outcome)
            server_optimizer.follow(server, mean.mask, server.theta.mask)
            averaging.update(server, mask)
            _check_density(server, method, f"after round {server.round + 1}")
    server.round += 1
    changes = mask_changes(mask, server.theta.mask)
    return RoundResult(server.round - 1, mask, counted, outcome, changes)


@contextmanager
def _contract(method: Method) -> Iterator[None]:
    """Blame a method for what goes wrong in its hooks, by name and in one sentence."""
    if method.reducer not in REDUCERS:
        known = ", ".join(repr(name) for name in REDUCERS)
        raise FedTinyError(
            f"method '{method.name}' names the reducer '{method.reducer}'; there are {known}"
        )
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise FedTinyError(
            f"method '{method.name}' broke its contract: {type(error).__name__}: {error}"
        ) from error


def _check_density(server: Server, method: Method, when: str) -> None:
    density, limit = server.theta.mask.density, method.density_limit(server.round)
    if density > limit + 1e-9:
        raise FedTinyError(
            f"method '{method.name}' broke its contract: density {density:.6g} {when} is above "
            f"its limit {limit:.6g}"
        )
