"""When the mask is adjusted, where and how much."""

from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedtiny.sparse.mask import Mask
from fedtiny.sparse.schedule import Schedule

from .strategies import anatomies, anatomy_of, masks, resnet18, schedules

PAPER = Schedule(delta_r=10, r_stop=100)
NINE = [f"layer{i}" for i in range(9)]
PAIRS = tuple(tuple(NINE[i : i + 2]) for i in range(0, 9, 2))
VGG11 = anatomy_of(dict.fromkeys(NINE, (1000,)), blocks=PAIRS)  # its blocks, not its sizes
HALF = Mask(VGG11, dict.fromkeys(NINE, range(500)))


def events(schedule, mask, rounds):
    """What is adjusted, by the rounds in which anything is."""
    numbers = {r: schedule.pruning_numbers(mask, r) for r in range(rounds)}
    return {r: layers for r, layers in numbers.items() if layers}


def test_the_rounds_of_adjustment():
    adjusted = [r for r in range(300) if PAPER.adjusts(r)]
    assert adjusted == [0, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100]
    assert [PAPER.event(r) for r in adjusted] == list(range(11))


def test_the_last_round_need_not_be_a_multiple():
    assert [r for r in range(50) if Schedule(delta_r=7, r_stop=20).adjusts(r)] == [0, 7, 14]


@given(schedules())
def test_rounds_run_in_steps_up_to_the_stop(schedule):
    adjusted = [r for r in range(schedule.r_stop + 20) if schedule.adjusts(r)]
    assert adjusted == list(range(0, schedule.r_stop + 1, schedule.delta_r))
    assert [schedule.event(r) for r in adjusted] == list(range(len(adjusted)))


def test_ten_and_a_hundred_are_two_passes_over_five_blocks():
    turns = [PAPER.layers(VGG11, r) for r in events(PAPER, HALF, rounds=300)]
    assert turns == [*PAIRS[::-1], *PAIRS[::-1]]


def test_the_eleventh_event_is_empty():
    assert PAPER.adjusts(100)
    assert PAPER.pruning_numbers(HALF, 100) == {}
    assert PAPER.pruning_numbers(HALF, 110) == {}
    assert PAPER.pruning_numbers(HALF, 5) == {}


def test_the_block_follows_the_event_and_never_the_round():
    by_event = [PAPER.layers(VGG11, r) for r in range(0, 50, 10)]
    by_round = [PAIRS[-1 - r % 5] for r in range(0, 50, 10)]
    assert set(by_round) == {PAIRS[-1]}  # the bug: one block for ever
    assert sorted(by_event) == sorted(PAIRS)


def test_resnet18_is_adjusted_in_five_blocks_from_the_output():
    param_spec = resnet18()
    turns = [PAPER.layers(param_spec, r) for r in range(0, 60, 10)]
    assert [turn[0] for turn in turns] == [
        "layer4.1.conv1",
        "layer4.0.conv1",
        "layer3.0.conv1",
        "layer2.0.conv1",
        "layer1.0.conv1",
        "layer4.1.conv1",
    ]


@pytest.mark.parametrize(
    ("granularity", "order", "turns"),
    [
        ("block", "backward", [("c",), ("a", "b"), ("c",), ("a", "b")]),
        ("block", "forward", [("a", "b"), ("c",), ("a", "b"), ("c",)]),
        ("layer", "backward", [("c",), ("b",), ("a",), ("c",)]),
        ("layer", "forward", [("a",), ("b",), ("c",), ("a",)]),
        ("entire", "backward", [("a", "b", "c")] * 4),
        ("entire", "forward", [("a", "b", "c")] * 4),
    ],
)
def test_granularity_and_order(granularity, order, turns):
    param_spec = anatomy_of(dict.fromkeys("abc", (9,)), blocks=(("a", "b"), ("c",)))
    schedule = Schedule(delta_r=3, r_stop=30, granularity=granularity, order=order)
    assert [schedule.layers(param_spec, r) for r in (0, 3, 6, 9)] == turns


@given(schedules(), anatomies(), st.integers(0, 5))
def test_every_layer_has_one_turn_in_a_pass(schedule, param_spec, skipped):
    groups = {"block": len(param_spec.blocks), "layer": len(param_spec.prunable), "entire": 1}
    step = groups[schedule.granularity]
    first = skipped * step
    rounds = [event * schedule.delta_r for event in range(first, first + step)]
    turns = chain.from_iterable(schedule.layers(param_spec, r) for r in rounds)
    assert sorted(turns) == sorted(param_spec.prunable)


def test_the_cosine_falls_from_thirty_percent_to_nothing():
    numbers = [PAPER.pruning_number(r, kept=1000, pruned=10**6) for r in range(0, 101, 10)]
    assert numbers == [300, 292, 271, 238, 196, 150, 103, 61, 28, 7, 0]


@given(schedules(), st.integers(0, 10**6), st.integers(0, 10**6))
def test_pruning_numbers_fall_and_never_exceed_the_pruned_or_the_share(schedule, kept, pruned):
    rounds = range(schedule.r_stop + 1)
    numbers = [schedule.pruning_number(r, kept, pruned) for r in rounds]
    assert numbers == sorted(numbers, reverse=True)
    assert numbers[0] == min(3 * kept // 10, pruned)
    assert numbers[-1] == 0


def test_pruning_numbers_by_hand():
    mask = HALF.replace({"layer8": range(998), "layer7": None, "layer6": range(2)})
    assert PAPER.pruning_numbers(mask, 0) == {"layer8": 2}  # 299 of 998, but only two are pruned
    assert PAPER.pruning_numbers(mask, 10) == {}  # one is full, one rounds down to nothing
    assert PAPER.pruning_numbers(mask, 20) == {"layer4": 135, "layer5": 135}


@given(schedules(), masks(), st.integers(0, 25))
def test_pruning_numbers_are_of_the_layers_whose_turn_it_is(schedule, mask, round):
    numbers = schedule.pruning_numbers(mask, round)
    assert schedule.adjusts(round) or numbers == {}
    assert numbers.keys() <= set(schedule.layers(mask.param_spec, round))
    for layer, number in numbers.items():
        assert 0 < number <= mask.param_spec.sizes[layer] - mask.kept(layer)
        assert number <= 0.3 * mask.kept(layer) + 1e-9


@pytest.mark.parametrize("granularity", ["block", "layer", "entire"])
def test_a_dense_model_is_never_adjusted(granularity):
    schedule = Schedule(delta_r=10, r_stop=100, granularity=granularity)
    assert events(schedule, Mask.full(VGG11), rounds=120) == {}


@pytest.mark.parametrize("granularity", ["block", "layer", "entire"])
def test_a_model_without_prunable_layers_is_never_adjusted(granularity):
    schedule = Schedule(delta_r=10, r_stop=100, granularity=granularity)
    assert events(schedule, Mask.full(anatomy_of({})), rounds=120) == {}


def test_the_rate_is_the_share_of_round_0():
    plain, large = Schedule(10, 100), Schedule(10, 100, rate=0.4)
    assert plain.pruning_number(0, kept=100, pruned=900) == 30
    assert [large.pruning_number(r, kept=100, pruned=900) for r in (0, 50, 100)] == [40, 20, 0]


def test_room_counts_as_kept():
    spec = anatomy_of({"a": (100,)})
    mask = Mask(spec, {"a": range(70)})
    schedule = Schedule(1, 10, "entire")
    assert schedule.pruning_numbers(mask, 0) == {"a": 21}
    assert schedule.pruning_numbers(mask, 0, {"a": 30}) == {"a": 30}


def test_a_layer_s_next_turn():
    spec = anatomy_of({"a": (4,), "b": (4,), "c": (4,)})
    schedule = Schedule(delta_r=2, r_stop=8, granularity="layer", order="forward")
    # a in rounds 0 and 6, b in 2 and 8, c in 4
    assert [schedule.next_round(spec, "a", after) for after in (-1, 0, 5, 6)] == [0, 6, 6, None]
    assert [schedule.next_round(spec, "b", after) for after in (-1, 2, 8)] == [2, 8, None]
    assert schedule.next_round(spec, "c", 4) is None
