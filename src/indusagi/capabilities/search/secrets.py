"""Credentials that lie in a tree: what the file door does not open, no search looks into either."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from anyio import to_thread

from indusagi.capabilities.files.paths.protected import default_protected_paths
from indusagi.capabilities.files.text.display import format_path, join_path
from indusagi.capabilities.ports import PathRefused
from indusagi.core.paths import is_within, parts_below

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from indusagi.capabilities.ports import Fs


async def secrets_below(fs: Fs, folder: str, root: str) -> tuple[str, ...]:
    """List what in a directory is not to be looked into, by its path from there.

    The door is asked of each place, so that what a user has permitted is searched.

    Args:
        fs: The door.
        folder: The directory that is searched, absolute, links followed.
        root: The working directory, likewise.
    """
    closed: list[str] = []
    protection = default_protected_paths()
    if not any(is_within(place, base) for place in protection.places for base in (folder, root)):
        return ()
    for place in await to_thread.run_sync(_there, folder, root):
        try:
            await fs.resolve(place)
        except PathRefused:
            closed.append("/".join(parts_below(place, folder)))
    return tuple(closed)


def notice(secrets: Sequence[str], base: str) -> Iterator[str]:
    """Say what was not looked into, if anything, as seen from where the user stands."""
    if secrets:
        names = ", ".join(join_path(base, format_path(path)) for path in secrets)
        kept = "credentials, or what indus keeps for itself"
        yield f"[Not looked into, for there are {kept}: {names}.]"


def _there(folder: str, root: str) -> Sequence[str]:
    protection = default_protected_paths()
    places = {*protection.hidden_below(folder), *protection.hidden_below(root)}
    return sorted(place for place in places if place != folder and is_within(place, folder) and os.path.lexists(place))
