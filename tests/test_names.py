"""The names that fedtiny has given up stay out of its source: a newcomer finds the field's own.

Words are free in prose.
"""

import re
import tokenize
from pathlib import Path

import fedtiny

SOURCE = Path(fedtiny.__file__).parent

GIVEN_UP = {
    *("Door", "Crew", "Alone", "Workers", "Remote", "Hand", "Job", "Lanes"),
    *("Moment", "moment", "Dialogue", "Hangup"),
    *("Examiner", "Expected", "trust", "Anatomy", "anatomy", "dissect", "Description"),
    *("Flow", "Paths", "fed", "heard", "Shard", "Kit", "Outfit", "Premises", "Recipe"),
    *("Reception", "Roster", "Seat", "SteadyPool", "rehearse", "Recording", "Gallery"),
    *("Middle", "pieces", "magnitude", "words", "given", "unread", "whole", "settle", "settled"),
    *("swap", "late", "late_rate", "seal", "Given", "TrustConfig", "StartAnewError"),
}
MODULES = {
    *("after", "anatomy", "crew", "crews", "description", "dialogue", "door", "ending", "expected"),
    *(
        "given",
        "job",
        "kit",
        "lanes",
        "magnitude",
        "middle",
        "moment",
        "outfit",
        "pieces",
        "premises",
    ),
    *("reception", "recipe", "remote", "roster", "seat", "settle", "shard", "swap", "trust"),
    *("unread", "whole", "words"),
}
IN_CPP = {"emit", "hand_back", "wanted"}
PREFIX = re.compile(r"most_", re.IGNORECASE)
OPTION = re.compile(r"(--)?(trust\.[\w-]+|fleet\.late[\w-]*)|own:")


def python():
    """Every Python file of fedtiny."""
    return sorted(SOURCE.rglob("*.py"))


def tokens(path, kind):
    """The tokens of one kind, with their lines."""
    with tokenize.open(path) as file:
        for token in tokenize.generate_tokens(file.readline):
            if token.type == kind:
                yield token.string, f"{path.relative_to(SOURCE)}:{token.start[0]} {token.string}"


def test_no_identifier_has_a_name_that_was_given_up():
    found = [
        where
        for path in python()
        for name, where in tokens(path, tokenize.NAME)
        if name.strip("_") in GIVEN_UP or (PREFIX.match(name.lstrip("_")) and name != "most_common")
    ]
    assert found == []


def test_no_module_has_a_name_that_was_given_up():
    folders = {path.parent for path in python()}
    found = [path for path in {*python(), *folders} if path.stem.strip("_") in MODULES]
    assert found == []


def test_no_flag_or_key_has_a_name_that_was_given_up():
    found = [
        where
        for path in python()
        for text, where in tokens(path, tokenize.STRING)
        if OPTION.match(text.lstrip("rbfRBF").strip("\"'"))
    ]
    assert found == []


def test_nothing_in_cpp_has_a_name_that_was_given_up():
    csrc = SOURCE / "native" / "csrc"
    files = [path for path in csrc.rglob("*") if path.suffix in (".cpp", ".h", ".c")]
    found = [
        f"{path.name}:{number} {name}"
        for path in files
        for number, line in enumerate(path.read_text().splitlines(), 1)
        for name in re.findall(r"[A-Za-z_]\w*", line.partition("//")[0])
        if name.rstrip("_") in IN_CPP or PREFIX.match(name)
    ]
    assert len(files) > 10
    assert found == []
    assert [path.name for path in files if path.stem in IN_CPP] == []
