"""Methods are found by name: ours, and those of other packages."""

import pytest

from fedtiny import methods
from fedtiny.errors import ConfigError
from fedtiny.federation.method import Method

from ..devices.tiny import settings


class Guest(Method):
    """A method from another package.

    With a longer explanation.
    """

    name = "guest"


class EntryPoint:
    """What importlib.metadata gives for a plug-in."""

    def load(self):
        return Guest


@pytest.fixture
def plugged_in(monkeypatch):
    groups = {"fedtiny.methods": [EntryPoint()]}
    monkeypatch.setattr(methods, "entry_points", lambda group: groups[group])


@pytest.mark.parametrize("method", methods.BUILT_IN)
def test_every_method_of_ours_is_found_by_its_name(method):
    assert methods.find(method.name) is method
    assert isinstance(methods.create(settings(method=method.name)), method)


def test_names_are_not_given_twice():
    assert len({method.name for method in methods.BUILT_IN}) == len(methods.BUILT_IN)


def test_an_unknown_method_gets_a_suggestion_and_the_list():
    with pytest.raises(ConfigError, match="no method 'fedtinny'") as told:
        methods.find("fedtinny")
    assert "did you mean 'fedtiny'?" in str(told.value)
    assert "fedavg" in str(told.value)


def test_a_name_like_no_other_gets_no_suggestion():
    with pytest.raises(ConfigError) as told:
        methods.find("xyz")
    assert "did you mean" not in str(told.value)


@pytest.mark.usefixtures("plugged_in")
def test_a_plug_in_is_found_like_ours():
    assert methods.find("guest") is Guest
    assert methods.find("fedtiny") is methods.FedTiny
    config = settings(method="guest")
    assert methods.create(config).config is config


@pytest.mark.usefixtures("plugged_in")
def test_a_plug_in_is_listed_and_suggested():
    assert methods.names()["guest"] == "A method from another package."
    with pytest.raises(ConfigError, match="did you mean 'guest'"):
        methods.find("gest")


def test_every_method_has_a_line_of_description():
    for name, line in methods.names().items():
        assert line.endswith("."), name
        assert len(line) < 100
