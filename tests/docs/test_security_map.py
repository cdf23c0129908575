"""The security map: every row has an answer, and the tests it names exist and run."""

from __future__ import annotations

import ast
import re
from functools import cache

from tests.support.scripts import ROOT

PAGE = (ROOT / "docs/security-map.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| ([A-Z]*[0-9][0-9.]*|NSA-\d) \| (.*) \| (.*) \| (.*) \|$", re.MULTILINE)
ROWS = {match[1]: match.groups()[1:] for match in ROW.finditer(PAGE)}
TEST = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)(?:\[(.+?)\])?`(?:<br>|$)")
LINES = {1: 3, 2: 10, 3: 6, 4: 21}
"""How many lines each section of AISVS C10 has, in all versions together."""
SKIPS = {"skip", "xfail"}


@cache
def parse(path: str) -> ast.Module:
    return ast.parse((ROOT / path).read_text(encoding="utf-8"))


def names(node: ast.AST) -> set[str]:
    return {part.attr for part in ast.walk(node) if isinstance(part, ast.Attribute)}


def find_problem(path: str, name: str, case: str) -> str | None:
    """Say why a named test holds nothing: it isn't collected, is skipped, or has no such case."""
    if path.startswith("tests/outside/") or not path.rpartition("/")[2].startswith("test_"):
        return "it isn't part of the suite"
    if not (ROOT / path).is_file():
        return "there is no such file"
    body = parse(path).body
    found = [one for one in body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef) and one.name == name]
    if not found:
        return "there is no such test"
    marks = [
        *found[0].decorator_list,
        *(one for one in body if isinstance(one, ast.Assign) and "pytestmark" in ast.unparse(one)),
    ]
    if any(SKIPS & names(mark) for mark in marks) or ast.unparse(found[0].body[0]).startswith("pytest.skip("):
        return "it's skipped"
    texts = {one.value for one in ast.walk(parse(path)) if isinstance(one, ast.Constant)}
    return None if not case or case in texts else f"it has no case {case!r}"


def test_every_line_of_the_standards_has_one_row() -> None:
    aisvs = {f"10.{section}.{line}" for section, count in LINES.items() for line in range(1, count + 1)}
    top10, nsa = {f"MCP{n:02}" for n in range(1, 11)}, {f"NSA-{n}" for n in range(1, 10)}
    assert ROWS.keys() == aisvs | top10 | nsa | {f"V{n:02}" for n in range(1, 48)}
    assert len(ROW.findall(PAGE)) == len(ROWS)


def test_every_row_has_an_answer_and_tests_that_run() -> None:
    problems: dict[str, object] = {}
    for row, (risk, answer, tests) in ROWS.items():
        named = TEST.findall(tests)
        if not (risk.endswith(".") and answer.endswith(".")):
            problems[row] = "a risk and an answer are sentences"
        elif TEST.sub("", tests) != ("" if named else "none"):
            problems[row] = f"this names no test: {tests}"
        elif answer.startswith("Not held: ") is bool(named):
            problems[row] = "a row without a test isn't held, and says why"
        problems |= {f"{row}: {'::'.join(one)}": why for one in named if (why := find_problem(*one)) is not None}
    assert problems == {}


def test_the_counts_are_those_of_the_rows() -> None:
    for section in PAGE.split("\n## ")[1:]:
        answers = [match[3] for match in ROW.finditer(section)]
        partly = sum(answer.startswith("Partly: ") for answer in answers)
        missing = sum(answer.startswith("Not held: ") for answer in answers)
        title, held = section.partition("\n")[0], len(answers) - partly - missing
        assert f"| {title} | {len(answers)} | {held} | {partly} | {missing} |" in PAGE
