"""Which runs a comparison is made of, from flags and from a file."""

import pytest

from fedtiny import methods
from fedtiny.cli.compare import parse
from fedtiny.config import Config, PruningConfig, RobustnessConfig
from fedtiny.errors import ConfigError
from fedtiny.experiments.compare import Grid, equal, load
from fedtiny.experiments.places import Cell

from ..runs.tiny import TINY


def names(grid):
    return [cell.name for cell in grid.cells()]


# Cells


def test_every_method_density_and_seed_densities_outermost():
    grid = Grid(("snip", "fedtiny"), (0.05, 0.01), (0, 7))
    assert names(grid) == [
        *("snip-d0.05-s0", "snip-d0.05-s7", "fedtiny-d0.05-s0", "fedtiny-d0.05-s7"),
        *("snip-d0.01-s0", "snip-d0.01-s7", "fedtiny-d0.01-s0", "fedtiny-d0.01-s7"),
    ]


def test_a_dense_method_runs_once_a_seed():
    grid = Grid(("fedavg", "snip"), (0.05, 0.01), (0, 1))
    dense = [cell for cell in grid.cells() if cell.config.method == "fedavg"]
    assert [cell.name for cell in dense] == ["fedavg-d1-s0", "fedavg-d1-s1"]
    assert {cell.config.density for cell in dense} == {1.0}
    assert len(grid.cells()) == 2 + 4


def test_the_small_model_is_dense_but_depends_on_the_density():
    assert len(Grid(("small_model",), (0.05, 0.01)).cells()) == 2


def test_what_is_asked_twice_is_run_once():
    assert names(Grid(("snip", "snip"), (0.05, 0.05), (3, 3))) == ["snip-d0.05-s3"]


def test_all_means_every_method():
    assert Grid().method_names() == tuple(methods.names())
    assert len(Grid(("all",), (0.05,)).cells()) == len(methods.names())


def test_a_cell_has_the_base_s_settings_but_for_the_three_that_vary():
    (cell,) = Grid(("grasp",), (0.2,), (5,), TINY).cells()
    assert (cell.config.method, cell.config.density, cell.config.seed) == ("grasp", 0.2, 5)
    assert (cell.config.fleet, cell.config.train, cell.config.rounds) == (TINY.fleet, TINY.train, 3)
    assert cell == Cell(cell.config, "grasp-d0.2-s5")


def test_an_unknown_method_is_named():
    with pytest.raises(ConfigError, match=r"no method 'snap'.*did you mean 'snip'"):
        Grid(("fedavg", "snap")).cells()


# From a file


@pytest.fixture
def toml(tmp_path):
    def write(text):
        path = tmp_path / "grid.toml"
        path.write_text(text)
        return path

    return write


def test_lists_stand_beside_the_keys_of_a_config(toml):
    grid = load(
        toml(
            """
            methods = ["fedavg", "snip"]
            density = [0.05, 1]
            seeds = [0, 1, 2]
            rounds = 4
            [pruning]
            delta-r = 2
            """
        )
    )
    assert grid.methods == ("fedavg", "snip")
    assert grid.density == (0.05, 1)
    assert grid.seeds == (0, 1, 2)
    assert grid.base == equal({"rounds": 4, "pruning": {"delta_r": 2}})


def test_a_single_value_is_a_list_of_one(toml):
    grid = load(toml('methods = "snip"\ndensity = 0.05\nseeds = 3'))
    assert (grid.methods, grid.density, grid.seeds) == (("snip",), (0.05,), (3,))


def test_what_is_left_out_keeps_its_default(toml):
    assert load(toml("rounds = 4")) == Grid(base=equal({"rounds": 4}))


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("methods = [1]", "'methods' must be a list of str"),
        ("methods = []", "'methods' must be a list of str"),
        ("methods = [['snip']]", "'methods' must be a list of str"),
        ("density = ['low']", "'density' must be a list of float"),
        ("density = [0.1, true]", "'density' must be a list of float"),
        ("density = []", "'density' must be a list of float"),
        ("density = {low = 0.1}", "'density' must be a list of float"),
        ("seeds = [0.5]", "'seeds' must be a list of int"),
        ("seeds = ['0']", "'seeds' must be a list of int"),
        ("seeds = [false]", "'seeds' must be a list of int"),
        ("rounds = 'many'", "'rounds' must be int, got 'many'"),
        ("round = 3", "unknown key 'round'; did you mean 'rounds'"),
        ("[train]\nlr = 'high'", "'train.lr' must be float"),
        ("rounds = 0", "--rounds must be at least 1"),
        ("methods = [", "cannot read"),
    ],
)
def test_what_is_wrong_in_a_file_is_named_with_the_file(toml, text, complaint):
    path = toml(text)
    with pytest.raises(ConfigError) as told:
        load(path)
    assert complaint in str(told.value)
    assert str(path) in str(told.value)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(ConfigError, match=r"cannot read .*nowhere\.toml"):
        load(tmp_path / "nowhere.toml")


# From flags


def test_flags_win_over_the_file(toml):
    path = toml('methods = ["snip"]\ndensity = [0.05]\nseeds = [1, 2]\nrounds = 4')
    grid, out = parse([str(path), "--density", "0.2", "0.1", "--rounds", "6", "--out", "there"])
    assert (grid.methods, grid.density, grid.seeds) == (("snip",), (0.2, 0.1), (1, 2))
    assert grid.base == equal({"rounds": 6})
    assert str(out) == "there"


def test_flags_of_a_run_may_stand_anywhere():
    flags = "--train.lr 0.1 --methods snip grasp --fleet.devices 4 --seeds 3 --rounds 2"
    grid, _ = parse(flags.split())
    assert (grid.methods, grid.seeds) == (("snip", "grasp"), (3,))
    assert (grid.base.train.lr, grid.base.fleet.devices, grid.base.rounds) == (0.1, 4, 2)


@pytest.mark.parametrize("flags", ["--seed 7", "--method snip"])
def test_a_flag_that_says_nothing_here_is_refused_or_heeded(flags):
    try:
        grid, _ = parse(["--methods", "fl_pqsu", *flags.split()])
    except (ConfigError, SystemExit):
        return
    (cell,) = grid.cells()
    assert cell.config.seed == 7 or cell.config.method == "snip"


# Terms


def terms(grid):
    """Recipe and layer budgets of each method, as the table has them."""
    return {
        place.config.method: (place.at["recipe"].label, place.at["budgets"].label)
        for place in grid.places()
    }


def test_all_methods_have_the_same_terms_unless_others_are_asked_for():
    grid, _ = parse([])
    assert grid.base == Config(
        recipe="paper",
        pruning=PruningConfig(budgets="uniform"),
        robustness=RobustnessConfig(bound=0, reject=0),
    )
    found = terms(grid)
    assert {recipe for recipe, _ in found.values()} == {"paper"}
    others = {name: budgets for name, (_, budgets) in found.items() if budgets != "uniform"}
    assert others == {"fedavg": "-", "small_model": "-", "ssfl": "global"}


def test_each_method_may_have_its_own_terms(toml):
    flags = "--methods fedtiny fedtiny_flow --recipe own --pruning.budgets None"
    own, _ = parse(flags.split())
    assert terms(own) == {"fedtiny": ("paper", "uniform"), "fedtiny_flow": ("momentum", "flow")}
    file = toml('methods = ["fedtiny", "fedtiny_flow"]\nrecipe = "own"')
    assert load(file).base == own.base
    assert own.base.robustness == RobustnessConfig(bound=0, reject=0)


def test_a_file_that_names_budgets_or_defenses_has_them(toml):
    text = 'recipe = "own"\n[pruning]\nbudgets = "erk"\n[robustness]\nbound = 2.0'
    base = load(toml(text)).base
    assert (base.recipe, base.pruning.budgets) == ("own", "erk")
    assert base.robustness == RobustnessConfig(bound=2.0, reject=0)


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ("--train.lr 0.1", "paper, changed"),
        ("--server.optimizer fedavgm", "paper, changed"),
        ("--train.local-epochs 2 --train.batch-size 8", "paper"),
        ("--recipe momentum", "momentum"),
        ("--train.optimizer sgd --train.lr-schedule cosine --server.optimizer fedavgm "
         "--server.beta1 0.7", "momentum"),
    ],
)  # fmt: skip
def test_the_recipe_is_the_one_that_training_follows(flags, told):
    grid, _ = parse(["--methods", "snip", *flags.split()])
    assert terms(grid) == {"snip": (told, "uniform")}


def test_a_method_that_cannot_have_the_terms_of_the_others_is_named(monkeypatch):
    monkeypatch.setattr(methods.OURS["set"], "budgets", ("erk",))
    why = {"ssfl": "has one threshold for all layers", "set": "has other layer budgets: erk"}
    grid, _ = parse([])
    assert grid.unequal() == [
        f"on other terms: {name} {reason} (not --pruning.budgets uniform)"
        for name, reason in why.items()
    ]
    assert terms(grid)["set"] == ("paper", "own")
    assert parse(["--pruning.budgets", "erk"])[0].unequal() == []
