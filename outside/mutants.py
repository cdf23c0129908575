"""`make mutants`: change one line of `src` at a time, and check that a test notices.

A sample of mutants is drawn at random (`--seed`) over all functions of `src`: a comparison, a boolean operator, a
number, a condition or a returned value is changed, or a call whose value is unused is removed. The tests of the
changed module run in a copy of the repository: first the test files that import the module and the mirrored file, then
the mirrored folder, then the test files of the modules that import it. A mutant that all of them accept has survived.
Exit code 1 if fewer than `--least` percent are noticed.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING

from outside.install import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_COPIED = (
    "src",
    "tests",
    "bench",
    "outside",
    "examples",
    "docs",
    "pyproject.toml",
    "README.md",
    "Makefile",
    "CHANGELOG.md",
)
_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_TEST_S = 90
_SKIPPED = ("__main__.py",)


@dataclass(frozen=True)
class Mutant:
    """One changed node of one file."""

    path: str
    line: int
    index: int
    """The position of the node in `ast.walk` order."""
    change: str


@dataclass(frozen=True)
class Verdict:
    """Whether a test noticed a mutant."""

    mutant: Mutant
    is_killed: bool
    by: str


def list_mutants(path: Path) -> Iterator[Mutant]:
    """List the mutants of a file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    name = str(path.relative_to(ROOT))
    inside = {id(node) for function in ast.walk(tree) if _is_function(function) for node in ast.walk(function)}
    for index, node in enumerate(ast.walk(tree)):
        change = _describe_change(node) if id(node) in inside else ""
        if change:
            yield Mutant(name, getattr(node, "lineno", 0), index, change)


def _is_function(node: ast.AST) -> bool:
    return isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))


def _describe_change(node: ast.AST) -> str:
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _COMPARISONS:
        return f"comparison {type(node.ops[0]).__name__}"
    if isinstance(node, ast.BoolOp):
        return "and/or"
    if isinstance(node, ast.If):
        return "condition negated"
    if isinstance(node, ast.Return) and node.value is not None and not isinstance(node.value, ast.Constant):
        return "returns None"
    if isinstance(node, ast.Constant) and isinstance(node.value, int) and not isinstance(node.value, bool):
        return "number + 1"
    if isinstance(node, ast.Constant) and isinstance(node.value, bool):
        return "truth value"
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        return "call removed"
    return ""


def apply_mutant(source: str, mutant: Mutant) -> str:
    """Return the source with the change of `mutant`."""
    tree = ast.parse(source)
    for index, node in enumerate(ast.walk(tree)):
        if index != mutant.index:
            continue
        if isinstance(node, ast.Compare):
            node.ops = [_COMPARISONS[type(node.ops[0])]()]
        elif isinstance(node, ast.BoolOp):
            node.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        elif isinstance(node, ast.If):
            node.test = ast.UnaryOp(ast.Not(), node.test)
        elif isinstance(node, ast.Return):
            node.value = ast.Constant(None)
        elif isinstance(node, ast.Constant):
            node.value = (not node.value) if isinstance(node.value, bool) else int(str(node.value)) + 1
        elif isinstance(node, ast.Expr):
            node.value = ast.Constant(None)
    return ast.unparse(ast.fix_missing_locations(tree))


def find_tests(mutant: Mutant) -> Iterator[list[str]]:
    """Yield the tests of a module in groups, the nearest first."""
    parts = Path(mutant.path).with_suffix("").parts[1:]
    module = ".".join(part for part in parts if part != "__init__")
    folder = Path("tests", *(part for part in parts[1:-1] if part != "protocol_bridge"))
    near = [str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("test_*.py") if _imports(path, module)]
    mirrored = ROOT / folder / f"test_{parts[-1].strip('_')}.py"
    if mirrored.exists():
        near.append(str(mirrored.relative_to(ROOT)))
    if near:
        yield sorted(set(near))
    while not (ROOT / folder).exists():
        folder = folder.parent
    if folder != Path("tests"):
        yield [str(folder)]
    users = [path for path in (ROOT / "src").rglob("*.py") if _imports(path, module)]
    names = [".".join(path.relative_to(ROOT / "src").with_suffix("").parts).removesuffix(".__init__") for path in users]
    tests = [path for path in (ROOT / "tests").rglob("test_*.py") if any(_imports(path, name) for name in names)]
    if tests:
        yield sorted(str(path.relative_to(ROOT)) for path in tests)


def _imports(path: Path, module: str) -> bool:
    return f"{module} import" in path.read_text(encoding="utf-8")


def judge(mutant: Mutant, copy: Path) -> Verdict:
    """Run the tests of a mutant in a copy of the repository."""
    target = copy / mutant.path
    original = target.read_text(encoding="utf-8")
    target.write_text(apply_mutant(original, mutant), encoding="utf-8")
    try:
        for group in find_tests(mutant):
            argv = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:xdist", f"--timeout={_TEST_S}", *group]
            env = {**os.environ, "PYTHONPATH": str(copy / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
            try:
                done = subprocess.run(argv, cwd=copy, env=env, capture_output=True, timeout=4 * _TEST_S, check=False)
            except subprocess.TimeoutExpired:
                return Verdict(mutant, is_killed=True, by="timeout")
            if done.returncode not in {0, 5}:  # 5: no tests in the group
                return Verdict(mutant, is_killed=True, by=" ".join(group)[:80])
        return Verdict(mutant, is_killed=False, by="")
    finally:
        target.write_text(original, encoding="utf-8")


def main(arguments: Sequence[str]) -> int:
    """Judge a sample of mutants, print the survivors, and return the exit code."""
    parser = argparse.ArgumentParser(prog="outside.mutants", description=__doc__)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--least", type=float, default=92.0, help="percent of mutants that tests must notice")
    parser.add_argument("--under", default="src", help="only files below this path")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args(arguments)
    files = sorted(path for path in (ROOT / options.under).rglob("*.py") if path.name not in _SKIPPED)
    population = [mutant for path in files for mutant in list_mutants(path)]
    sample = random.Random(options.seed).sample(population, min(options.count, len(population)))
    with tempfile.TemporaryDirectory() as folder:
        copies: SimpleQueue[Path] = SimpleQueue()
        for number in range(options.jobs):
            copies.put(_copy_repository(Path(folder, str(number))))

        def work(mutant: Mutant) -> Verdict:
            copy = copies.get()
            try:
                return judge(mutant, copy)
            finally:
                copies.put(copy)

        verdicts: list[Verdict] = []
        with ThreadPoolExecutor(options.jobs) as pool:
            for verdict in pool.map(work, sample):
                verdicts.append(verdict)
                mutant = verdict.mutant
                word = "noticed " if verdict.is_killed else "SURVIVED"
                print(f"{word} {mutant.path}:{mutant.line} {mutant.change}", flush=True)
    killed = sum(verdict.is_killed for verdict in verdicts)
    percent = 100 * killed / max(1, len(verdicts))
    print(f"{killed} of {len(verdicts)} mutants noticed: {percent:.1f} %")
    return 0 if percent >= options.least else 1


def _copy_repository(copy: Path) -> Path:
    copy.mkdir()
    for name in _COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        elif source.exists():
            shutil.copy(source, copy / name)
    return copy


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
