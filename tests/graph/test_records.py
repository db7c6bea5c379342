"""One reader for nodes as records; it takes nothing on trust."""

import json

import pytest

from fedtiny import models
from fedtiny.errors import ModelError
from fedtiny.graph.ir import LIMITS, Graph, Kind, Node
from fedtiny.graph.records import nodes_of, packed_records
from fedtiny.graph.trace import trace

IMAGE = {"kind": "input", "channels": 1, "size": [8, 8]}
READABLE = [name for name in models.KINDS if name != "resnet18_ns"]  # computes with its weights
JUNK = (None, True, -1, 2**40, 1.5, "", "x" * 300, [], [1], [1, -1], [[1, 1]], {"a": 1})


def read(*records, training=False):
    return nodes_of(list(records), training=training, most=100)


def network(name="resnet18"):
    return trace(models.build(name, (3, 32, 32), 10, width=4), (3, 32, 32))


@pytest.mark.parametrize("name", READABLE)
def test_records_of_another_process_lead_back_to_the_graph(name):
    graph = network(name)
    again = Graph.from_plain(json.loads(json.dumps(graph.to_plain())))
    assert again == graph
    assert Graph.from_plain(graph.to_plain()) == graph


def test_a_record_of_another_process_has_every_field_and_a_number_as_kind():
    first = json.loads(json.dumps(network().to_plain()))[1]
    assert first["kind"] == 1
    assert first.keys() == Node.__dataclass_fields__.keys()


def test_a_packed_record_has_a_name_as_kind_and_what_differs():
    records = packed_records(network("vgg11").nodes)
    assert records[0] == {"kind": "input", "channels": 3, "size": (32, 32)}
    kernel = {"kernel": (3, 3), "padding": (1, 1)}
    expected = {"inputs": (0,), "name": "features.0", "channels": 4, **kernel, "bias": True}
    assert records[1] == {"kind": "convolution", **expected}
    assert not any("probability" in record or "momentum" in record for record in records)


def test_packed_records_lead_back_to_the_network_but_for_training():
    graph = network()
    records = json.loads(json.dumps(packed_records(graph.nodes)))
    assert nodes_of(records, training=False, most=LIMITS.nodes) == graph.nodes


@pytest.mark.parametrize("records", [None, {}, "input", 5])
def test_what_is_no_list_is_refused(records):
    with pytest.raises(ModelError, match="not a list"):
        nodes_of(records, training=False, most=10)


def test_too_many_are_refused_before_they_are_read():
    with pytest.raises(ModelError, match="2 to 3 steps, not 4"):
        nodes_of([None] * 4, training=False, most=3)


def test_no_records_are_no_network():
    with pytest.raises(ModelError, match=r"2 to \d+ steps, not 0"):
        Graph.from_plain([])


@pytest.mark.parametrize("kind", [None, 1, True, "", "Fourier", ["input"], {}])
def test_an_unknown_kind_is_refused(kind):
    with pytest.raises(ModelError, match="step 1 is of no known kind"):
        read(IMAGE, {"kind": kind})


@pytest.mark.parametrize("kind", [None, -1, len(Kind), "Fourier", 1.0])
def test_an_unknown_kind_of_another_process_is_refused(kind):
    with pytest.raises(ModelError, match="step 0 is of no known kind"):
        read({"kind": kind}, training=True)


@pytest.mark.parametrize("record", [None, 3, "input", ["kind"]])
def test_what_is_no_record_is_refused(record):
    with pytest.raises(ModelError, match="no known kind"):
        read(record)


def refused(field, value, training):
    """Whether a convolution cannot have this value in a field."""
    kind = 1 if training else "convolution"
    try:
        read({"kind": kind, field: value}, training=training)
    except ModelError as error:
        return f"step 0 cannot have this '{field}'" in str(error)
    return False


@pytest.mark.parametrize("training", [True, False])
def test_a_field_has_its_type_and_range(training):
    accepted = {
        **{field: [] for field in ("channels", "groups", "axis", "start")},
        **{
            field: []
            for field in ("size", "kernel", "stride", "padding", "dilation", "output_padding")
        },
        "padding_end": [None] if training else [],
        **{field: [True] for field in ("bias", "count_padding", "ceil", "approximate")},
        **{field: [1.5] for field in ("epsilon", "slope", "factor", "offset")},
        **{field: [[], [1]] for field in ("order", "shape")},
        "inputs": [[], [1]],
        "name": ["", "x" * 300] if training else [""],
    }
    for field, good in accepted.items():
        assert [junk for junk in JUNK if not refused(field, junk, training)] == good, field


def test_fields_of_training_and_unknown_ones_are_not_packed():
    assert refused("momentum", 0.5, training=False)
    assert not refused("momentum", 0.5, training=True)
    assert refused("colour", 3, training=False)
    assert refused("colour", 3, training=True)
