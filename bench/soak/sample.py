"""What a process holds, seen from outside and by its observer (`soak_subject`)."""

from __future__ import annotations

import asyncio
import json
import os
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, TypedDict, cast

from bench.gateway.run import children, resident
from bench.row import CannotMeasure
from bench.soak.growth import Quantity

if TYPE_CHECKING:
    from collections.abc import Sequence

_MB = 1_000_000
_STEADY = 3
_PAUSE_S = 0.05
_TRIES = 60
_OBSERVER_S = 20.0

QUANTITIES = (
    Quantity("memory, MB", 2 * _MB, 0.04, _MB),
    Quantity("objects", 500, 0.01),
    Quantity("descriptors", 1),
    Quantity("tasks", 1),
    Quantity("threads", 2),
    Quantity("processes", 0.5),
    Quantity("threads of servers", 0.5),
)
"""In the order of the fields of `Sample`."""


@dataclass(frozen=True, slots=True)
class Sample:
    """What a process holds at rest."""

    memory: int
    objects: int
    descriptors: int
    tasks: int
    threads: int
    processes: int
    server_threads: int
    """More than one for each means work that no caller waits for."""

    def values(self) -> Sequence[float]:
        """Give all of it, in the order of `QUANTITIES`."""
        return list(asdict(self).values())

    def count_handles(self) -> Sequence[float]:
        """Give what stays the same at rest."""
        return self.values()[2:]


class _Observed(TypedDict):
    tasks: int
    objects: int


async def at_rest(pid: int, place: str) -> Sample:
    """Look until nothing changes any more, or until that has taken long enough."""
    last = await _look(pid, place)
    steady = 0
    for _ in range(_TRIES):
        await asyncio.sleep(_PAUSE_S)
        now = await _look(pid, place)
        steady = steady + 1 if now.count_handles() == last.count_handles() else 0
        last = now
        if steady == _STEADY:
            break
    return last


async def _query_observer(place: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    try:
        return await asyncio.open_unix_connection(place)
    except OSError as exc:
        raise CannotMeasure("the observer is gone: the process has ended") from exc


async def _look(pid: int, place: str) -> Sample:
    async with asyncio.timeout(_OBSERVER_S):
        reader, writer = await _query_observer(place)
        try:
            data = await reader.read()
        finally:
            writer.close()
    if not data:
        raise CannotMeasure("the observer has failed")
    observed = cast("_Observed", json.loads(data))
    below = children(pid)
    return Sample(
        resident(pid),
        observed["objects"],
        _entries(pid, "fd"),
        observed["tasks"],
        _entries(pid, "task"),
        len(below),
        sum(_entries(child, "task") for child in below),
    )


def _entries(pid: int, kind: str) -> int:
    try:
        return len(os.listdir(f"/proc/{pid}/{kind}"))
    except (FileNotFoundError, ProcessLookupError):
        return 0
