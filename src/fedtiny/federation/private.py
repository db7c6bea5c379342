"""Differential privacy of a run, client level: what it has spent, and what a question may ask.

Every question to devices is one release, whatever it asks: the same sampling, clip and noise.
The account is in the server's memory, so a checkpoint has it and no release counts twice.
"""

import secrets
from collections.abc import Sequence
from dataclasses import asdict
from math import inf
from typing import TYPE_CHECKING, Any

from fedtiny.config import Config
from fedtiny.errors import ConfigError
from fedtiny.extras import require
from fedtiny.federation.bn_statistics import freezes_bn
from fedtiny.federation.verbs import Losses, Program, SharedGradients, Train, Verb
from fedtiny.privacy.accountant import Release, Spent, epsilon, noise_for
from fedtiny.privacy.mechanism import Mechanism, adapted
from fedtiny.randomness import generator

if TYPE_CHECKING:
    from fedtiny.federation.method import Method
    from fedtiny.federation.server import Server
    from fedtiny.federation.transport import Outcome

PRIVACY = "privacy"  # the account, in a server's memory
SECRET_BITS = 128


def begin(server: "Server", questions: int) -> None:
    """Open the account before the first round; so many questions come before it.

    With a budget and no noise, the noise is found that spends it by the last planned round.
    """
    config = server.config.privacy
    if not config.differential or PRIVACY in server.memory:
        return
    releases = (server.config.rounds or 0) + questions
    noise = planned_noise(server.config, len(server.transport.devices), releases)
    clip = config.clip_start if config.clip == "adaptive" else config.clip
    key = secrets.randbits(SECRET_BITS) if config.secret_noise else server.config.seed
    opened = {"noise_multiplier": noise, "clip": clip, "releases": [], "key": f"{key:x}"}
    server.memory[PRIVACY] = opened
    least = questions + 1
    if _exceeds(server, least):
        raise ConfigError(
            f"--privacy.noise-multiplier {noise:g} exceeds --privacy.epsilon {config.epsilon:g} "
            "in the first round; raise one of them"
        )


def planned_noise(config: Config, devices: int, releases: int) -> float:
    """The noise multiplier that is set, or the one that spends the budget in so many releases."""
    privacy, noise = config.privacy, config.privacy.noise_multiplier
    if noise != 0:
        require("dp_accounting", extra="dp")  # to fail before the rounds do
    if _delta(config, devices) == 1:
        raise ConfigError("the default of --privacy.delta is 1 for one device; give a smaller one")
    if noise is not None:
        return noise
    assert privacy.epsilon is not None
    release = _planned_release(config, devices, 1.0)
    told = (privacy.epsilon, _delta(config, devices), release, releases)
    return noise_for(*told, privacy.accountant)


def planned(config: Config, devices: int, releases: int) -> dict[str, Any]:
    """What so many releases of a run with so many devices would spend."""
    noise, privacy = planned_noise(config, devices, releases), config.privacy
    spent = [(_planned_release(config, devices, noise), releases)]
    found = epsilon(spent, _delta(config, devices), privacy.accountant)
    return {
        "epsilon": None if found == inf else found,
        "delta": _delta(config, devices),
        "noise_multiplier": noise,
        "releases": releases,
        "sampling": privacy.sampling,
        "accountant": privacy.accountant,
        "noise": privacy.noise,
    }


def delta(server: "Server") -> float:
    """The delta of the run: as is set, or 1 / devices^1.1."""
    return _delta(server.config, len(server.transport.devices))


def _delta(config: Config, devices: int) -> float:
    return devices**-1.1 if config.privacy.delta is None else config.privacy.delta


def sampled(server: "Server") -> list[int]:
    """The devices of the next question: each by a draw of its own, or a fixed number of them."""
    devices, release = list(server.transport.devices), _release(server, 0.0)
    draw = generator(_key(server), "participants", round=_number(server))
    if release.sampling == "poisson":
        chances = draw.random(len(devices))
        return [device for device, own in zip(devices, chances, strict=True) if own < release.rate]
    if release.asked >= len(devices):
        return devices
    chosen = draw.choice(devices, size=int(release.asked), replace=False)
    return sorted(int(device) for device in chosen)


def mechanism(server: "Server", action: str, program: Program) -> Mechanism | None:
    """How the replies to a question become one; nothing if privacy is off."""
    config = server.config
    if not config.privacy.differential:
        return None
    refuse_open_verbs(config.method, program)
    account = server.memory[PRIVACY]
    return Mechanism(
        clip=account["clip"],
        noise_multiplier=account["noise_multiplier"],
        asked=_release(server, 0.0).asked,
        seed=_key(server),
        round=server.round,
        number=_number(server),
        counts_bits=config.privacy.clip == "adaptive" and action == "train",
        frozen=freezes_bn(config.train, server.round, config.rounds or 0),
        shared_by=(config.privacy.neighbors, config.privacy.threshold)
        if config.privacy.noise == "devices"
        else None,
    )


def spend(server: "Server", outcome: "Outcome") -> None:
    """Enter the releases of a question in the account, and let the clip follow."""
    if not server.config.privacy.differential:
        return
    account, config = server.memory[PRIVACY], server.config.privacy
    made = asdict(_release(server, account["noise_multiplier"]))
    releases = [dict(own) for own in account["releases"]]
    if releases and releases[-1].items() >= made.items():
        releases[-1]["times"] += outcome.releases
    else:
        releases.append(made | {"times": outcome.releases})
    clip = account["clip"]
    if outcome.within_clip is not None:
        clip = adapted(clip, outcome.within_clip, config.clip_quantile, config.clip_rate)
    server.memory[PRIVACY] = account | {"releases": releases, "clip": clip}


def is_spent(server: "Server") -> bool:
    """Whether another round would exceed the budget."""
    return PRIVACY in server.memory and _exceeds(server, 1)


def record(server: "Server") -> dict[str, Any]:
    """What a round says of privacy: epsilon so far, None if there is no bound; the next clip."""
    if not server.config.privacy.differential:
        return {}
    return {"epsilon": _spent_epsilon(server), "clip": server.memory[PRIVACY]["clip"]}


def summary(server: "Server") -> dict[str, Any]:
    """What a reader of the run should know of its privacy."""
    if not server.config.privacy.differential:
        return {}
    config = server.config.privacy
    return {
        "privacy": {
            "epsilon": _spent_epsilon(server),
            "delta": delta(server),
            "noise_multiplier": server.memory[PRIVACY]["noise_multiplier"],
            "releases": _number(server),
            "sampling": config.sampling,
            "accountant": config.accountant,
            **({"noise": config.noise} if config.noise != "server" else {}),
        }
    }


def _key(server: "Server") -> int:
    """What noise and sampling are drawn by: the seed, or a secret."""
    return int(server.memory[PRIVACY]["key"], 16)


def check(method: "Method", processes: int = 1) -> None:
    """Refuse a method whose replies are no one vector under one mask, and secrets of several."""
    if method.config.privacy.secret_noise and processes > 1:
        raise ConfigError("--privacy.secret-noise is one process's own; start it without torchrun")
    hides = method.private and not method.device_verbs
    if method.config.privacy.differential and not hides:
        raise ConfigError(
            f"devices of method '{method.name}' send masks, gradients or scores of their own, "
            "which differential privacy cannot hide; use --method fedtiny, set, snip, synflow or "
            "fedavg"
        )


def check_test(config: Config, test: Sequence[object]) -> None:
    """Refuse a run whose model only devices could measure, on their own data."""
    if config.privacy.differential and not test:
        raise ConfigError(
            "devices would measure the model on their own data, to which differential privacy adds "
            "no noise; give the server a test set (flower.test = 'server')"
        )
    if config.privacy.secure_aggregation and not test:
        raise ConfigError(
            "devices would measure the model on their own data, and secure aggregation does not "
            "hide whose accuracy is whose; give the server a test set (flower.test = 'server')"
        )


def refuse_open_verbs(method: str, program: Program) -> None:
    """Refuse a question whose answers have no bounded vector that noise could hide."""
    for verb in program:
        if not _is_private(verb):
            raise ConfigError(
                f"method '{method}' asks devices for '{verb.name}', which differential privacy "
                "does not cover; use --pruning.growth random or shared, or another method"
            )


def remarks(config: Config, norms: Sequence[str]) -> tuple[str, ...]:
    """What whoever starts a private run should know, in sentences; `norms` names its batch norm."""
    if not config.privacy.differential:
        return ()
    return (*_norm_remarks(config, norms), *_seed_remarks(config))


def _norm_remarks(config: Config, norms: Sequence[str]) -> tuple[str, ...]:
    noisy = config.privacy.noise_multiplier != 0 and not freezes_bn(config.train, 0, 1)
    if not norms or not noisy:
        return ()
    return (
        "privacy's noise on the statistics of batch norm may leave the model at chance level; use "
        "a network without it, such as --model lenet5 or resnet18_gn",
    )


def _seed_remarks(config: Config) -> tuple[str, ...]:
    if config.privacy.secret_noise:
        return ()
    if config.privacy.noise == "devices":
        return (
            "simulated devices draw their noise by --seed, so that a run repeats; real ones by a "
            "secret of their own; who is asked follows from --seed without "
            "--privacy.secret-noise",
        )
    return (
        "privacy's noise follows from --seed, which devices know: whoever has it can take the "
        "noise away; with data that matter use --privacy.secret-noise",
    )


def _is_private(verb: Verb) -> bool:
    if isinstance(verb, Train):
        return not verb.sum_dense_gradients
    return isinstance(verb, Losses | SharedGradients)


def _release(server: "Server", noise: float) -> Release:
    """The next release, with this noise."""
    return _planned_release(server.config, len(server.transport.devices), noise)


def _planned_release(config: Config, devices: int, noise: float) -> Release:
    return Release(noise, config.privacy.sampling, config.fleet.fraction, devices)


def _spent(server: "Server") -> Spent:
    """The releases so far."""
    made = server.memory[PRIVACY]["releases"]
    return [
        (Release(**{k: v for k, v in own.items() if k != "times"}), own["times"]) for own in made
    ]


def _number(server: "Server") -> int:
    """How many releases there were."""
    return sum(own["times"] for own in server.memory.get(PRIVACY, {}).get("releases", ()))


def _spent_epsilon(server: "Server") -> float:
    return epsilon(_spent(server), delta(server), server.config.privacy.accountant)


def _exceeds(server: "Server", more: int) -> bool:
    """Whether so many releases more would exceed the budget."""
    config = server.config.privacy
    if config.epsilon is None:
        return False
    next_one = _release(server, server.memory[PRIVACY]["noise_multiplier"])
    spent = [*_spent(server)]
    if spent and spent[-1][0] == next_one:
        more += spent.pop()[1]
    return epsilon([*spent, (next_one, more)], delta(server), config.accountant) > config.epsilon
