"""All settings of a run. A value of None is filled in from the data set's preset."""

from dataclasses import MISSING, Field, dataclass, field, fields
from math import ceil
from typing import Any, Literal

from fedtiny.config.checks import check_types, complaints
from fedtiny.errors import ConfigError


class Settings:
    """Some settings; those that say the same are equal, whether or not they are resolved."""

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, type(self)) and not isinstance(self, type(other)):
            return NotImplemented
        return vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash(tuple(vars(self).values()))

    def __repr__(self) -> str:
        """Only what differs from the defaults; it makes the same settings again."""
        changed = [
            f"{declared.name}={value!r}"
            for declared in fields(self)  # type: ignore[arg-type]
            if (value := getattr(self, declared.name)) != _default(declared)
        ]
        return f"{type(self).__name__}({', '.join(changed)})"


def _default(declared: "Field[Any]") -> Any:
    """The default of a setting; what has none is always shown."""
    made = declared.default_factory
    return declared.default if made is MISSING else made()


@dataclass(frozen=True, eq=False, repr=False)
class DataConfig(Settings):
    """Which data, and how images are prepared.

    Example:
        >>> fedtiny.Config(data=fedtiny.config.DataConfig(limit_train=200, cutout=4))
        Config(data=DataConfig(limit_train=200, cutout=4))
    """

    name: str = "digits"
    """Data set: see `fedtiny list datasets`; `folder` reads a folder of images by class, `file` an
    .npz, .csv or .parquet file."""
    root: str | None = None
    """Folder or file that holds the data; default: the environment variable FEDTINY_DATA."""
    layout: Literal["NCHW", "NHWC", "NHW", "NCT", "NTC", "NF"] | None = None
    """Data `file`: what the dimensions of its arrays are; N samples, C channels, H height, W width,
    T time, F features. NCT and NTC are sequences, NF is a table."""
    label_column: str | None = None
    """Data `file`: column of a table that holds the classes; default: label."""
    device_column: str | None = None
    """Data `file`: column that says which device, or user, has a sample."""
    limit_train: int | None = None
    """Use only so many training images, for a quick try."""
    limit_test: int | None = None
    """Use only so many test images, for a quick try."""
    augment: bool = True
    """Random crops, and mirror images where the class allows it."""
    cutout: int = 0
    """Side of the square that Cutout blanks; 0 is off."""
    n_shots: int = 5
    """Images per class of the public one-shot set that the server holds (D_s)."""
    validation: float = 0.0
    """Share of the training images to hold out and measure with in place of the test set: what
    settings are chosen by."""


@dataclass(frozen=True, eq=False, repr=False)
class FleetConfig(Settings):
    """The devices, and who takes part in a round.

    Example:
        >>> fedtiny.Config(fleet=fedtiny.config.FleetConfig(devices=20, alpha=0.1))
        Config(fleet=FleetConfig(devices=20, alpha=0.1))
    """

    devices: int = 10
    """Number of devices: K in the paper."""
    partition: Literal["dirichlet", "iid", "shards", "natural"] = "dirichlet"
    """How the training set is spread over the devices; natural: as the data say, a device for each
    of their ids, whatever --fleet.devices is. Data that say it are always spread so."""
    alpha: float = 0.5
    """Dirichlet concentration: small is strongly non-iid."""
    shards_per_device: int = 2
    """Label-sorted pieces a device gets, for the partition `shards`."""
    min_samples: int = 10
    """Fewest samples of a device."""
    fraction: float = 1.0
    """Share of the devices that is asked in a round."""
    min_replies: int = 1
    """Fewest replies that make a round count."""
    fail_rate: float = 0.0
    """Simulated: chance that a device is out of reach in a round."""
    straggler_rate: float = 0.0
    """Simulated: chance that a device's reply comes too late to count."""
    wire: Literal["count", "encode"] = "count"
    """Simulated: count the bytes of every message, or really encode and decode it."""

    @property
    def asked(self) -> int:
        """Number of devices that a round of training asks."""
        return max(1, ceil(round(self.fraction * self.devices, 9)))


@dataclass(frozen=True, eq=False, repr=False)
class TrainConfig(Settings):
    """Local training.

    Example:
        >>> fedtiny.Config(train=fedtiny.config.TrainConfig(local_epochs=2, optimizer="sgd"))
        Config(train=TrainConfig(local_epochs=2, optimizer='sgd'))
    """

    local_epochs: int | None = None
    """Epochs on a device in a round; default: the preset's."""
    batch_size: int | None = None
    """Samples in a mini-batch; default: the preset's."""
    optimizer: Literal["adam", "sgd"] | None = None
    """adam: lr 1e-3, decay 1e-4. sgd: lr 0.05, momentum 0.9, decay 5e-4. Fresh every round.
    Default: the recipe's, adam in `paper`."""
    lr: float | None = None
    """Learning rate; default: the optimizer's own."""
    weight_decay: float | None = None
    """Added to the gradient, times the weight; default: the optimizer's own."""
    decay_norms: bool = True
    """Weight decay on batch norm and biases too, not only on weights of layers."""
    lr_schedule: Literal["constant", "cosine", "steps"] | None = None
    """How the learning rate goes over the rounds; within a round it does not change. Default:
    the recipe's, constant in `paper`."""
    lr_warmup: int = 0
    """First rounds over which the learning rate rises to its full value, in equal steps."""
    lr_final: float = 0.0
    """cosine: share of the learning rate that it falls to by the end."""
    lr_milestones: str | None = None
    """steps: rounds from which the rate is lower, as in 150,225; default: half and three quarters
    of the run."""
    lr_gamma: float = 0.1
    """steps: what the rate is multiplied by at each milestone."""
    proximal_mu: float = 0.0
    """FedProx: mu of the proximal term mu/2 |w - w_received|^2; 0 is off."""
    freeze_bn: float = 1.0
    """FixBN: share of the rounds after which batch norm trains with the statistics that a device
    received, and leaves them as they are; 1 is never."""
    pretrain_epochs: int = 3
    """Epochs on the public one-shot set before anything is pruned."""


@dataclass(frozen=True, eq=False, repr=False)
class ServerConfig(Settings):
    """What the server makes of the devices' mean: its optimizer, and an average over rounds.

    Example:
        >>> fedtiny.Config(server=fedtiny.config.ServerConfig(optimizer="fedadam", lr=0.02))
        Config(server=ServerConfig(optimizer='fedadam', lr=0.02))
    """

    optimizer: Literal["fedavg", "fedavgm", "fedadam", "fedyogi"] | None = None
    """fedavg takes the mean as it is; the others take a step along mean - theta. Default: the
    recipe's, fedavg in `paper`."""
    lr: float | None = None
    """Learning rate of that step; default: 1 for fedavg and fedavgm, 0.01 for the others."""
    beta1: float | None = None
    """fedavgm, fedadam, fedyogi: momentum. Default: 0.9; in the recipe `momentum` 0.7."""
    beta2: float = 0.99
    """fedadam, fedyogi: decay of the second moment."""
    tau: float = 1e-3
    """fedadam, fedyogi: added to the root of the second moment."""
    average: Literal["none", "ema", "swa"] = "none"
    """Final model: the last round's, or an average over rounds, exponential (ema) or plain (swa);
    devices then measure its batch-norm statistics once more."""
    average_start: int | None = None
    """Rounds before the first that is averaged; default: three quarters of the run."""
    average_decay: float = 0.9
    """ema: weight of the average so far in a round."""


@dataclass(frozen=True, eq=False, repr=False)
class SelectionConfig(Settings):
    """Coarse pruning: how the first mask is chosen (Alg. 1).

    Example:
        >>> fedtiny.Config(selection=fedtiny.config.SelectionConfig(pool_size=20))
        Config(selection=SelectionConfig(pool_size=20))
    """

    kind: Literal["adaptive_bn", "vanilla", "none"] | None = None
    """vanilla compares candidates without new batch-norm statistics; none takes one of the pool's
    first kind, without noise. Default: adaptive_bn; of fedtiny_flow none."""
    pool_size: int | Literal["auto"] | None = None
    """Number of candidates C; auto is 0.1 / density; default: the preset's."""
    development_ratio: float = 0.1
    """Share of a device's data that measures statistics and losses."""
    batch_size: int = 128
    """Largest batch of the measurement."""
    passes: int = 1
    """1 averages over the batches; more passes use a running mean of momentum 0.1."""
    variance: Literal["mean", "pooled"] = "mean"
    """Average the devices' variances, or pool them exactly (law of total variance)."""
    pool: str | None = None
    """FedTiny: kinds of candidates, separated by commas: magnitude, erk, flow, random; default: the
    method's own."""
    tolerance: float | None = None
    """FedTiny: losses this far above the lowest cannot be told from it, and the candidate with the
    most useful weights is taken; default: the method's own, 0 for the paper's."""


@dataclass(frozen=True, eq=False, repr=False)
class PruningConfig(Settings):
    """Progressive pruning: how the mask is adjusted during training (Alg. 2).

    Example:
        >>> fedtiny.Config(pruning=fedtiny.config.PruningConfig(delta_r=5, budgets="erk"))
        Config(pruning=PruningConfig(delta_r=5, budgets='erk'))
    """

    progressive: bool = True
    """Adjust the mask at all."""
    granularity: Literal["layer", "block", "entire"] = "block"
    """What is adjusted at a time."""
    order: Literal["backward", "forward"] = "backward"
    """From the output side or from the input side."""
    delta_r: int | None = None
    """Rounds from one adjustment to the next; the first round adjusts. Default: the preset's."""
    r_stop: int | None = None
    """Rounds after the first that may still adjust; default: the preset's."""
    draw: Literal["auto", "all", "voted"] = "auto"
    """FedRTS: the new mask is drawn among all links, as published, or among kept and voted ones;
    auto: voted below density 0.05."""
    gradient_epsilon: float | None = None
    """Where pruned weights' gradients are measured: least epsilon of batch norm meanwhile. Default:
    0, the network's own, in the recipe `paper`; 0.01 in `momentum`."""
    reclaim: bool = False
    """FedTiny: drop weights that reach nothing before others when growing."""
    budgets: Literal["uniform", "erk", "flow", "global"] | None = None
    """How kept weights are spread over layers: the same density in each; in proportion to the sum
    of a layer's dimensions (ERK); by synaptic flow before training; or, for SNIP, SynFlow and
    GraSP, by one threshold over the method's own scores. Default: uniform; of fedtiny_flow flow."""
    flow_beta: float = 0.5
    """Budgets `flow`: a weight's flow is divided by its operations to this power. 0 spends the most
    operations, 1 about those of uniform budgets."""
    flow_floor: float | None = None
    """Budgets `flow`: projection shortcuts, which flow leaves one weight, keep at least this share
    of what uniform budgets leave them. Default: 0; of fedtiny_flow 1."""
    flow_normalize: Literal["never", "auto", "always"] = "auto"
    """Budgets and candidates `flow`: divide what a unit lets through by its mean, so that a layer
    keeps more of its units; auto: in networks that are one chain of layers."""
    iterations: int = 100
    """SNIP, SynFlow, budgets `flow`: steps of pruning at the start."""
    rescale: float | Literal["auto"] | None = None
    """Scale what pruning at the start leaves of a filter before batch norm by the ratio of the norm
    that it had to its own, to this power: 1 restores the norm, 0 leaves it; auto: 1, but 0 if flow
    is normalized. Default: 0; of fedtiny_flow auto."""
    growth: Literal["gradient", "fisher", "votes", "random", "shared"] | None = None
    """FedTiny: what is grown: the largest averaged gradients, those over the root of their Fisher
    information, what most devices vote for, at random, or the largest of a few random positions
    that all devices report; default: the method's own."""
    drop: Literal["with_growth", "after_training"] | None = None
    """FedTiny: drop weights when others grow, or a round later, when these have trained; default:
    the method's own."""
    depthwise: bool = False
    """Prune depthwise and squeeze-and-excite layers too; by default they stay dense."""
    redistribute: bool = False
    """FedTiny: compare weights and gradients over all layers of an adjustment, so that weights move
    between layers."""
    extrude: bool = False
    """FedTiny, SET: in adjusting rounds devices train with a penalty on the weights that will be
    dropped, the smallest as received, so that others take over what they do (FedMef)."""
    rate: float = 0.3
    """Share of a layer's weights that the first round swaps; it falls to 0 as a cosine."""
    stop_share: float | None = None
    """r_stop as a share of the rounds, say 0.75, if r_stop is not given."""


@dataclass(frozen=True, eq=False, repr=False)
class DeviceConfig(Settings):
    """How a native device spends its memory and time.

    Example:
        >>> fedtiny.Config(device=fedtiny.config.DeviceConfig(storage="float16", recompute=True))
        Config(device=DeviceConfig(storage='float16', recompute=True))
    """

    storage: Literal["float32", "float16"] = "float32"
    """How activations are held; computed is in float32 always."""
    recompute: bool = False
    """Compute what only batch norm reads a second time, and do not hold it."""
    remove_dead: bool = False
    """Leave out channels that cannot reach the output."""
    python: str | None = None
    """Another Python, with fedtiny but perhaps without torch, whose processes simulate devices."""
    program: str | None = None
    """Devices without Python: the command of a program, in which {data} is the file of a device's
    data; tcp://HOST:PORT or tls://HOST:PORT?cert=FILE&key=FILE&ca=FILE, where they connect; or
    serial:/dev/ttyACM0. For all devices or, as in '0,2-3=COMMAND; 4=tcp://0.0.0.0:7000', for
    some."""
    timeout: float = 600.0
    """Seconds that a device without Python may take for an answer."""


@dataclass(frozen=True, eq=False, repr=False)
class GpuConfig(Settings):
    """How the GPU simulator computes; all but graphs and compile works without a GPU too.

    Example:
        >>> fedtiny.Config(gpu=fedtiny.config.GpuConfig(precision="tf32"))
        Config(gpu=GpuConfig(precision='tf32'))
    """

    kernels: Literal["auto", "dense", "sparse"] = "auto"
    """Train at all weights or at the kept ones only; auto: at the kept ones if a mask
    keeps at most 4% of the operations and a GPU computes."""
    precision: Literal["bf16", "tf32", "fp32"] = "bf16"
    """Of convolutions and linear layers; weights are kept and averaged in fp32 always."""
    channels_last: bool = True
    """Lay images and weights out as the tensor cores want them."""
    compile: bool = True
    """Fuse the network's small operations with torch.compile (half a minute, once)."""
    graphs: bool = True
    """Replay a local step as one captured CUDA graph."""
    deterministic: bool = True
    """Only kernels that give the same bits every time; others were not faster."""
    lanes: int | None = None
    """Streams of a process's GPU, each with a device at a time, or with up to 20 of them in one
    launch if kernels are sparse; default: what helps and fits."""
    cards: int | None = None
    """Without effect: a process takes one GPU, and torchrun starts a process for each."""


@dataclass(frozen=True, eq=False, repr=False)
class RobustnessConfig(Settings):
    """How far devices are trusted; every reply is checked in any case.

    Example:
        >>> fedtiny.Config(robustness=fedtiny.config.RobustnessConfig(bound=0.0, mean="median"))
        Config(robustness=RobustnessConfig(bound=0.0, mean='median'))
    """

    bound: float = 3.0
    """A part of a reply (update, statistics, gradients, losses) whose norm is more than so many
    times the median of the devices' is brought back to theirs; 0 is off."""
    reject: float = 3.0
    """A round whose loss on the public set is more than so many times the last one's and chance's,
    or not finite, or whose accuracy there collapsed, is repeated without the devices that are
    suspected; 0 is off."""
    mean: Literal["weighted", "median", "trimmed", "centered", "krum"] = "weighted"
    """How replies become one: weighted by samples; or every device counts the same: value by value
    the median or the mean without extremes, centered clipping, or multi-Krum."""
    trim: float = 0.1
    """Share of the devices, rounded up, whose values `trimmed` leaves out at each end, and that
    `krum` leaves out."""
    bucket: int = 1
    """Devices, drawn at random, whose mean counts as one in a robust mean, for non-iid data."""
    clip_norm: float = 0.0
    """Largest norm of a device's update, theta_k - theta; a larger one is scaled down; 0 is off."""
    max_samples: int = 1_000_000
    """Most samples that a device may claim to have where the server cannot know."""


@dataclass(frozen=True, eq=False, repr=False)
class PrivacyConfig(Settings):
    """What is hidden of one device: differential privacy, client level, and secure aggregation.

    Differential privacy is on if a budget or a noise is given.

    Example:
        >>> fedtiny.Config(privacy=fedtiny.config.PrivacyConfig(epsilon=8, clip=0.5))
        Config(privacy=PrivacyConfig(epsilon=8, clip=0.5))
    """

    epsilon: float | None = None
    """Budget: the noise is found that spends it in the planned rounds, and the run stops before it
    is exceeded. With --privacy.noise-multiplier it only stops the run."""
    delta: float | None = None
    """Chance with which epsilon may fail to hold; default: 1 / devices^1.1."""
    noise_multiplier: float | None = None
    """Standard deviation of the noise on the sum of the replies, over the clip; default: what
    --privacy.epsilon needs."""
    clip: float | Literal["adaptive"] = "adaptive"
    """Largest norm of a device's whole reply; a larger one is scaled down. adaptive follows a
    quantile of the norms, by one noisy bit of every device."""
    clip_start: float = 1.0
    """adaptive: the clip of the first round."""
    clip_quantile: float = 0.5
    """adaptive: share of the devices whose norm is to be below the clip."""
    clip_rate: float = 0.2
    """adaptive: how fast the clip follows."""
    sampling: Literal["poisson", "fixed"] = "poisson"
    """Who is asked in a round: every device with the chance --fleet.fraction, or so large a share
    of them, drawn without replacement; accounted for as done."""
    accountant: Literal["rdp", "pld"] = "rdp"
    """How epsilon is computed: by Renyi divergences, or by the distribution of the privacy loss,
    which is tighter, slower, and for Poisson sampling only."""
    noise: Literal["server", "devices"] = "server"
    """Who adds the noise: the server, to the sum; or each device a share, before secure aggregation
    masks it, so that nobody sees a sum without noise."""
    secret_noise: bool = False
    """Draw noise and sampling by a secret of the server's, kept in the checkpoint: without it they
    follow from --seed, which devices know, and the same seed gives the same model."""
    secure_aggregation: bool = False
    """Devices send masked vectors, and the server learns their sum and no single one."""
    threshold: float = 0.66
    """Secure aggregation: share of the devices that it shares masks with of which more must be left
    for a device to take part in unmasking a sum."""
    neighbors: int = 40
    """Secure aggregation: most devices that a device shares masks with; fewer devices than that
    share with all others."""
    cryptography: bool = True
    """Secure aggregation, simulated: really make keys, shares and masks; else the same sum is
    computed to the last bit without them, faster."""

    @property
    def differential(self) -> bool:
        """Whether replies are clipped and noise is added."""
        return self.epsilon is not None or self.noise_multiplier is not None


@dataclass(frozen=True, eq=False, repr=False)
class Config(Settings):
    """The settings of one run; what is left open takes the data set's preset.

    Settings that belong together are sections, each with a class of its own.

    Raises:
        ConfigError: A value of another type, out of its range, or at odds with others.

    Example:
        >>> from fedtiny.config import FleetConfig
        >>> fedtiny.Config(method="fedtiny", density=0.01, fleet=FleetConfig(devices=20))
        Config(density=0.01, fleet=FleetConfig(devices=20))
    """

    method: str = "fedtiny"
    """How the model is pruned: see `fedtiny list methods`."""
    recipe: Literal["own", "paper", "momentum"] = "own"
    """What trains: `paper` is Adam at a constant rate and plain averaging; `momentum` is SGD with a
    cosine rate and server momentum; `own` is the method's: momentum of fedtiny_flow, else paper."""
    model: str = "resnet18"
    """Network: see `fedtiny list models`."""
    width: int | None = None
    """Channels of the network's first layer; default: 16 on digits, else the network's own."""
    weights: str | None = None
    """Begin with these values: a .safetensors file with the network's whole state dict."""
    parameters: int | None = None
    """Size the model `small` to at most so many parameters."""
    density: float = 0.05
    """Target share of prunable weights that are kept: d_target in the paper."""
    memory_budget: str | None = None
    """Memory of a device, say 64MB, into which its training is to fit: see --memory-model."""
    memory_model: Literal["paper", "device"] = "device"
    """Count memory as a device needs it, or as the paper does, without activations. The density is
    the largest that fits; of native devices the batch and the storage are chosen instead."""
    flops_budget: str | None = None
    """Most FLOPs of a device in a plain round, say 2% of the dense network's, or 1.5e12: lowers the
    density, or with budgets `flow` chooses --pruning.flow-beta first."""
    rounds: int | None = None
    """Rounds of federated training; default: the preset's."""
    seed: int = 0
    """Fixes every random draw of the run."""
    simulator: Literal["auto", "reference", "gpu"] = "auto"
    """How devices are simulated: by processes that compute as a device would, or on a GPU; auto:
    what is there."""
    device_backend: Literal["auto", "native", "torch"] = "auto"
    """How a simulated device computes: sparse in native code, or dense PyTorch under masks; auto:
    native on a CPU where it is faster."""
    workers: int | None = None
    """Processes that simulate the devices; default: all cores. Does not change any result."""
    threads: int | None = None
    """PyTorch's threads; default: 1. More need 1 worker. The last bits of a result depend on it."""
    eval_every: int = 1
    """Measure test accuracy every so many rounds, and after the last."""
    eval_devices: bool = False
    """Measure accuracy on every device's own data too."""
    checkpoint_every: int = 1
    """Rounds between two checkpoints."""
    save_best: bool = False
    """Keep the best round's model beside the last: by the devices' mean accuracy on their own data
    with --eval-devices, else by training loss; never by test images."""
    data: DataConfig = field(default_factory=DataConfig)
    """Which data, and how images are prepared."""
    fleet: FleetConfig = field(default_factory=FleetConfig)
    """The devices, and who takes part in a round."""
    train: TrainConfig = field(default_factory=TrainConfig)
    """Local training."""
    server: ServerConfig = field(default_factory=ServerConfig)
    """What the server makes of the devices' mean: its optimizer, and an average over rounds."""
    selection: SelectionConfig = field(default_factory=SelectionConfig)
    """Coarse pruning: how the first mask is chosen (Alg. 1)."""
    pruning: PruningConfig = field(default_factory=PruningConfig)
    """Progressive pruning: how the mask is adjusted during training (Alg. 2)."""
    device: DeviceConfig = field(default_factory=DeviceConfig)
    """How a native device spends its memory and time."""
    gpu: GpuConfig = field(default_factory=GpuConfig)
    """How the GPU simulator computes; all but graphs and compile works without a GPU too."""
    robustness: RobustnessConfig = field(default_factory=RobustnessConfig)
    """How far devices are trusted; every reply is checked in any case."""
    privacy: PrivacyConfig = field(default_factory=PrivacyConfig)
    """What is hidden of one device: differential privacy, and secure aggregation."""

    def __post_init__(self) -> None:
        check_types(self)
        complaint = next(complaints(self), None)
        if complaint:
            raise ConfigError(complaint)

    @property
    def pool_size(self) -> int:
        """Number of candidates, `auto` resolved: C* = 0.1 / d in the paper."""
        if isinstance(self.selection.pool_size, int):
            return self.selection.pool_size
        return max(2, round(0.1 / self.density))
