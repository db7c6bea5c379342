"""Random configs that are allowed."""

from hypothesis import strategies as st

from fedtiny.config import (
    Config,
    DataConfig,
    FleetConfig,
    PrivacyConfig,
    PruningConfig,
    RobustnessConfig,
    SelectionConfig,
    ServerConfig,
    TrainConfig,
)

COUNTS = st.integers(1, 2**40)
FEW = st.integers(1, 1024)
SHARES = st.floats(0, 1, exclude_min=True)
RATES = st.floats(0, 1, exclude_max=True)
POSITIVE = st.floats(0, 1e9, exclude_min=True)
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))


def one_pass(given):
    """Pooled statistics are measured in one pass."""
    return {"passes": 1} if given["variance"] == "pooled" else {}


def maybe(strategy):
    return st.none() | strategy


def fleets():
    return st.builds(
        FleetConfig,
        devices=st.integers(1, 10**7),
        partition=st.sampled_from(["dirichlet", "iid", "shards"]),
        alpha=POSITIVE,
        shards_per_device=COUNTS,
        min_samples=st.integers(2, 100),
        fraction=SHARES,
        fail_rate=RATES,
        straggler_rate=RATES,
        wire=st.sampled_from(["count", "encode"]),
    )


def data_configs():
    return st.builds(
        DataConfig,
        name=TEXTS,
        root=maybe(TEXTS),
        limit_train=maybe(COUNTS),
        limit_test=maybe(COUNTS),
        augment=st.booleans(),
        cutout=st.integers(0, 16),
        n_shots=COUNTS,
        validation=st.floats(0, 1, exclude_max=True),
    )


def sized(given):
    """Only the small model takes a number of parameters."""
    return {} if given["model"] == "small" else {"parameters": None}


def configs():
    return st.builds(
        lambda **given: Config(**given | sized(given)),
        method=TEXTS,
        model=TEXTS | st.just("small"),
        width=maybe(FEW),
        parameters=maybe(FEW),
        density=SHARES,
        memory_budget=maybe(TEXTS),
        memory_model=st.sampled_from(["paper", "device"]),
        flops_budget=maybe(TEXTS),
        rounds=maybe(COUNTS),
        seed=st.integers(0, 2**63 - 1),
        workers=maybe(FEW),
        threads=maybe(FEW),
        eval_every=COUNTS,
        eval_devices=st.booleans(),
        checkpoint_every=COUNTS,
        save_best=st.booleans(),
        data=data_configs(),
        fleet=fleets(),
        train=st.builds(
            TrainConfig,
            local_epochs=maybe(COUNTS),
            batch_size=maybe(st.integers(2, 512)),
            optimizer=st.sampled_from(["adam", "sgd"]),
            lr=maybe(POSITIVE),
            decay_norms=st.booleans(),
            lr_schedule=st.sampled_from(["constant", "cosine"]),
            lr_final=SHARES,
            lr_gamma=SHARES,
            proximal_mu=POSITIVE,
            freeze_bn=SHARES,
            pretrain_epochs=st.integers(0, 5),
        )
        | st.builds(TrainConfig, lr_schedule=st.just("steps"), lr_milestones=maybe(st.just("1,7"))),
        server=st.builds(
            ServerConfig,
            optimizer=st.sampled_from(["fedavg", "fedavgm", "fedadam", "fedyogi"]),
            lr=maybe(POSITIVE),
            beta1=RATES,
            beta2=RATES,
            tau=POSITIVE,
            average=st.sampled_from(["none", "ema", "swa"]),
            average_start=maybe(st.just(0)),
            average_decay=RATES,
        ),
        selection=st.builds(
            lambda **given: SelectionConfig(**given | one_pass(given)),
            kind=maybe(st.sampled_from(["adaptive_bn", "vanilla", "none"])),
            pool_size=maybe(FEW | st.just("auto")),
            development_ratio=SHARES,
            batch_size=st.integers(2, 512),
            passes=COUNTS,
            variance=st.sampled_from(["mean", "pooled"]),
        ),
        pruning=st.builds(
            PruningConfig,
            progressive=st.booleans(),
            granularity=st.sampled_from(["layer", "block", "entire"]),
            order=st.sampled_from(["backward", "forward"]),
            delta_r=maybe(COUNTS),
            r_stop=maybe(COUNTS),
            budgets=st.sampled_from(["uniform", "erk", "flow", "global"]),
            flow_beta=st.floats(0, 2),
            flow_floor=maybe(st.floats(0, 1)),
            flow_normalize=st.sampled_from(["never", "auto", "always"]),
            rescale=maybe(st.floats(0, 1) | st.just("auto")),
            iterations=COUNTS,
        ),
        robustness=st.builds(
            RobustnessConfig,
            mean=st.sampled_from(["weighted", "median", "trimmed"]),
            trim=st.floats(0, 0.5, exclude_min=True, exclude_max=True),
            clip_norm=st.floats(0, 1e9),
            max_samples=COUNTS,
        ),
        privacy=st.builds(
            PrivacyConfig,
            delta=maybe(st.floats(0, 1, exclude_min=True, exclude_max=True)),
            clip=st.just("adaptive") | POSITIVE,
            clip_start=POSITIVE,
            clip_quantile=st.floats(0, 1, exclude_min=True, exclude_max=True),
            clip_rate=POSITIVE,
            sampling=st.sampled_from(["poisson", "fixed"]),
        ),
    )
