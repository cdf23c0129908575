"""Behaviour of a server: the hosts, paths and programs it used while somebody watched.

It's pinned like a definition: its JSON form goes into the ledger and the lock file, so paths are relative to the
workspace or start with `~`, and programs have no path.
"""

from __future__ import annotations

import os
import re
from dataclasses import fields
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from indusagi.core.app_dirs import is_within
from indusagi.core.records import record
from indusagi.core.secrets import find_credential_places

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from indusagi.core.json import JsonObject

Key: TypeAlias = Literal["read", "write", "hosts"]

_MISSING = re.compile(r"ENOENT|no such file|not found|FileNotFound|does not exist", re.I)
_REFUSED = re.compile(r"EACCES|EPERM|EROFS|permission denied|read-only file system|not permitted", re.I)
_PATH = re.compile(r"(?<![\w.~/:])~?/[^\s'\"`:;,()<>\[\]]+")
_LABELS = {"hosts": "hosts", "read": "reads", "write": "writes", "programs": "programs"}
_OURS = frozenset({".git", ".indus", ".indusvx"})
"""Programs outside the sandbox run what's there."""


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


def describe_behaviour(behaviour: Behaviour, before: Behaviour | None = None) -> Sequence[str]:
    """Describe a behaviour in lines, with a mark on what it didn't use before."""
    lines: list[str] = []
    for one in fields(behaviour):
        known: Sequence[str] = () if before is None else getattr(before, one.name)
        shown = [text if before is None or text in known else f"{text} (new)" for text in getattr(behaviour, one.name)]
        lines.append(f"{_LABELS[one.name]}: {', '.join(shown) or 'none'}")
    return lines


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

    @property
    def lack(self) -> str:
        """What the sandbox does, to a path."""
        return self.target + (" is hidden from it" if self.key == "read" else " can't be written")

    @property
    def remedy(self) -> str:
        """What allows it."""
        return f'add "{self.target}" to "{self.key}" of'

    def __str__(self) -> str:
        reason = f" ({self.reason})" if self.reason else ""
        return f'{self.target}{reason}; to allow it, {self.remedy} its "sandbox"'


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


def find_blocked_path(lines: Sequence[str], environ: Mapping[str, str], *, is_strict: bool) -> RefusedUse | None:
    """Find a path that a server says is missing or read-only, and isn't outside. Blocks.

    Never a credential: a server could name one to get it.
    """
    home = os.path.realpath(os.path.expanduser("~"))
    secrets = [*map(os.path.realpath, find_credential_places(environ, home))]
    for line in lines:
        is_missing, is_refused = _MISSING.search(line), _REFUSED.search(line)
        for text in _PATH.findall(line) if is_missing or is_refused else ():
            path = os.path.realpath(os.path.expanduser(text))
            is_shown = os.path.lexists(path)
            if not is_missing:
                path = path if is_shown else os.path.dirname(path)  # only what exists can be allowed
                is_shown = os.access(path, os.W_OK) and _OURS.isdisjoint(path.split("/"))
            is_hidden = is_within(path, home) or (is_strict or not is_missing)
            if is_shown and is_hidden and not is_within(path, *secrets) and not is_within(home, path):
                shown = f"~{path[len(home) :]}" if is_within(path, home) else path
                return RefusedUse(shown, "read" if is_missing else "write")
    return None


def sort_texts(texts: Iterable[str]) -> tuple[str, ...]:
    """Sort texts, each once."""
    return tuple(sorted({*texts}))
