"""What each method asks of devices and server beyond training: the one place that knows."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Habits:
    """How a method's costs differ from those of plain sparse training."""

    trains: Literal["sparse", "dense", "small"] = "sparse"
    """What devices train, in the costliest round: a method that starts dense counts as dense."""
    adjusts_by: Literal["nothing", "top_a", "prune_and_grow", "full_gradients"] = "nothing"
    """top_a: one batch, the largest gradients of a group of layers are sent. swap: one batch, all
    layers, the device changes its own mask. full_gradients: all layers, every batch, all sent."""
    selects: bool = False
    """Devices compare a pool of candidates before training (Alg. 1)."""
    server_score: Literal["nothing", "gradients", "flow", "hessian"] = "nothing"
    """What the server prunes by: gradients on D_s, the flow of one image, or Hessian x gradient."""
    known: bool = True


HABITS = {
    "fedavg": Habits(trains="dense"),
    "fl_pqsu": Habits(),
    "snip": Habits(server_score="gradients"),
    "synflow": Habits(server_score="flow"),
    "grasp": Habits(server_score="hessian"),
    "prunefl": Habits(adjusts_by="full_gradients"),
    "feddst": Habits(adjusts_by="prune_and_grow"),
    "lotteryfl": Habits(trains="dense"),
    "small_model": Habits(trains="small"),
    "fedtiny": Habits(adjusts_by="top_a", selects=True),
}
UNKNOWN = Habits(known=False)


def habits(method: str) -> Habits:
    """A method's habits; those of another party's method are taken for plain sparse training."""
    return HABITS.get(method, UNKNOWN)
