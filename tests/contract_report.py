"""Which contract rows are named by a test, reasoned as a deviation, or still open.

``python -m tests.contract_report`` prints the state per area; ``--missing`` lists the open rows; ``--check`` fails when
a marker names an unknown row, when a row is both pinned and reasoned away, or when an area that is declared complete
has an open row. The wording of each row stands in ``contract/rows.toml``, the reasons in ``contract/deviations.toml``.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROW_ID = re.compile(r"^([A-Z]+)-0*(\d+)$")


def normal(row_id: str) -> str:
    """``EVT-01`` and ``EVT-1`` are one row."""
    match = ROW_ID.match(row_id)
    if match is None:
        raise SystemExit(f"not a row id: {row_id!r}")
    return f"{match[1]}-{match[2]}"


def area(row_id: str) -> str:
    return row_id.split("-")[0]


def order(row_id: str) -> tuple[str, int]:
    prefix, number = row_id.split("-")
    return prefix, int(number)


def marked(path: Path) -> Iterator[str]:
    """Ids in ``@pytest.mark.contract(...)`` of one test file, also inside ``pytest.param(..., marks=...)``."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), filename=str(path))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "contract":
            for argument in node.args:
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                    yield normal(argument.value)


def load(name: str) -> dict[str, dict[str, Any]]:
    with (HERE / "contract" / name).open("rb") as file:
        return tomllib.load(file)


class Report:
    """The state of all rows."""

    def __init__(self) -> None:
        table = load("rows.toml")
        deviations = load("deviations.toml").values()
        self.rows = {normal(row_id) for row_id in table["rows"]}
        self.complete = set(table["areas"]["complete"])
        self.reasoned = {normal(row_id) for entry in deviations for row_id in entry["rows"]}
        self.pinned = {normal(row_id) for entry in deviations if entry.get("pinned") for row_id in entry["rows"]}
        self.named: dict[str, set[str]] = defaultdict(set)
        for path in sorted(HERE.rglob("test_*.py")):
            for row_id in marked(path):
                self.named[row_id].add(path.relative_to(HERE).as_posix())
        self.known = self.rows | self.reasoned
        self.open = self.known - set(self.named) - self.reasoned

    def print(self, *, missing: bool) -> None:
        """One line per area: named by a test, reasoned only, open, all."""
        print(f"{'area':8} {'named':>6} {'reasoned':>9} {'open':>6} {'rows':>6}")
        for prefix in sorted({area(row_id) for row_id in self.known}):
            ids = {row_id for row_id in self.known if area(row_id) == prefix}
            named, reasoned = ids & set(self.named), ids & self.reasoned - set(self.named)
            state = "  complete" if prefix in self.complete else ""
            print(f"{prefix:8} {len(named):6} {len(reasoned):9} {len(ids & self.open):6} {len(ids):6}{state}")
            if missing and ids & self.open:
                print("         open:", " ".join(sorted(ids & self.open, key=order)))

    def problems(self) -> Iterator[str]:
        """What ``--check`` fails for."""
        for row_id in sorted(set(self.named) - self.rows, key=order):
            yield f"{row_id}: named by {', '.join(sorted(self.named[row_id]))}, but not in rows.toml"
        for row_id in sorted((self.reasoned - self.pinned) & set(self.named), key=order):
            yield f"{row_id}: reasoned in deviations.toml, yet a test pins it"
        for row_id in sorted(self.pinned - set(self.named), key=order):
            yield f"{row_id}: said to be pinned differently, but no test names it"
        for row_id in sorted(self.open, key=order):
            if area(row_id) in self.complete:
                yield f"{row_id}: neither named by a test nor reasoned, in an area declared complete"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail on unknown, doubly claimed or missing rows")
    parser.add_argument("--missing", action="store_true", help="list the rows that are still open")
    options = parser.parse_args()
    report = Report()
    report.print(missing=options.missing)
    problems = list(report.problems())
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if options.check and problems else 0


if __name__ == "__main__":
    sys.exit(main())
