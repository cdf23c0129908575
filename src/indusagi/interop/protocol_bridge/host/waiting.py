"""Responses that wait until their client has read the earlier ones: in memory, and past a limit on disk.

A client that reads slowly gets every response, only later. Its requests keep their places while they wait, so it can't
start more and more of them.
"""

from __future__ import annotations

import asyncio
import json
import os
from typing import TYPE_CHECKING

from indusagi.interop.protocol_bridge.host.outgoing import BUSY
from indusagi.interop.protocol_bridge.rpc.connection import RpcError
from indusagi.interop.protocol_bridge.rpc.transport import EncodedObject

if TYPE_CHECKING:
    from types import TracebackType
    from typing import BinaryIO

    from indusagi.core.json import JsonObject
    from indusagi.interop.protocol_bridge.host.outgoing import ResponseChannel

MAX_DISK_BYTES = 1024 * 1024 * 1024
_DISK = "/var/tmp"
SMALL_BYTES = 64 * 1024
"""Smaller responses wait for their own connection only, and never on disk."""


class _Total:
    """Waiting bytes of all clients in this process."""

    memory = 0
    disk = 0


_total = _Total()


class WaitingResponse:
    """A result between the end of its call and the moment its client has room for it."""

    def __init__(self, result: JsonObject) -> None:
        self._result = result
        self._size = len(result.encoded) if isinstance(result, EncodedObject) else 0
        self._memory = self._disk = 0
        self._file: BinaryIO | None = None
        self._writing: asyncio.Future[None] | None = None

    def __enter__(self) -> WaitingResponse:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _total.memory -= self._memory
        if self._writing is None or self._writing.done():
            self._close()
        else:
            self._writing.add_done_callback(self._close)

    def _close(self, _: object = None) -> None:
        _total.disk -= self._disk
        if self._file is not None:
            self._file.close()

    async def store(self, memory_bytes: int) -> None:
        """Keep the result in memory if all waiting ones together fit into `memory_bytes`, otherwise on disk.

        Raises:
            RpcError: There's no room on disk either.
        """
        result = self._result
        if (
            not isinstance(result, EncodedObject)
            or self._size <= SMALL_BYTES
            or (_total.memory + self._size <= memory_bytes)
        ):
            self._memory = self._size
            _total.memory += self._size
            return
        if _total.disk + self._size > MAX_DISK_BYTES:
            raise self._refuse("too many responses before it are not read")
        self._disk = self._size
        _total.disk += self._size
        self._result, encoded = {}, result.encoded
        del result
        self._writing = asyncio.get_running_loop().run_in_executor(None, self._write, encoded)
        del encoded
        try:
            await asyncio.shield(self._writing)
        except OSError as exc:
            raise self._refuse(f"it could not wait on disk ({exc.strerror})") from None

    async def wait(self, channel: ResponseChannel) -> None:
        """Wait until the client has room for it."""
        while True:
            # Check both again after each wait: another response may have filled them.
            if not channel.writable.is_set():
                await channel.writable.wait()
            elif self._size > SMALL_BYTES and not channel.room.is_set():
                await channel.room.wait()
            else:
                return

    def _refuse(self, reason: str) -> RpcError:
        return RpcError(BUSY, f"the response of {self._size:,} bytes was dropped: {reason}")

    def _write(self, encoded: bytes) -> None:
        import tempfile  # noqa: PLC0415 — only slow clients need it

        folder = _DISK if os.access(_DISK, os.W_OK) else None
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 — closed by `_close`
        self._file.write(encoded)
        self._file.flush()

    def load(self) -> JsonObject:
        """Return the result.

        This reads the file at once: if anything else ran between the check that the client has room and the write,
        every waiting response could be loaded for the same room.
        """
        if self._file is None:
            return self._result
        encoded = os.pread(self._file.fileno(), self._size, 0)
        return EncodedObject(json.loads(encoded), encoded)
