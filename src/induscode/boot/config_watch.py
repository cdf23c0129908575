"""The files that configure the servers of a run, and whether one of them has changed."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from induscode.deck.mcp.config import list_config_paths
from induscode.deck.mcp.config.trust import TrustStore

if TYPE_CHECKING:
    from collections.abc import Sequence

    from induscode.launch.invocation import Invocation


def list_config_files(invocation: Invocation) -> Sequence[str]:
    """List every file that may configure servers of this run, existing or not."""
    files: list[str] = []
    for name in invocation.mcp or (invocation.cwd,):
        path = os.path.join(invocation.cwd, os.path.expanduser(name))
        if os.path.isdir(path):
            files += [place for place, _ in list_config_paths(path)]
            files.append(os.path.join(path, ".mcp.json"))
        else:
            files.append(path)
    return tuple(dict.fromkeys(files))


class ConfigFiles:
    """The signatures of these files. Consent given in another process counts as a change."""

    def __init__(self, files: Sequence[str]) -> None:
        try:
            trust = (TrustStore().path,)
        except OSError:
            trust = ()  # without a home directory no server is trusted
        self._files = (*files, *trust)
        self._last = self.read_signatures()

    def has_changed(self) -> bool:
        """Tell whether a file has changed since the last time. It blocks."""
        present = self.read_signatures()
        changed, self._last = present != self._last, present
        return changed

    def read_signatures(self) -> object:
        """Read inode, size and times of every file; for an absent one the error number."""
        return tuple(_read_signature(path) for path in self._files)


def _read_signature(path: str) -> object:
    try:
        status = os.stat(path)
    except OSError as exc:
        return exc.errno
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
