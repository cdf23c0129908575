"""How fast the program and the packages start, beside an interpreter that does nothing."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from bench.measure import compare
from bench.process import compile_packages, console_script, output_of, python, starts
from bench.row import CannotMeasure, Check, Row

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bench.measure import Pair

NOTHING = "python -c pass"
HEAVY = frozenset({"mcp", "mcp_types", "pydantic", "httpx", "httpx2", "rich"})
"""Each would cost more than everything else together; nothing here may load one just to start."""
SPARED = HEAVY | {"click", "asyncio", "anyio", "jsonschema"}
"""What the version, in addition, is told without."""

_SCRIPT = "runpy.run_path(sys.argv[0], run_name='__main__')"
_IMPORT = "import indusagi.capabilities"
_PROBE = """\
import runpy, sys
before = set(sys.modules)
del sys.argv[0]
try:
    {statement}
except SystemExit as end:
    if end.code:
        raise
print(*(set(sys.modules) - before), sep='\\n', file=sys.stderr)
"""


def list_loaded_modules(statement: str, *arguments: str) -> frozenset[str]:
    """Run a statement in a fresh interpreter and name the packages that it has loaded.

    Asked at the end, since a list of import statements would miss what `importlib` loads; and
    without what was there before, which whoever made the environment has to answer for.

    Raises:
        CannotMeasure: The statement failed.
    """
    command = python("-c", _PROBE.format(statement=statement), *arguments)
    _, modules = output_of(command)
    return frozenset(module.partition(".")[0] for module in modules.splitlines())


def _script(option: str) -> Pair:
    return compare(starts([console_script("indus"), option]), starts(python("-c", "pass")))


def _import() -> Pair:
    return compare(starts(python("-c", _IMPORT)), starts(python("-c", "pass")))


def _no_sdk() -> Check:
    compile_packages()
    indus = console_script("indus")
    found = [
        *_find_unwanted("version", list_loaded_modules(_SCRIPT, indus, "--version"), SPARED),
        *_find_unwanted("help", list_loaded_modules(_SCRIPT, indus, "--help"), HEAVY),
        *_find_unwanted("import-capabilities", list_loaded_modules(_IMPORT), HEAVY),
    ]
    return Check(not found, "; ".join(found) or "none is loaded")


def _find_unwanted(name: str, loaded: frozenset[str], banned: Iterable[str]) -> list[str]:
    if "indusagi" not in loaded:
        raise CannotMeasure(f"{name} ended without a word on what it had loaded")
    found = sorted(loaded.intersection(banned))
    return [f"{name} loads {', '.join(found)}"] if found else []


ROWS = (
    Row("version", "indus --version", NOTHING, partial(_script, "--version"), budget=3),
    Row("help", "indus --help", NOTHING, partial(_script, "--help"), budget=6),
    Row("import-capabilities", f"python -c '{_IMPORT}'", NOTHING, _import, budget=8),
    Row("no-sdk", "what these three load", "a list of heavy packages", _no_sdk),
)
