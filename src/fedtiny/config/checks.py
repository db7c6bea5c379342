"""What makes a config impossible, each with one clear sentence."""

from math import inf
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedtiny.config.settings import Config


def checks(config: "Config") -> list[tuple[bool, str]]:
    """Whether each demand is met, with the sentence that tells a user what is wrong."""
    fleet, train, selection, pruning = config.fleet, config.train, config.selection, config.pruning
    at_least_one = {
        "rounds": config.rounds,
        "width": config.width,
        "parameters": config.parameters,
        "threads": config.threads,
        "workers": config.workers,
        "eval-every": config.eval_every,
        "checkpoint-every": config.checkpoint_every,
        "data.limit-train": config.data.limit_train,
        "data.limit-test": config.data.limit_test,
        "data.n-shots": config.data.n_shots,
        "fleet.devices": fleet.devices,
        "fleet.shards-per-device": fleet.shards_per_device,
        "fleet.min-replies": fleet.min_replies,
        "train.local-epochs": train.local_epochs,
        "selection.passes": selection.passes,
        "pruning.delta-r": pruning.delta_r,
        "pruning.r-stop": pruning.r_stop,
        "pruning.iterations": pruning.iterations,
        "gpu.lanes": config.gpu.lanes,
        "gpu.cards": config.gpu.cards,
        "robustness.max-samples": config.robustness.max_samples,
    }
    at_least_two = {
        "train.batch-size": train.batch_size,
        "fleet.min-samples": fleet.min_samples,
        "selection.batch-size": selection.batch_size,
    }
    pool = selection.pool_size
    return [
        *[
            (v is None or v >= 1, f"--{k} must be at least 1, got {v}")
            for k, v in at_least_one.items()
        ],
        *[
            (v is None or v >= 2, f"--{k} must be at least 2, got {v}")
            for k, v in at_least_two.items()
        ],
        (
            config.parameters is None or config.model == "small",
            "--parameters sizes the model 'small' alone: leave it out with "
            f"'{config.model}', or take --model small",
        ),
        (0 < config.density <= 1, f"--density must lie in (0, 1], got {config.density:g}"),
        (fleet.alpha > 0, f"--fleet.alpha must be above 0, got {fleet.alpha:g}"),
        (0 < fleet.fraction <= 1, f"--fleet.fraction must lie in (0, 1], got {fleet.fraction:g}"),
        *[
            (0 <= rate < 1, f"--fleet.{name}-rate must lie in [0, 1), got {rate:g}")
            for name, rate in (("fail", fleet.fail_rate), ("straggler", fleet.straggler_rate))
        ],
        (
            not 0 < fleet.fraction <= 1 or fleet.min_replies <= fleet.asked,
            f"--fleet.min-replies is {fleet.min_replies}, more than the devices a round asks",
        ),
        (
            0 < selection.development_ratio <= 1,
            "--selection.development-ratio must lie in (0, 1], "
            f"got {selection.development_ratio:g}",
        ),
        (
            not isinstance(pool, int) or pool > 0,
            f"--selection.pool-size must be above 0, got {pool}",
        ),
        (
            selection.variance == "mean" or selection.passes == 1,
            "--selection.variance pooled takes one pass; leave --selection.passes at 1",
        ),
        (
            0 < config.robustness.trim < 0.5,
            f"--robustness.trim must lie in (0, 0.5), got {config.robustness.trim:g}",
        ),
        (
            0 <= config.robustness.clip_norm < inf,
            "--robustness.clip-norm must be 0 or above and finite, got "
            f"{config.robustness.clip_norm:g}",
        ),
        (train.lr is None or train.lr > 0, f"--train.lr must be above 0, got {train.lr}"),
        (
            train.weight_decay is None or 0 <= train.weight_decay < 1,
            f"--train.weight-decay must lie in [0, 1), got {train.weight_decay}",
        ),
        (train.pretrain_epochs >= 0, "--train.pretrain-epochs must not be negative"),
        (
            0 <= pruning.gradient_epsilon < 1e6,
            "--pruning.gradient-epsilon must be a small number that is not negative, "
            f"got {pruning.gradient_epsilon:g}",
        ),
        (config.data.cutout >= 0, "--data.cutout must not be negative"),
        (0 <= config.seed < 2**63, f"--seed must lie in [0, 2^63), got {config.seed}"),
    ]
