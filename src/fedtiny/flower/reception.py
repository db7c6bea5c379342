"""Waiting for nodes, and letting them in."""

import time
from collections.abc import Callable

from flwr.app import Message
from flwr.serverapp import Grid

from fedtiny.errors import FedTinyError
from fedtiny.federation.door import Traffic
from fedtiny.flower.exchange import Exchange
from fedtiny.flower.kit import Kit
from fedtiny.flower.messages import FAILED, JOIN, Answer, Arrival, Question, told
from fedtiny.flower.roster import Roster
from fedtiny.flower.settings import FlowerSettings

LOOK = 1.0  # seconds between two looks for nodes

Say = Callable[[str], None]


class Reception:
    """Gives every new node the kit of the run and a device to play."""

    def __init__(
        self, grid: Grid, kit: Kit, roster: Roster, settings: FlowerSettings, say: Say
    ) -> None:
        self.grid = grid
        self.kit = kit
        self.roster = roster
        self.settings = settings
        self.say = say
        self.traffic = Traffic()

    def present(self, wanted: int, least: int) -> dict[int, int]:
        """The devices that are there and their nodes, new ones let in.

        As long as fewer than wanted are there this waits; when the time is up, `least` will do.
        """
        until = time.monotonic() + self.settings.wait
        there = self._look()
        if len(there) < wanted:
            self.say(f"waiting for {wanted} nodes; {len(there)} are here")
        while len(there) < wanted and time.monotonic() < until:
            time.sleep(LOOK)
            there = self._look()
        if len(there) < least:
            raise FedTinyError(self._too_few(len(there), least))
        return there

    def _look(self) -> dict[int, int]:
        online = list(self.grid.get_node_ids())
        self.roster.forgive(online)
        strangers = self.roster.strangers(online)
        if strangers:
            self._welcome(strangers, online)
        return self.roster.present(online)

    def _welcome(self, strangers: list[int], online: list[int]) -> None:
        records = Question(self.kit.key, 0, b"", self.kit.text).records()
        exchange = Exchange(self.grid, self.settings.wait)
        lost = exchange.send(JOIN, dict.fromkeys(strangers, records))
        arrivals = {node: self._arrival(reply) for node, reply in exchange.replies()}
        arrivals |= dict.fromkeys(exchange.awaited | lost, "it did not answer in time")
        for node, arrival in sorted(arrivals.items()):
            self._seat(node, arrival, online)
        sent = (len(strangers) - len(lost)) * len(self.kit.text.encode())
        self.traffic += Traffic(down=sent)

    def _arrival(self, reply: Message) -> Arrival | str:
        """Who has come, or why that cannot be told."""
        if reply.has_error():
            return f"its ClientApp failed: {told(reply.error.reason or '')}"
        try:
            answer = Answer.read(reply.content, with_reply=False)
            return answer.words if answer.status == FAILED else Arrival.read(reply.content)
        except FedTinyError as error:
            return str(error)

    def _seat(self, node: int, arrival: Arrival | str, online: list[int]) -> None:
        try:
            if isinstance(arrival, str):
                raise FedTinyError(arrival)
            self._check(arrival)
            device = self.roster.seat(node, arrival, online)
        except FedTinyError as error:
            self.roster.turned_away[node] = str(error)
            self.say(f"node {node} takes no part: {error}")
        else:
            self.say(f"{self.roster.name(device)} is here with {arrival.samples} images")

    def _check(self, arrival: Arrival) -> None:
        """Refuse an absurd number of images: it is the node's weight in every mean."""
        most = self.kit.config.trust.most_samples
        if arrival.samples > most:
            raise FedTinyError(
                f"it says that it has {arrival.samples} images, more than the {most} that "
                "trust.most_samples allows"
            )

    def _too_few(self, count: int, least: int) -> str:
        away = "; ".join(self.roster.turned_away.values())
        return (
            f"after {self.settings.wait:g} s {count} nodes are here, fewer than the {least} that "
            f"fleet.min_replies asks for{f' ({away})' if away else ''}; start more nodes, then "
            "run again with flower.resume=true"
        )
