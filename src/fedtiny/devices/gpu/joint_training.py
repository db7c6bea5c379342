"""The local trainings of a request, all at once, before lanes answer it."""

from collections.abc import Sequence
from concurrent.futures import Executor

from fedtiny.config import RunConfig
from fedtiny.data import ImageSet
from fedtiny.devices.engine import RngKey, optimizer
from fedtiny.devices.gpu.sparse.choice import CROSSOVER, kept_share
from fedtiny.devices.gpu.sparse.trainer import Trained, Trainer, Training
from fedtiny.devices.workers import Task
from fedtiny.federation.messages import Request
from fedtiny.federation.verbs import Train
from fedtiny.graph.ir import Graph
from fedtiny.sparse.mask import Mask
from fedtiny.sparse.theta import Theta

ROOM = 20  # devices of one launch; more go in turns


class JointTraining:
    """Trainers that share out the devices of a request; each trains its own in one launch.

    Devices are dealt by the steps that they take. What comes of one depends neither on who
    trains it nor on who is trained beside it.
    """

    def __init__(self, config: RunConfig, graph: Graph, data: ImageSet) -> None:
        self.config = config
        self.graph = graph
        self.data = data
        self.trainers: list[Trainer] = []

    def takes(self, mask: Mask) -> bool:
        """Whether devices are trained here under this mask."""
        return self.config.gpu.kernels == "sparse" or kept_share(self.graph, mask) <= CROSSOVER

    def room(self, streams: int) -> int:
        """Devices that each of so many streams trains at a time."""
        return min(ROOM, -(-self.config.fleet.asked // streams))

    def train(self, tasks: Sequence[Task], theta: Theta, threads: Executor) -> dict[int, Trained]:
        """What came of the first training of those tasks that begin with one from this theta."""
        if not self.takes(theta.mask):
            return {}
        numbers = [i for i, task in enumerate(tasks) if self._fits(task, theta)]
        longest_first = sorted(numbers, key=lambda i: -len(tasks[i].shard))
        count, rule = len(self.trainers), optimizer(self.config.train)
        hands = [longest_first[k::count] for k in range(count)]
        futures = [
            threads.submit(trainer.train, theta, [self._training(tasks[i]) for i in hand], rule)
            for trainer, hand in zip(self.trainers, hands, strict=True)
            if hand
        ]
        found: dict[int, Trained] = {}
        for hand, future in zip(hands, futures, strict=False):
            found |= zip(hand, future.result(), strict=True)
        return found

    def _fits(self, task: Task, theta: Theta) -> bool:
        own = task.request.theta
        return (
            first_training(task.request) is not None
            and len(task.shard) >= self.config.train.batch_size
            and task.shard.data is self.data
            and (own is theta or own.version == theta.version)
        )

    def _training(self, task: Task) -> Training:
        train = first_training(task.request)
        assert train is not None
        rng_key = RngKey(self.config.seed, task.request.round, task.shard.device)
        return Training(task.shard, rng_key, train.epochs)


def first_training(request: Request) -> Train | None:
    """The training that a request begins with; none that gives full gradients."""
    first = request.program[0] if request.program else None
    return first if isinstance(first, Train) and not first.sum_dense_gradients else None
