"""Which mutants are judged, and by which tests, in which order."""

from __future__ import annotations

import random
import re
from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

from outside.install import ROOT
from outside.mutants.places import Mutant, is_usable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from outside.mutants.baseline import Baseline

_BUCKETS_S = (0.05, 0.3, 1.0)
_FIRST_FILES, _FIRST_TESTS, _FIRST_S = 4, 60, 3.0
"""The first group is small: most mutants are noticed by the nearest tests."""
_MOST_TESTS = 1_500
_TURN = 8
"""So many test functions of a file run before those of the next file have their turn."""
_NEAR_CASES = 20
"""So many cases of the nearest tests run with the first case of the others."""
_TEXT = re.compile(r"""["']([^"'\\\n]{4,})["']""")
_SLOW_SHARE = 1.5
"""How much more of the budget the tests have that start processes."""


def draw_sample(
    population: Iterable[Mutant], count: int, seed: int, read: Callable[[str], bytes] | None = None
) -> list[Mutant]:
    """Draw mutants so that each room has its share of the lines; a line is drawn once at most."""
    read = read or (lambda path: (ROOT / path).read_bytes())
    chosen = random.Random(seed)
    rooms: dict[str, dict[tuple[str, int], list[Mutant]]] = defaultdict(lambda: defaultdict(list))
    for mutant in population:
        rooms[mutant.room][mutant.path, mutant.line].append(mutant)
    quotas = share_out({room: len(lines) for room, lines in sorted(rooms.items())}, count)
    sample: list[Mutant] = []
    for room, quota in quotas.items():
        lines = sorted(rooms[room])
        chosen.shuffle(lines)
        found: list[Mutant] = []
        for line in lines:
            if len(found) == quota:
                break
            mutants = rooms[room][line]
            chosen.shuffle(mutants)
            found += [mutant for mutant in mutants if is_usable(mutant, read(mutant.path))][:1]
        sample += found
    chosen.shuffle(sample)
    return sample


def share_out(sizes: dict[str, int], count: int) -> dict[str, int]:
    """Share `count` out by size; each gets one if there are enough (largest remainders)."""
    total = sum(sizes.values())
    if count >= total:
        return dict(sizes)
    exact = {name: count * size / total for name, size in sizes.items()}
    quotas = {name: int(share) for name, share in exact.items()}
    if count >= len(sizes):
        quotas = {name: max(1, quota) for name, quota in quotas.items()}
    by_remainder = sorted(sizes, key=lambda name: (quotas[name] - exact[name], name))
    while (missing := count - sum(quotas.values())) > 0:
        for name in by_remainder[:missing]:
            quotas[name] += 1
    while (over := sum(quotas.values()) - count) > 0:
        for name in sorted(sizes, key=lambda name: -quotas[name])[:over]:
            quotas[name] -= 1
    return quotas


def choose_tests(
    mutant: Mutant, baseline: Baseline, budget_s: float, read: Callable[[str], bytes] | None = None
) -> list[list[str]]:
    """Return groups of tests that may notice a mutant, the nearest and cheapest first.

    The tests that run a changed line are those that may. What runs at the import of a module is used by whatever runs
    the module, or by those that import it; those that run a line with the name that is set there come first.
    """
    read = read or (lambda path: (ROOT / path).read_bytes())
    path = str(Path(mutant.path).relative_to("src"))
    mask = 0 if mutant.is_imported else baseline.find_tests(path, mutant.first, mutant.last)
    users = set(baseline.list_numbers(_find_users(mutant, baseline, read))) if mutant.is_imported else set[int]()
    namers = _find_namers(mutant, baseline, read) if mutant.is_imported else set[str]()
    # No test runs the line: perhaps a process does that was killed before it could say so.
    mask = mask or baseline.find_all_tests(path) | _find_importers(mutant, baseline)
    numbers = baseline.list_numbers(mask)

    def measure(test: str) -> int:
        return 0 if test.partition("::")[0] in namers else find_distance(mutant.path, test)

    def rank(number: int) -> tuple[bool, bool, bool, int, float]:
        took_s = baseline.took_s[number]
        bucket = sum(took_s >= bound for bound in _BUCKETS_S)
        far = measure(baseline.tests[number]) * (len(_BUCKETS_S) + 1)
        is_long = bucket == len(_BUCKETS_S)
        return number in baseline.slow_kinds, number not in users, is_long, far + bucket, took_s

    ordered = sorted(numbers, key=rank)
    quick = [number for number in ordered if number not in baseline.slow_kinds]
    quick = _fit(_spread(quick, baseline.tests, measure), baseline, budget_s)
    slow = [number for number in ordered if number in baseline.slow_kinds]
    slow = _fit(_spread(slow, baseline.tests, measure), baseline, budget_s * _SLOW_SHARE)
    first = _take_first(quick, baseline)
    taken = set(first)
    rest = sorted((number for number in quick if number not in taken), key=lambda number: baseline.tests[number])
    return [[baseline.tests[number] for number in group] for group in (first, rest, slow) if group]


def find_distance(path: str, test: str) -> int:
    """Return 0 if a test file is named after the module, 1 if the file or its folder is after the package, else 2."""
    module, file = Path(path), Path(test.partition("::")[0])
    name = file.stem.removeprefix("test_")
    if name == module.stem.strip("_"):
        return 0
    return 1 if module.parent.name in {name, file.parent.name} else 2


def _spread(numbers: Sequence[int], tests: Sequence[str], measure: Callable[[str], int]) -> list[int]:
    """Put one case of each test function before other cases, each in turn with those of the other files.

    The nearest tests have more cases in each turn.
    """
    cases, functions = Counter[str](), Counter[str]()
    keys: dict[int, tuple[int, int]] = {}
    for number in numbers:
        function, file = tests[number].partition("[")[0], tests[number].partition("::")[0]
        functions[file] += not cases[function]
        turn = cases[function] // (1 if measure(file) else _NEAR_CASES)
        keys[number] = turn, functions[file] // _TURN
        cases[function] += 1
    return sorted(numbers, key=keys.__getitem__)


def _fit(numbers: Sequence[int], baseline: Baseline, budget_s: float) -> list[int]:
    """Return the first tests that together take no longer than the budget: at least one."""
    total, fitting = 0.0, list[int]()
    for number in numbers[:_MOST_TESTS]:
        total += baseline.took_s[number] + 0.005
        if fitting and total > budget_s:
            break
        fitting.append(number)
    return fitting


def _take_first(numbers: Sequence[int], baseline: Baseline) -> list[int]:
    files: set[str] = set()
    first: list[int] = []
    total = 0.0
    for number in numbers:
        file = baseline.tests[number].partition("::")[0]
        if len(files | {file}) > _FIRST_FILES:
            continue
        files.add(file)
        total += baseline.took_s[number]
        if first and (total > _FIRST_S or len(first) == _FIRST_TESTS):
            break
        first.append(number)
    return first


def _find_users(mutant: Mutant, baseline: Baseline, read: Callable[[str], bytes]) -> int:
    """Return the tests that run a line of the module with the name that the changed statement sets."""
    lines = read(mutant.path).decode().splitlines()
    name = re.match(r"\s*(\w+)\s*[:=]", lines[mutant.first - 1])
    found = 0
    if name:
        path = str(Path(mutant.path).relative_to("src"))
        for number, line in enumerate(lines, 1):
            if re.search(rf"\b{name[1]}\b", line) and not mutant.first <= number <= mutant.last:
                found |= baseline.find_tests(path, number, number)
    return found


def _find_namers(mutant: Mutant, baseline: Baseline, read: Callable[[str], bytes]) -> set[str]:
    """Return the test files that hold a text of the change: what a table says of it is probably tested there."""
    texts = _TEXT.findall(read(mutant.path)[mutant.start : mutant.end].decode())
    files = {test.partition("::")[0] for test in baseline.tests} if texts else set[str]()
    return {file for file in files if any(text in read(file).decode() for text in texts)}


def _find_importers(mutant: Mutant, baseline: Baseline) -> int:
    """Return the tests of the files that import a module, and those that run a module that does."""
    module = ".".join(Path(mutant.path).with_suffix("").parts[1:]).removesuffix(".__init__")
    package, _, name = module.rpartition(".")
    imports = re.compile(rf"{re.escape(module)} import|from {re.escape(package)} import [^\n]*\b{name}\b")
    found = 0
    importers = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "tests").rglob("*.py")
        if imports.search(path.read_text("utf-8"))
    }
    for number, test in enumerate(baseline.tests):
        if test.partition("::")[0] in importers:
            found |= 1 << number
    for path in (ROOT / "src").rglob("*.py"):
        if imports.search(path.read_text("utf-8")):
            found |= baseline.find_all_tests(str(path.relative_to(ROOT / "src")))
    return found
