"""The page of operations says what the backends' tables say."""

from pathlib import Path

from fedtiny.export import support

PAGE = Path(__file__).parents[2] / "docs" / "operations.md"


def test_the_table_is_that_of_the_backends():
    rows = [line.strip("| ").split(" | ") for line in PAGE.read_text().splitlines()]
    found = {row[0].strip("`"): row[1:6] for row in rows if row[0].startswith("`") and len(row) > 5}
    expected = {n: ["yes" if has else "no" for has in row] for n, row in support.table().items()}
    assert found == expected
