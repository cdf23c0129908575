"""Doors that lead nowhere, for tools whose work is done by somebody else.

A remote tool touches no file and runs no command of this machine. Should one reach for a door all
the same, it is told so, then and not before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import BinaryIO, NoReturn

from indusagi.capabilities.backends import (
    DirEntry,
    FileStat,
    Folder,
    ShellProcess,
    ShellResult,
    WorkT,
)
from indusagi.capabilities.budget import UNLIMITED
from indusagi.capabilities.context import ToolContext
from indusagi.core.cancel import CancelToken


def inert_context() -> ToolContext:
    """Make the context for remote tools: no doors, and no budget but that of the consumer."""
    return ToolContext(
        cwd="/",
        fs=UnavailableFs(),
        shell=UnavailableShell(),
        cancel=CancelToken(),
        budget=UNLIMITED,
    )


def _unavailable() -> NoReturn:
    raise OSError("a remote tool has no files or commands of this machine")


class UnavailableFs:
    """Files that are not there."""

    async def resolve(self, path: str, *, writing: bool = False) -> str:
        """Refuse."""
        _unavailable()

    async def reading(self, path: str, work: Callable[[BinaryIO], WorkT]) -> WorkT:
        """Refuse."""
        _unavailable()

    async def folder(self, path: str) -> Folder:
        """Refuse."""
        _unavailable()

    async def stat(self, path: str, *, follow: bool = True) -> FileStat:
        """Refuse."""
        _unavailable()

    async def exists(self, path: str) -> bool:
        """Refuse."""
        _unavailable()

    async def read_bytes(self, path: str, *, offset: int = 0, limit: int | None = None) -> bytes:
        """Refuse."""
        _unavailable()

    async def read_text(self, path: str) -> str:
        """Refuse."""
        _unavailable()

    async def write_file(self, path: str, data: bytes | str) -> None:
        """Refuse."""
        _unavailable()

    async def mkdir(self, path: str) -> None:
        """Refuse."""
        _unavailable()

    async def readdir(self, path: str) -> tuple[DirEntry, ...]:
        """Refuse."""
        _unavailable()

    async def rm(self, path: str) -> None:
        """Refuse."""
        _unavailable()


class UnavailableShell:
    """Commands that cannot be run."""

    async def exec(
        self,
        command: str,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout_ms: int | None = None,
        cancel: CancelToken | None = None,
    ) -> ShellResult:
        """Refuse."""
        _unavailable()

    async def spawn(
        self,
        command: str,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        output_path: str | None = None,
        with_input: bool = False,
    ) -> ShellProcess:
        """Refuse."""
        _unavailable()
