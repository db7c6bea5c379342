"""What a node does not need."""

import json
import subprocess
import sys

import pytest

from fedtiny.flower.messages import Answer, Question

from .federation import Grid, federate, parts, tiny
from .in_process import InProcessGrid

REPLAY = """
import json, sys

class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError("there is no torch", name="torch")

sys.meta_path.insert(0, NoTorch())
from flwr.app import RecordDict
from fedtiny.flower import client
from fedtiny.flower.client import Memory
from fedtiny.flower.messages import Question

memory, told = Memory(RecordDict()), json.load(sys.stdin)
for key, device, request, spec in told["questions"]:
    question = Question(key, device, bytes.fromhex(request), spec)
    if request:
        print(client.respond(question, memory, told["node"]).reply.hex())
    else:
        print(client.arrive(question, memory, {"name": "", **told["node"]}).samples)
"""


@pytest.mark.slow
def test_a_native_node_answers_a_whole_run_without_torch(tmp_path):
    """Every message that a node got in a run, answered again where torch cannot be imported."""
    first, node = next(iter(parts(3).items()))
    questions, replies = [], []

    class CapturedGraph(Grid):
        def answer(self, message):
            reply = InProcessGrid.answer(self, message)
            if message.metadata.dst_node_id == first:
                asked = Question.read(message.content)
                questions.append((asked.spec_key, asked.device, asked.request.hex(), asked.spec))
                replies.append(Answer.read(reply.content, bool(asked.request)).reply.hex())
            return reply

    federate(CapturedGraph(), tiny(rounds=2, device_backend="native"), tmp_path / "run")
    told = json.dumps({"questions": questions, "node": node})
    ran = subprocess.run(
        [sys.executable, "-c", REPLAY], input=told, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    samples, *answered = ran.stdout.split()
    assert int(samples) > 10
    assert answered == replies[1:]
    assert len(answered) == 4, "statistics, losses, and two rounds of one exchange each"
