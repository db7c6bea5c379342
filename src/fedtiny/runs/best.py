"""The best round's model, kept beside the last: by what devices tell, never by test images.

With `--eval-devices` the best round is that of the highest mean accuracy on the devices' own data,
else that of the lowest training loss; of equal ones the first. Rounds that did not count or were
not measured by this are left out. It lies in the checkpoint until the run is over.
"""

from collections.abc import Sequence
from typing import Any

from fedtiny.config import Config
from fedtiny.federation.server import Server
from fedtiny.runs.checkpoint import theta_from, theta_tensors
from fedtiny.sparse.theta import Theta

BEST = "best"
Record = dict[str, Any]


def keep_best(server: Server, records: Sequence[Record]) -> None:
    """Keep the model of the last of these rounds, if it is the best and that is asked for."""
    if not server.config.save_best:
        return
    scores = [_score(record, server.config) for record in records]
    if scores[-1] is None or any(s is not None and s >= scores[-1] for s in scores[:-1]):
        return
    record, mask = records[-1], server.theta.mask
    by = _measure(server.config)
    server.arrays |= {f"{BEST}.{n}": array for n, array in theta_tensors(server.model).items()}
    server.memory[BEST] = {
        "round_number": record["round_number"],
        "by": by,
        by: record[by],
        "accuracy": record["accuracy"],
        "loss": record["loss"],
        "density": mask.density,
        "kept_weights": mask.count,
    }


def best_model(server: Server) -> Theta | None:
    """The best round's model, if one was kept."""
    if BEST not in server.memory:
        return None
    own = {n: a for n, a in server.arrays.items() if n.startswith(f"{BEST}.")}
    tensors = {name.removeprefix(f"{BEST}."): array for name, array in own.items()}
    return theta_from(server.param_spec, tensors)


def _measure(config: Config) -> str:
    return "device_accuracy_mean" if config.eval_devices else "train_loss"


def _score(record: Record, config: Config) -> float | None:
    """How good a round is; nothing if it was not measured."""
    value = record.get(_measure(config))
    if value is None or not record["counted"]:
        return None
    return float(value) if config.eval_devices else -float(value)
