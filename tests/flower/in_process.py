"""A grid without a network: every node in this process, one after the other.

It runs a real ServerApp and a real ClientApp, for tests, for measurements of scale, and for a look
at an app before anything is deployed. Flower's own simulation does the same in many processes.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

CLIENT_APP_FAILED = 2  # Flower's code


class InProcessGrid(Grid):
    """Nodes of one ClientApp, each with a context of its own."""

    def __init__(self, app: ClientApp, node_configs: Mapping[int, Mapping[str, Any]]) -> None:
        _take_identity()
        self.app = app
        self.contexts = {
            node: Context(1, node, dict(config), RecordDict(), {})
            for node, config in node_configs.items()
        }
        self.sent: dict[str, Message] = {}

    def get_node_ids(self) -> Iterable[int]:
        return list(self.contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = message.object_id
            self.sent[message.metadata.message_id] = message
            ids.append(message.metadata.message_id)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Nodes work when their reply is fetched, so that no two replies need be held."""
        for identity in list(message_ids):
            if identity in self.sent:
                yield self.answer(self.sent.pop(identity))

    def answer(self, message: Message) -> Message:
        """What a node replies."""
        try:
            return self.app(message, self.contexts[message.metadata.dst_node_id])
        except Exception as error:
            failure = Error(CLIENT_APP_FAILED, f"{type(error).__name__}: {error}")
            return Message(failure, reply_to=message)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        return self.pull_messages(self.push_messages(messages))

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def set_run(self, run: Any) -> None:
        """There is but one run."""

    @property
    def run(self) -> Any:
        raise NotImplementedError("a grid in one process has no SuperLink to tell of its run")


def _take_identity() -> None:
    """From flwr 1.38 on a message can only be made within a task, which Flower sets up itself."""
    try:
        from flwr.supercore.task_identity import TaskIdentity
    except ImportError:
        return
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
