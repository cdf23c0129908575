"""The tool that changes the sources: which changes it makes, which tests it chooses, and when it calls one noticed."""

from __future__ import annotations

import json
import textwrap
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import pytest
from outside.mutants.baseline import Baseline, hash_tests, merge_lines, record_tests
from outside.mutants.choice import choose_tests, draw_sample, find_distance, share_out
from outside.mutants.judge import Judge
from outside.mutants.mother import leave_out_imports
from outside.mutants.operators import list_mutants
from outside.mutants.places import Mutant, is_usable
from outside.mutants.slots import Outcome, Run, read_run

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

PATH = "src/indusagi/core/example.py"


def list_changes(source: str) -> set[tuple[str, str]]:
    """List the changed line of each usable mutant of the body of a function, and its kind."""
    text = "def f(a, b, c, log):\n" + textwrap.indent(textwrap.dedent(source).strip("\n") + "\n", "    ")
    found = [one for one in list_mutants(PATH, text.encode()) if is_usable(one, text.encode())]
    return {(one.change, one.show(text.encode())[1]) for one in found}


@pytest.mark.parametrize(
    ("source", "change", "after"),
    [
        ("x = a == b", "comparison", "x = a != b"),
        ("x = len(a) < b", "comparison", "x = len(a) <= b"),
        ("x = (a or 1) not in b", "comparison", "x = (a or 1) in b"),
        ("x = a and b", "and/or", "x = a or b"),
        ("x = a and b", "operand dropped", "x = b"),
        ("x = a and b", "operand dropped", "x = a"),
        ("if a:\n    b()", "condition negated", "if not (a):"),
        ("x = not a", "not dropped", "x = bool(a)"),
        ("return a", "returned value", "return None"),
        ("return True", "returned value", "return False"),
        ("if a:\n    return\nb()", "return removed", "pass"),
        ("if a:\n    raise ValueError('text')\nb()", "raise removed", "pass"),
        ("a.append(b)", "call removed", "pass"),
        ("a.x = b", "assignment removed", "pass"),
        ("del a[b]", "deletion removed", "pass"),
        ("x = {'k': a, 'l': b}", "item dropped", "x = {'l': b}"),
        ("x = {'k': a, 'l': b}", "item dropped", "x = {'k': a}"),
        ("x = [a, b]", "item dropped", "x = [b]"),
        ("c(a, b)", "arguments swapped", "c(b, a)"),
        ("x = a.get(b, c)", "default dropped", "x = a.get(b)"),
        ("x = any(a)", "any/all", "x = all(a)"),
        ("x = a.strip()", "strip dropped", "x = a"),
        ("x = [y for y in a if b]", "filter dropped", "x = [y for y in a if True]"),
        ("x = a[1:]", "number", "x = a[2:]"),
        ("x = len(a) - 1", "arithmetic", "x = len(a) + 1"),
        ("c(a, deep=True)", "truth value", "c(a, deep=False)"),
        ("for x in a:\n    break", "break/continue", "continue"),
        ("while a:\n    continue", "break/continue", "break"),
        ("try:\n    a()\nexcept OSError:\n    b()", "except", "except ZeroDivisionError:"),
        ("try:\n    a()\nexcept (OSError, KeyError):\n    b()", "except", "except (OSError):"),
    ],
)
def test_a_change_alters_what_the_code_does(source: str, change: str, after: str) -> None:
    assert (change, after) in list_changes(source)


@pytest.mark.parametrize(
    "source",
    [
        '"""A docstring, 1 of 2."""',
        "log.warning('so %s', a or b)",
        "assert a is not None",
        "x = f\"{'s' if a != 1 else ''}\"",
        "timeout = 5",
        "if sys.platform == 'win32':\n    a()",
        "if TYPE_CHECKING:\n    a()",
        "if a:  # pragma: no cover\n    b()",
        "x = 64 * 1024",
        "x: list[int] | None",
        "anyio.sleep(1)",
        "x = monotonic() > a",
        "x = JSONEncoder(check_circular=False)",
        "a()  # pragma: no cover",
    ],
)
def test_what_nobody_could_notice_is_not_changed(source: str) -> None:
    assert not list_changes(source)


def test_types_and_representations_are_not_changed() -> None:
    source = b"""
class P(Protocol):
    def f(self) -> bool:
        return True

class C:
    def __repr__(self):
        return a or b

@overload
def g(x: int = 1) -> int: ...

__all__ = ("a", "b", "c")
LIMIT_S = 5
T = TypeVar("T", bound=a.b)
"""
    assert list_mutants(PATH, source) == []


def test_a_return_at_the_end_of_a_function_is_not_removed() -> None:
    assert list_changes("if a:\n    b()\n    return\nelse:\n    return") == {
        ("condition negated", "if not (a):"),
        ("call removed", "pass"),
    }


def test_tables_of_a_module_are_changed() -> None:
    source = b'_NAMES = frozenset({"a", "b"})\n\nclass C:\n    is_open: bool = False\n'
    found = list_mutants(PATH, source)
    assert [one.show(source)[1] for one in found] == [
        '_NAMES = frozenset({"b"})',
        '_NAMES = frozenset({"a"})',
        "is_open: bool = True",
    ]
    assert all(one.is_imported for one in found)


def test_text_that_is_not_ascii_is_changed_in_the_right_place() -> None:
    source = 'def f(a):\n    return a == "ä—" and a != "é"\n'.encode()
    assert {one.show(source)[1] for one in list_mutants(PATH, source) if one.change == "comparison"} == {
        'return a != "ä—" and a != "é"',
        'return a == "ä—" and a == "é"',
    }


def test_the_lines_of_a_change_are_those_of_its_statement() -> None:
    source = b"def f(a, x=False):\n    if a and (\n        x\n    ):\n        g(\n            a\n        )\n"
    spans = {one.change: (one.first, one.last) for one in list_mutants(PATH, source)}
    assert spans["and/or"] == (2, 4)
    assert spans["call removed"] == (5, 7)
    assert spans["default"] == (2, 7)


# -- choice -----------------------------------------------------------------------------------


def make_mutant(line: int = 2, path: str = PATH, *, is_imported: bool = False) -> Mutant:
    """A mutant of a line."""
    return Mutant(path, line, 0, 1, "2", "number", line, line, is_imported)


def make_baseline() -> Baseline:
    """A near test, a far one and one that starts a process; each runs a line of its own and the tenth line."""
    baseline = Baseline()
    tests = [("tests/core/test_example.py::near", 0.04), ("tests/deck/test_far.py::far", 0.01)]
    outcomes = [Outcome(test, failed=False, took_s=took_s) for test, took_s in tests]
    outcomes.append(Outcome("tests/cli/test_run.py::started", failed=False, took_s=0.2, is_slow_kind=True))
    names = [outcome.test for outcome in outcomes]
    lines = {"2": names[:1], "3": names[1:2], "4": names[2:], "10": [*names, "tests/deck/test_far.py", "unknown"]}
    baseline.add_run(Run(0, outcomes), {"indusagi/core/example.py": lines})
    return baseline


def test_tests_that_run_the_line_are_chosen_near_ones_first_and_processes_last() -> None:
    baseline = make_baseline()
    assert choose_tests(make_mutant(3), baseline, 10) == [["tests/deck/test_far.py::far"]]
    assert choose_tests(make_mutant(10), baseline, 10) == [
        ["tests/core/test_example.py::near", "tests/deck/test_far.py::far"],
        ["tests/cli/test_run.py::started"],
    ]


@pytest.mark.parametrize("mutant", [make_mutant(7), make_mutant(2, is_imported=True)])
def test_lines_that_no_test_is_known_to_run_are_judged_by_all_tests_of_the_file(mutant: Mutant) -> None:
    assert sum(map(len, choose_tests(mutant, make_baseline(), 10, lambda _: b"x\n" * 20))) == 3


def test_tests_that_run_a_line_with_the_name_of_a_table_come_first() -> None:
    source = b"_NAMES = {1, 2}\ndef f(a):\n    return a in _NAMES\n"
    groups = choose_tests(make_mutant(1, is_imported=True), make_baseline(), 10, lambda _: source)
    assert groups[0] == ["tests/deck/test_far.py::far", "tests/core/test_example.py::near"]


def test_files_that_hold_a_changed_text_of_a_table_come_first() -> None:
    table = b'_NAMES = {"npm-cli.js": 1, "b": 2}\n'
    item = table.index(b'"npm'), table.index(b'"b"')
    mutant = replace(make_mutant(1, is_imported=True), start=item[0], end=item[1], new="")
    sources = {"tests/deck/test_far.py": b"npm-cli.js", mutant.path: table}
    groups = choose_tests(mutant, make_baseline(), 10, lambda path: sources.get(path, b""))
    assert groups[0] == ["tests/deck/test_far.py::far", "tests/core/test_example.py::near"]


def test_a_budget_leaves_out_the_expensive_tests() -> None:
    assert choose_tests(make_mutant(10), make_baseline(), 0.05)[0] == ["tests/core/test_example.py::near"]


@pytest.mark.parametrize(
    ("test", "distance"),
    [
        ("tests/deck/test_todo.py::t", 0),
        ("tests/deck/stores/test_else.py::t", 1),
        ("tests/deck/test_stores.py::t", 1),
        ("tests/deck/test_else.py::t", 2),
    ],
)
def test_tests_named_after_the_module_are_nearest_then_those_of_its_package(test: str, distance: int) -> None:
    assert find_distance("src/induscode/deck/stores/todo.py", test) == distance


def test_one_case_of_each_test_runs_before_the_others() -> None:
    names = ["tests/a/test_a.py::t[1]", "tests/a/test_a.py::t[2]", "tests/a/test_b.py::u[1]", "tests/a/test_b.py::u[2]"]
    outcomes = [Outcome(name, failed=False, took_s=1.0, is_slow_kind=True) for name in names]
    baseline = Baseline()
    baseline.add_run(Run(0, outcomes), {"indusagi/core/example.py": {"2": names}})
    assert choose_tests(make_mutant(2), baseline, 2) == [[names[0], names[2]]]


def test_many_cases_of_a_test_named_after_the_module_run_before_second_cases_of_others() -> None:
    names = [f"tests/{name}::t[{case}]" for name in ("core/test_example.py", "a/test_b.py") for case in range(3)]
    baseline = Baseline()
    baseline.add_run(
        Run(0, [Outcome(name, failed=False, took_s=1.0) for name in names]), {"indusagi/core/example.py": {"2": names}}
    )
    chosen = [test for group in choose_tests(make_mutant(2), baseline, 5) for test in group]
    assert sorted(chosen) == sorted(names[:4])


def test_a_baseline_survives_being_kept() -> None:
    baseline = make_baseline()
    baseline.files = {"tests/core/test_example.py": "1"}
    assert Baseline.load(baseline.dump()) == baseline


def test_tests_of_a_changed_file_are_forgotten_and_recorded_anew() -> None:
    baseline = make_baseline()
    baseline.files = {"tests/core/test_example.py": "1", "tests/deck/test_far.py": "1", "tests/cli/test_run.py": "1"}
    now = {"tests/core/test_example.py": "2", "tests/deck/test_far.py": "1", "tests/deck/test_new.py": "1"}
    assert baseline.forget_changed(now) == ["tests/core/test_example.py", "tests/deck/test_new.py"]
    assert choose_tests(make_mutant(10), baseline, 10) == [["tests/deck/test_far.py::far"]]


class RecordingSlot:
    """A slot in memory: a run with a file of `codes` ends with its code, and before it has written anything."""

    def __init__(self, folder: Path, codes: dict[str, int | None]) -> None:
        self.folder, self.codes = folder, codes
        self.ran: list[Sequence[str]] = []
        (folder / ".venv/record").mkdir(parents=True)

    def set_recording(self, *, on: bool) -> None:
        (self.folder / ".venv/record/tests").unlink(missing_ok=True)

    def list_records(self) -> list[Path]:
        return []

    def run(self, *, files: Sequence[str], record: Path, **_: object) -> Run:
        self.ran.append(files)
        failing = [self.codes[file] for file in files if file in self.codes]
        if failing:
            return Run(failing[0])
        tests = [f"{file}::t" for file in files]
        record.write_text(json.dumps({"lines": {"x.py": {"1": tests}}, "loaded": ["lib"]}), "utf-8")
        return Run(1, [Outcome(test, failed=False, took_s=0.1) for test in tests])


@pytest.mark.parametrize("code", [None, 1, 2, 70, -9])
def test_a_file_that_ends_its_run_loses_no_other_file_and_is_recorded_the_next_time(
    code: int | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hashes = hash_tests()
    files = sorted(hashes)[:3]
    baseline, slot = Baseline(), RecordingSlot(tmp_path, {files[1]: code})
    record_tests(baseline, files, [cast("Any", slot)])
    assert slot.ran == [files, *([file] for file in files)]
    assert baseline.tests == [f"{files[0]}::t", f"{files[2]}::t"]
    assert baseline.forget_changed({file: hashes[file] for file in files}) == [files[1]]
    assert f"NOT recorded: {files[1]} (exit code {code})" in capsys.readouterr().out


def test_lines_of_started_processes_count_for_the_test_that_started_them() -> None:
    children = [{"test": "b", "lines": {"x.py": [1, 2]}}]
    assert merge_lines({"x.py": {"1": ["a"]}}, children) == {"x.py": {"1": ["a", "b"], "2": ["b"]}}


def test_what_a_test_file_calls_at_its_import_counts_for_its_tests() -> None:
    source = b"import a\nX = {1}\ndef f():\n    return X\nG = lambda: X\n"
    contexts = {1: ["import of t.py"], 2: ["import of t.py"], 3: ["t.py::u"], 4: ["import of t.py", "t.py::u"]}
    assert leave_out_imports(contexts, source) == {1: [], 2: [], 3: ["t.py::u"], 4: ["t.py", "t.py::u"]}


def test_a_sample_has_mutants_of_each_room_and_one_of_a_line_at_most() -> None:
    source = b"1\n" * 40
    big = [make_mutant(line, "src/indusagi/core/a.py") for line in range(1, 41) for _ in range(3)]
    small = [make_mutant(line, "src/induscode/gateway/b.py") for line in range(1, 3)]
    sample = draw_sample([*big, *small], 10, seed=5, read=lambda _: source)
    assert len(sample) == len({(one.path, one.line) for one in sample}) == 10
    assert sum(one.room == "induscode/gateway" for one in sample) == 1
    assert sample == draw_sample([*big, *small], 10, seed=5, read=lambda _: source)
    assert sample != draw_sample([*big, *small], 10, seed=6, read=lambda _: source)


@pytest.mark.parametrize(
    ("sizes", "count", "expected"),
    [
        ({"a": 50, "b": 50}, 10, {"a": 5, "b": 5}),
        ({"a": 98, "b": 1, "c": 1}, 10, {"a": 8, "b": 1, "c": 1}),
        ({"a": 2, "b": 1}, 10, {"a": 2, "b": 1}),
        ({"a": 75, "b": 20, "c": 5}, 2, {"a": 2, "b": 0, "c": 0}),
    ],
)
def test_shares_go_by_size(sizes: dict[str, int], count: int, expected: dict[str, int]) -> None:
    assert share_out(sizes, count) == expected


# -- verdicts ---------------------------------------------------------------------------------


class Place:
    """A slot in memory: `fails` says how a test fails on the mutant, `always` which fail on the unchanged tree too."""

    def __init__(self, fails: dict[str, list[str]], always: Sequence[str] = (), code: int | None = 1) -> None:
        self.fails, self.always, self.code = fails, always, code
        self.changed: Mutant | None = None
        self.ran: list[tuple[bool, str]] = []

    def change(self, mutant: Mutant | None, path: str) -> None:
        """Put a mutant into the file, or take it back."""
        self.changed = mutant

    def run(self, tests: Sequence[str] = (), *, arguments: Sequence[str] = (), limit_s: float = 0) -> Run:
        """Run tests until one fails."""
        run = Run(0)
        for test in tests:
            self.ran.append((self.changed is not None, test))
            reasons = self.fails.get(test, [])
            why = reasons.pop(0) if self.changed and reasons else "always" if test in self.always else ""
            run.outcomes.append(Outcome(test, bool(why), 0.1, why, is_slow_kind="started" in test))
            if why:
                run.code = self.code
                break
        return run


NEAR, FAR, STARTED = make_baseline().tests


def judge(place: Place, line: int = 10) -> tuple[bool, str]:
    """Judge a mutant that all three tests run."""
    verdict = Judge(make_baseline(), 10).judge(make_mutant(line), place)
    assert place.changed is None
    return verdict.is_noticed, verdict.by


def test_a_mutant_that_all_tests_accept_has_survived() -> None:
    place = Place({})
    assert judge(place) == (False, "")
    assert place.ran == [(True, NEAR), (True, FAR), (True, STARTED)]


def test_a_test_that_fails_on_the_mutant_alone_notices_it() -> None:
    place = Place({FAR: ["assert 1\n + where"]})
    assert judge(place) == (True, f"{FAR} (assert 1)")
    assert place.ran == [(True, NEAR), (True, FAR), (False, FAR)]


def test_a_test_that_fails_on_the_unchanged_tree_never_counts() -> None:
    place = Place({}, always=[NEAR])
    assert judge(place) == (False, "")
    assert [test for changed, test in place.ran if changed] == [NEAR, FAR, STARTED]


def test_a_test_that_is_known_to_pass_is_not_looked_at_again() -> None:
    judging, place = Judge(make_baseline(), 10), Place({NEAR: ["E", "E"]})
    assert judging.judge(make_mutant(2), place).is_noticed
    assert judging.judge(make_mutant(2), place).is_noticed
    assert [test for changed, test in place.ran if not changed] == [NEAR]


@pytest.mark.parametrize(("reasons", "is_noticed"), [(["E", "E"], True), (["E"], False)])
def test_a_test_that_starts_processes_has_to_fail_twice(reasons: list[str], *, is_noticed: bool) -> None:
    assert judge(Place({STARTED: reasons}), 4)[0] is is_noticed


def test_a_test_that_failed_once_by_chance_still_judges_the_next_mutant() -> None:
    judging, place = Judge(make_baseline(), 10), Place({STARTED: ["E"]})
    assert not judging.judge(make_mutant(4), place).is_noticed
    place.fails[STARTED] = ["E", "E"]
    assert judging.judge(make_mutant(4), place).is_noticed


def test_a_hang_counts_once_the_test_passes_on_the_unchanged_tree() -> None:
    assert judge(Place({NEAR: ["Failed: the test took longer than 59 s"]}))[0]
    assert not judge(Place({NEAR: ["Failed: Timeout (>60.0s)"]}, always=[NEAR]))[0]


def test_a_run_that_ends_in_the_middle_of_a_test_is_a_failure_of_that_test() -> None:
    rows = [{"began": "a"}, {"test": "a", "failed": False, "s": 0.5, "why": "", "slow_kind": False}, {"began": "b"}]
    assert [(one.test, one.why) for one in read_run(-9, rows).failures] == [("b", "ended the process with -9")]
    assert [(one.test, one.why) for one in read_run(None, rows).failures] == [("b", "hangs")]
    assert read_run(0, rows[:2]).failures == []
