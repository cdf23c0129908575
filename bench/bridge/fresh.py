"""Start `bridge_program` and gather what it tells."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, TypedDict, cast

from bench.process import compile_packages, surroundings
from bench.row import CannotMeasure

if TYPE_CHECKING:
    from collections.abc import Mapping

_PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "program.py")


class _Connected(TypedDict):
    connect_s: float
    resident: int
    sdk: bool


class _Ended(TypedDict):
    children_s: float


@dataclass(frozen=True, slots=True)
class Fresh:
    """What a fresh process took to list the tools of some servers."""

    since_start_s: float
    """From the start of the process."""
    connect_s: float
    """Without what came before."""
    resident: int
    """Its memory in bytes, connected to all of them."""
    sdk: bool
    """Whether it has loaded the SDK."""
    children_s: float
    """The processor time of the servers, from their start to their end."""


def fresh(
    how: str, *counts: int, python: str = sys.executable, env: Mapping[str, str] | None = None, cwd: str | None = None
) -> list[Fresh]:
    """Connect in a fresh process to so many servers, and again for each further count.

    Raises:
        CannotMeasure: It failed.
    """
    compile_packages()
    command = [python, "-P", _PROGRAM, how, *map(str, counts)]
    told: list[tuple[float, str]] = []
    started = perf_counter()
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=surroundings() | dict(env or {}),
        cwd=cwd,
        encoding="utf-8",
        errors="replace",
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        told.extend((perf_counter() - started, line) for line in process.stdout)
        complaint = process.stderr.read().strip()
    if process.returncode or len(told) != 2 * len(counts):
        reason = (complaint or "it does not say why").splitlines()[-1]
        raise CannotMeasure(f"connecting to servers ({how}) failed: {reason}")
    return [
        _read(since_start_s, connected, ended)
        for (since_start_s, connected), (_, ended) in zip(told[::2], told[1::2], strict=True)
    ]


def _read(since_start_s: float, connected: str, ended: str) -> Fresh:
    first, last = cast("_Connected", json.loads(connected)), cast("_Ended", json.loads(ended))
    return Fresh(since_start_s, **first, **last)
