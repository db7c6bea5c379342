"""The local trainings of a request, all at once, before lanes answer it."""

from collections.abc import Callable, Sequence
from concurrent.futures import Executor

from fedtiny.config import RunConfig
from fedtiny.data import ImageSet
from fedtiny.devices.engine import RngKey, rule_of_round
from fedtiny.devices.gpu.sparse.choice import CROSSOVER, kept_share
from fedtiny.devices.gpu.sparse.trainer import Trained, Trainer, Training
from fedtiny.devices.workers import Task
from fedtiny.federation.messages import Request
from fedtiny.federation.verbs import Train
from fedtiny.graph.ir import Graph
from fedtiny.sparse.mask import Mask
from fedtiny.sparse.theta import Theta


class JointTraining:
    """Trainers that share out the devices of a request; each trains its own in one launch.

    Devices are dealt by the steps that they take. What comes of one depends neither on who
    trains it nor on who is trained beside it.
    """

    def __init__(
        self,
        config: RunConfig,
        graph: Graph,
        data: ImageSet,
        open_trainers: Callable[[], list[Trainer]],
    ) -> None:
        self.config = config
        self.graph = graph
        self.data = data
        self.trainers: list[Trainer] = []
        self._open_trainers = open_trainers

    def takes(self, mask: Mask) -> bool:
        """Whether devices are trained here under this mask."""
        return self.config.gpu.kernels == "sparse" or kept_share(self.graph, mask) <= CROSSOVER

    def train(self, tasks: Sequence[Task], theta: Theta, threads: Executor) -> dict[int, Trained]:
        """What came of the first training of those tasks that begin with one from this theta."""
        taken = self.takes(theta.mask)
        numbers = [i for i, task in enumerate(tasks) if taken and self._fits(task, theta)]
        if not numbers:
            return {}
        self.trainers = self.trainers or self._open_trainers()
        longest_first = sorted(numbers, key=lambda i: -len(tasks[i].shard))
        config, number = self.config, tasks[numbers[0]].request.round
        count, rule = len(self.trainers), rule_of_round(config.train, number, config.rounds)
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
    """The training that a request begins with, if it has no options beside its epochs."""
    first = request.program[0] if request.program else None
    return first if isinstance(first, Train) and first == Train(first.epochs) else None
