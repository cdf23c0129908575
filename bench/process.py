"""Start processes to be measured, all in the same surroundings."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache, partial
from importlib.util import find_spec
from typing import TYPE_CHECKING

from bench.measure import calls
from bench.row import CannotMeasure

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.measure import Batch

PACKAGES = ("indusagi", "induscode")
_WHERE = frozenset({"PYTHONHOME", "PYTHONPATH"})
"""The settings of Python that say where it finds things; the others change how it works."""


def python(*arguments: str) -> list[str]:
    """Give the command that starts this interpreter."""
    return [sys.executable, *arguments]


def console_script(name: str, *, folder: str | None = None) -> str:
    """Find a script that was installed along with this interpreter.

    Raises:
        CannotMeasure: It is not there.
    """
    # The link's own folder, not that of the interpreter it leads to: that is how a venv is made.
    path = os.path.join(folder or os.path.dirname(sys.executable), name)
    if not os.access(path, os.X_OK):
        raise CannotMeasure(f"there is no script {path!r}: run `make setup` first")
    return path


def starts(command: Sequence[str]) -> Batch:
    """Time a process from its start to its end."""
    compile_packages()
    return calls(partial(_start, command, surroundings()))


def output_of(command: Sequence[str]) -> tuple[str, str]:
    """Run a process and give what it wrote to standard output and standard error.

    Raises:
        CannotMeasure: It failed.
    """
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        env=surroundings(),
        encoding="utf-8",
        errors="replace",
        check=False,
    )
    if done.returncode:
        reason = (done.stderr.strip() or "it does not say why").splitlines()[-1]
        raise CannotMeasure(f"{_format_command(command)} ended with {done.returncode}: {reason}")
    return done.stdout, done.stderr


def surroundings() -> dict[str, str]:
    """Give the environment of this process without what changes how Python works.

    PYTHONDONTWRITEBYTECODE, above all, would have every process compile all it imports; and a
    process that is told to measure its coverage (the tests run that way) would time that too.
    """
    return {
        name: value
        for name, value in os.environ.items()
        if name in _WHERE or not name.startswith(("PYTHON", "COVERAGE_"))
    }


@cache
def compile_packages() -> None:
    """See to it that both packages are compiled, as they are after an installation.

    What they depend on is compiled by the warm-up at the latest. A child does it, because the
    settings of this process may say that the compiled files belong elsewhere.

    Raises:
        CannotMeasure: They are not there, or cannot be compiled.
    """
    output_of(python("-m", "compileall", "-q", *map(_folder, PACKAGES)))


def _folder(package: str) -> str:
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise CannotMeasure(f"there is no package {package!r}: run `make setup` first")
    return spec.submodule_search_locations[0]


def _start(command: Sequence[str], env: dict[str, str]) -> None:
    # No time limit: with one, Python would look for the end of the process only now and then.
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=env, check=False
    )
    if done.returncode:
        raise CannotMeasure(f"{_format_command(command)} ended with {done.returncode}; run it to see why")


def _format_command(command: Sequence[str]) -> str:
    first, *rest = (part.partition("\n")[0] for part in command)
    return f"`{' '.join([os.path.basename(first), *rest])}`"
