"""Behaviour of a server: the hosts, paths and programs it used while somebody watched.

It's pinned like a definition: its JSON form goes into the ledger and the lock file, so paths are relative to the
workspace or start with `~`, and programs have no path.
"""

from __future__ import annotations

import os
from dataclasses import fields
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from indusagi.core.app_dirs import is_within
from indusagi.core.records import record

if TYPE_CHECKING:
    from collections.abc import Iterable

    from indusagi.core.json import JsonObject

Key: TypeAlias = Literal["read", "write", "hosts"]


@record(kw_only=True)
class Behaviour:
    """What a server used, sorted."""

    hosts: tuple[str, ...] = ()
    """`host:port` it asked for."""
    read: tuple[str, ...] = ()
    """Paths outside the system, its own package and the workspace."""
    write: tuple[str, ...] = ()
    """Paths outside its home and `/tmp`."""
    programs: tuple[str, ...] = ()
    """Names of the programs it ran, itself included."""

    def as_json(self) -> JsonObject:
        """Return the definition that's pinned."""
        return {one.name: [*getattr(self, one.name)] for one in fields(self)}

    def __or__(self, other: Behaviour) -> Behaviour:
        """Return everything either one used."""
        return Behaviour(
            **{one.name: sort_texts((*getattr(self, one.name), *getattr(other, one.name))) for one in fields(self)}
        )


def parse_behaviour(raw: JsonObject) -> Behaviour:
    """Parse a pinned behaviour, skipping whatever isn't one."""
    lists = {one.name: raw.get(one.name) for one in fields(Behaviour)}
    return Behaviour(
        **{
            name: sort_texts(text for text in value if isinstance(text, str)) if isinstance(value, list) else ()
            for name, value in lists.items()
        }
    )


class RefusedUse(NamedTuple):
    """Something the sandbox refused that the behaviour doesn't include."""

    target: str
    key: Key
    """The list of the row's `sandbox` that would allow it."""
    reason: str = ""
    """Why we don't propose it."""

    def __str__(self) -> str:
        reason = f" ({self.reason})" if self.reason else ""
        return f'{self.target}{reason}; to allow it, add "{self.target}" to "{self.key}" of its "sandbox"'


@record(kw_only=True)
class SandboxPlaces:
    """The directories of one sandbox, resolved."""

    home: str
    workspace: str | None
    package: tuple[str, ...]
    """What the server needs to run, and paths its row names."""
    read: tuple[tuple[str, str], ...]
    """Further paths of the profile, each as resolved and as written."""
    write: tuple[tuple[str, str], ...]

    def format(self, path: str) -> str:
        """Format a path the way a row names it."""
        if self.workspace is not None and is_within(path, self.workspace):
            return os.path.relpath(path, self.workspace)
        return f"~{path[len(self.home) :]}" if is_within(path, self.home) else path


def sort_texts(texts: Iterable[str]) -> tuple[str, ...]:
    """Sort texts, each once."""
    return tuple(sorted({*texts}))
