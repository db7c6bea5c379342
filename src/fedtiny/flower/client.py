"""The ClientApp: one handler for each phase of a run that happens on a device."""

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedtiny.flower import node
from fedtiny.flower.memory import Memory
from fedtiny.flower.messages import QUERIES, Question

app = ClientApp()


@app.query("join")
def join(message: Message, context: Context) -> Message:
    """A node enters a run."""
    memory, question = Memory(context.state), Question.read(message.content)
    found = node.arrive(question, memory, context.node_config, context.node_id)
    return Message(found.records(), reply_to=message)


def respond(message: Message, context: Context) -> Message:
    """A node does the work of a request; which verbs it takes, the request itself says."""
    memory, question = Memory(context.state), Question.read(message.content)
    found = node.respond(question, memory, context.node_config)
    return Message(found.records(), reply_to=message)


app.train()(respond)
app.evaluate()(respond)
for query in QUERIES:
    app.query(query)(respond)
