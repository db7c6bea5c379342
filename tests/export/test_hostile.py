"""A damaged, truncated or hostile packed file ends in one clear sentence, within its memory."""

import json
import tracemalloc
from dataclasses import replace
from math import prod

import numpy as np
import pytest
from safetensors.numpy import load, save

from fedtiny import models
from fedtiny.data.transforms import Preparation
from fedtiny.errors import ExportError, ModelError
from fedtiny.export import packed
from fedtiny.export.c_source import write_c
from fedtiny.export.network import TinyModel, lower
from fedtiny.export.numpy_model import NumpyModel
from fedtiny.files import digest_of
from fedtiny.graph.arrays import Lowered, Weights
from fedtiny.graph.ir import UNTRUSTED, Graph, Kind, Node
from fedtiny.graph.records import PACKED
from fedtiny.graph.trace import trace

from ..graph.blocks import NETWORKS
from ..graph.building import Builder
from ..graph.dense import tiny
from .nets import shipped, sparse, tiny_model

MUTATIONS = 3000
LOWERING = {"fold": True, "remove_dead": True}


@pytest.fixture(scope="module", params=["fp32", "int8"])
def whole(request):
    return packed.packed(tiny_model(shipped("small", 0.1)), request.param)


def parts(data):
    """The tensors and the description of a packed file."""
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    tensors = load(data)
    del tensors["digest"]
    return tensors, json.loads(header["__metadata__"]["fedtiny.packed"])


def sealed(tensors, told):
    """A file whose checksum fits, whatever else does not."""
    text = told if isinstance(told, str) else json.dumps(told)
    digest = np.frombuffer(bytes.fromhex(digest_of(tensors, text)), np.uint8)
    return save({**tensors, "digest": digest}, {"fedtiny.packed": text})


def refused(data):
    """The sentence that a file is refused with."""
    with pytest.raises(ExportError) as told:
        packed.unpacked(data, "my.packed")
    sentence = str(told.value)
    assert sentence.startswith("my.packed is ")
    assert sentence.isprintable()
    assert len(sentence) < 300
    return sentence


def survives(data):
    """Read what may be read; nothing but the one error may come out of it."""
    try:
        return packed.unpacked(data, "my.packed")
    except ExportError as error:
        sentence = str(error)
    assert sentence.isprintable()
    return None


# Damage


def test_every_truncation_is_told(whole):
    for length in {*range(0, len(whole), 97), *range(64), len(whole) - 1}:
        refused(whole[:length])
    refused(whole + b"\0")


def test_no_changed_bit_goes_unnoticed(whole):
    draw = np.random.default_rng(0)
    for place in draw.integers(0, len(whole), MUTATIONS):
        changed = bytearray(whole)
        changed[place] ^= 1 << int(draw.integers(8))
        found = survives(bytes(changed))
        assert found is None or packed.packed(found, found.held) == whole, place


def test_shuffled_and_overwritten_parts(whole):
    draw = np.random.default_rng(1)
    for _ in range(MUTATIONS // 4):
        changed = bytearray(whole)
        start, to = draw.integers(0, len(whole), 2)
        length = int(draw.integers(1, 200))
        if draw.random() < 0.5:
            changed[to : to + length] = changed[start : start + length]
        else:
            changed[start : start + length] = draw.bytes(length)
        found = survives(bytes(changed))
        assert found is None or bytes(changed) == whole


@pytest.mark.parametrize("data", [b"", b"{}", b"\0" * 1000, b"PK\x03\x04", b"\xff" * 64])
def test_what_is_no_packed_file_at_all(data):
    assert "is not a packed model" in refused(data)


def test_a_plain_safetensors_file_is_no_packed_model():
    data = save({"weight": np.zeros(3, np.float32)}, {"format": "pt"})
    assert "fedtiny export DIR" in refused(data)


def test_a_missing_file_is_told(tmp_path):
    with pytest.raises(ExportError, match="No such file"):
        packed.read(tmp_path / "none.packed")
    with pytest.raises(ExportError, match="Is a directory"):
        packed.read(tmp_path)


# Lies under a checksum that fits

JUNK = (None, True, -1, 0, 3, 10**9, 2**63, 1e300, float("nan"), "", "x" * 300, "\x1b[2J", [], {})
JUNK += ([0], [-1, 2], [1] * 50, [[]], {"a": 1}, [1e9, 1], [4096, 4096], "linear", "input")


def places(value, way=()):
    """The way to every part of a description."""
    yield way
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in items:
        if isinstance(inner, dict | list):
            yield from places(inner, (*way, key))
        else:
            yield (*way, key)


def with_changed(told, way, value):
    changed = json.loads(json.dumps(told))
    if not way:
        return value
    inner = changed
    for key in way[:-1]:
        inner = inner[key]
    inner[way[-1]] = value
    return changed


def test_a_description_that_lies_anywhere_about_anything(whole):
    tensors, told = parts(whole)
    accepted = 0
    for way in places(told):
        for junk in JUNK:
            found = survives(sealed(tensors, with_changed(told, way, junk)))
            if found is not None:
                accepted += 1
                logits = NumpyModel(found)(np.zeros((1, *found.shape), np.uint8))
                assert logits.shape == (1, len(found.classes))
    assert accepted < 200, "most lies are found out; the rest tell of another valid model"


@pytest.mark.parametrize("name", ["Vit", "encoder", "ShuffleNetV2", "temporal", "recurrent"])
def test_steps_of_every_kind_that_lie(name):
    made = sparse(NETWORKS[name][0](), NETWORKS[name][1], 0.3)
    tensors, told = parts(packed.packed(tiny(lower(made.graph, made.theta, **LOWERING))))
    draw, fields = np.random.default_rng(4), sorted({"kind", *PACKED})
    kinds = [kind.name.lower() for kind in Kind]
    for _ in range(MUTATIONS // 15):
        steps = json.loads(json.dumps(told["steps"]))
        for _ in range(int(draw.integers(1, 3))):
            field = fields[draw.integers(len(fields))]
            values = (*JUNK, 1, 2, [1, 1], [2, 3], [0, 2, 1], 0.5, kinds[draw.integers(len(kinds))])
            steps[draw.integers(len(steps))][field] = values[draw.integers(len(values))]
        found = survives(sealed(tensors, {**told, "steps": steps}))
        if found is not None:
            logits = NumpyModel(found)(np.zeros((1, *found.shape), np.uint8))
            assert logits.shape == (1, len(found.classes))


@pytest.mark.parametrize(
    "node",
    [
        Node(Kind.UPSAMPLE, (0,), size=(2**20, 2**20)),
        Node(Kind.CONVOLUTION, (0,), "c", 1, stride=(4096, 4096), padding=(4096, 4096)),
        Node(Kind.TRANSPOSED_CONVOLUTION, (0,), "c", 1, stride=(4096, 4096)),
        Node(Kind.TRANSPOSED_CONVOLUTION, (0,), "c", 1, (0, 0), (4096, 4096), (1, 1), (4095, 4095)),
        Node(Kind.RESHAPE, (0,), channels=2**24 + 8, size=(1, 1)),
        Node(Kind.PARAMETER, name="p", shape=(2**25,), channels=2**25, size=(1, 1)),
    ],
)
def test_a_step_that_would_take_much_memory_is_refused(node):
    pool = (Node(Kind.ADAPTIVE_POOL, (1,), size=(1, 1)), Node(Kind.LINEAR, (2,), "fc", 1))
    with pytest.raises(ModelError, match=r"step 1|reads more than|values"):
        Graph((Node(Kind.INPUT, channels=4, size=(128, 128)), node, *pool)).check_limits(UNTRUSTED)


def test_descriptions_without_a_part(whole):
    tensors, told = parts(whole)
    for name in told.keys() - {"reads"}:  # which older files do not tell
        refused(sealed(tensors, {key: value for key, value in told.items() if key != name}))


def test_random_descriptions(whole):
    tensors, told = parts(whole)
    draw = np.random.default_rng(2)
    ways = [way for way in places(told) if way and way[0] == "steps"]
    for _ in range(MUTATIONS // 3):
        lie = told
        for _ in range(int(draw.integers(1, 4))):
            way = ways[draw.integers(len(ways))]
            try:
                lie = with_changed(lie, way, JUNK[draw.integers(len(JUNK))])
            except (KeyError, IndexError, TypeError):
                continue
        survives(sealed(tensors, lie))


@pytest.mark.parametrize("text", ["", "[]", "{", "null", "[" * 100_000, '{"format": 1}', "1e999"])
def test_texts_that_are_no_description(whole, text):
    refused(sealed(parts(whole)[0], text))


def test_another_format_is_named(whole):
    tensors, told = parts(whole)
    assert "format 3" in refused(sealed(tensors, {**told, "format": 3}))


def test_tensors_that_do_not_fit(whole):
    tensors, told = parts(whole)
    for name, array in tensors.items():
        for wrong in (array[:-1], np.append(array, array[:1]), array.reshape(1, -1)):
            refused(sealed({**tensors, name: wrong}, told))
        refused(sealed({**tensors, name: array.astype(np.float64)}, told))
        refused(sealed({n: a for n, a in tensors.items() if n != name}, told))
    assert "uses 'more'" in refused(sealed({**tensors, "more": np.zeros(1, np.uint8)}, told))


def test_positions_that_lie(whole):
    tensors, told = parts(whole)
    names = [name for name in tensors if name.endswith(".positions")]
    draw = np.random.default_rng(3)
    assert names
    for _ in range(MUTATIONS // 3):
        name = names[draw.integers(len(names))]
        code = bytearray(tensors[name].tobytes())
        for _ in range(int(draw.integers(1, 4))):
            code[draw.integers(len(code))] = draw.integers(256)
        survives(sealed({**tensors, name: np.frombuffer(bytes(code), np.uint8)}, told))


# Numbers that nothing can be computed with


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_not_finite(whole, number):
    tensors, told = parts(whole)
    floats = [name for name, array in tensors.items() if array.dtype == np.float32]
    assert any(name.endswith(".bias") for name in floats)
    for name in floats:
        wrong = tensors[name].copy()
        wrong[-1] = number
        assert f"{name!r} holds NaN or infinity" in refused(sealed({**tensors, name: wrong}, told))


def test_eight_bits_that_are_scaled_beyond_all_numbers():
    tensors, told = parts(packed.packed(tiny_model(shipped("small", 0.1)), "int8"))
    huge = {n: np.full_like(a, 3e38) if n.endswith(".scales") else a for n, a in tensors.items()}
    assert "are NaN or infinite" in refused(sealed(huge, told))


def test_a_variance_below_zero():
    tensors, told = parts(packed.packed(tiny_model(shipped("small", 0.1), fold=False)))
    (name, *_) = [name for name in tensors if name.endswith(".variance")]
    sentence = refused(sealed({**tensors, name: -tensors[name]}, told))
    assert "are NaN, infinite or below 0" in sentence


@pytest.mark.parametrize("write", [lambda m, _: packed.packed(m), lambda m, out: write_c(m, out)])
def test_a_diverged_model_is_not_written(tmp_path, write):
    weights = {"fc": Weights((1, 1), None, np.float32([1]), np.float32([np.inf]))}
    head = Node(Kind.LINEAR, inputs=(0,), name="fc", channels=1, bias=True)
    net = Lowered(Graph((Node(Kind.INPUT, channels=1, size=(1, 1)), head)), weights, {})
    model = TinyModel(net, Preparation((0.5,), (0.5,)), ("a",), {})
    with pytest.raises(ModelError, match="weights of 'fc' are NaN or infinite"):
        write(model, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_network_without_a_layer():
    image = {"kind": "input", "channels": 1, "size": [1, 1]}
    told = {"format": 1, "values": "fp32", "steps": [image, {"kind": "relu", "inputs": [0]}]}
    told |= {"input": {"mean": [0.5], "std": [0.5]}, "classes": ["a"], "card": {}}
    assert "at least one layer" in refused(sealed({}, told))


@pytest.mark.parametrize("claim", [10**400, 2**53, 0, -1, True, "many", None, 1e300])
def test_a_card_whose_size_cannot_be_is_not_believed(whole, claim):
    tensors, told = parts(whole)
    found = packed.unpacked(sealed(tensors, {**told, "card": {"dense_bytes": claim}}))
    honest = replace(found, card={})
    assert found.dense_bytes == honest.dense_bytes > len(whole)


# Memory


def bombs(whole):
    """Small files that claim to be huge."""
    tensors, told = parts(whole)
    steps = told["steps"]
    rice = np.frombuffer(bytes([2 + 30]) + b"\xff" * 8 + b"\0" * 20, np.uint8)
    yield sealed({**tensors, "4.positions": rice}, told)
    for name, value in (("channels", 2**31), ("kernel", [4096, 4096]), ("padding", [4096, 4096])):
        for number in range(len(steps)):
            lie = [{**s, name: value} if n == number else s for n, s in enumerate(steps)]
            yield sealed(tensors, {**told, "steps": lie})
    yield sealed(tensors, {**told, "steps": [{**steps[0], "size": [2**15, 2**15]}, *steps[1:]]})
    yield sealed(tensors, {**told, "steps": steps * 1000})
    yield sealed(tensors, {**told, "classes": ["x"] * 10**5})


def test_memory_stays_within_a_multiple_of_the_file(whole):
    for bomb in bombs(whole):
        tracemalloc.start()
        try:
            survives(bomb)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < 60 * len(bomb) + 1_000_000


def test_a_small_network_that_takes_huge_work_is_refused(monkeypatch):
    net = Builder((1, 64, 64))
    wide = net.convolution("wide", 0, 1, kernel=(60, 60), padding=(200, 200))
    net.flatten(net.adaptive_pool(wide, (1, 1)))
    weights = Weights((1, 1, 60, 60), np.array([7]), np.float32([1]), None)
    model = TinyModel(
        Lowered(net.graph, {"wide": weights}, {}), Preparation((0.5,), (0.5,)), ("a",), {}
    )
    with pytest.raises(ModelError, match="reads more than"):
        packed.packed(model)
    with monkeypatch.context() as patch:
        patch.setattr(packed, "UNTRUSTED", replace(UNTRUSTED, read=1 << 40))
        data = packed.packed(model)
    assert "reads more than" in refused(data)


def of_steps(*nodes, classes=("a",)):
    """A model of one channel and one layer, `fc`, of one weight."""
    weights = {"fc": Weights((1, 1), None, np.float32([1]), None)}
    net = Lowered(Graph(nodes), weights, {})
    return TinyModel(net, Preparation((0.5,), (0.5,)), classes, {})


def chain(size, count, *, idle):
    """Many steps of this size, that follow each other or that all read the image; and a head."""
    relus = [Node(Kind.RELU, inputs=(0 if idle else i,)) for i in range(count)]
    pool = Node(Kind.ADAPTIVE_POOL, inputs=(0 if idle else count,), size=(1, 1))
    head = Node(Kind.LINEAR, inputs=(count + 1,), name="fc", channels=1)
    return of_steps(Node(Kind.INPUT, channels=1, size=size), *relus, pool, head)


@pytest.mark.parametrize("idle", [True, False])
def test_a_small_file_of_many_large_steps_is_refused(monkeypatch, idle):
    model, sentence = chain((4096, 4096), 40, idle=idle), "give more than 536870912 values"
    with pytest.raises(ModelError, match=sentence):
        packed.packed(model)
    with monkeypatch.context() as patch:
        patch.setattr(packed, "UNTRUSTED", replace(UNTRUSTED, held=1 << 60))
        patch.setattr(Graph, "check_all_needed", lambda graph: None)
        data = packed.packed(model)
    assert len(data) < 10_000
    assert sentence in refused(data)


def test_steps_that_nothing_needs_are_refused(monkeypatch):
    model = chain((64, 64), 40, idle=True)
    with monkeypatch.context() as patch:
        patch.setattr(Graph, "check_all_needed", lambda graph: None)
        data = packed.packed(model)
    assert "does not need step 1)" in refused(data)


@pytest.mark.parametrize("idle", [True, False])
def test_no_more_is_held_than_is_still_needed(idle):
    model = NumpyModel(chain((256, 256), 100, idle=idle))
    tracemalloc.start()
    model(np.zeros((1, 1, 256, 256), np.uint8))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 6 * 4 * 256 * 256, "not a hundred of them"


def test_many_large_images_are_not_computed_at_once():
    model = NumpyModel(chain((1024, 1024), 300, idle=False))
    tracemalloc.start()
    logits = model(np.zeros((8, 1, 1024, 1024), np.uint8))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert logits.shape == (8, 1)
    assert peak < 12 * 4 * 1024 * 1024, "one image after the other"


@pytest.mark.parametrize("side", [224, 448])
def test_the_bounds_let_large_images_through(side):
    network = models.build("resnet18", (3, side, side), 1000, width=64)
    graph = trace(network, (3, side, side))
    graph.check_limits(UNTRUSTED)
    assert sum(map(prod, graph.shapes)) > 1_900 * side**2, "all of it, with every norm"


def test_a_whole_file_is_read_within_a_small_multiple_of_itself():
    data = packed.packed(tiny_model(shipped("resnet18", 0.1)))
    tracemalloc.start()
    packed.unpacked(data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 12 * len(data)


def test_the_checks_that_protect_a_reader_do_not_bar_a_writer():
    model = tiny_model(shipped("vgg11", 0.5))
    again = packed.unpacked(packed.packed(replace(model, card={})))
    assert again.classes == model.classes
