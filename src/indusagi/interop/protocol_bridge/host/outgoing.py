"""What a host sends to one client: requests, and responses that wait until earlier ones are read.

A client that reads slowly gets every response, only later: past a limit they wait on disk. Its requests keep their
places while they wait, so it can't start more and more of them.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
from types import TracebackType
from typing import BinaryIO, Protocol

from indusagi.core.json import JsonObject
from indusagi.interop.protocol_bridge.contract import FaultDetail
from indusagi.interop.protocol_bridge.rpc.connection import (
    ConnectionClosedError,
    InvalidResponseError,
    RequestTimeoutError,
    RpcError,
    parse_error,
)
from indusagi.interop.protocol_bridge.rpc.transport import EncodedObject, TransportEnd

BUSY = -32000
_RANDOM_BYTES = 12


class ResponseChannel(Protocol):
    """Carries frames to a client."""

    @property
    def writable(self) -> asyncio.Event:
        """Set while more can be written without waiting."""
        ...

    @property
    def room(self) -> asyncio.Event:
        """Set while the client has room for a large response, on all its connections together."""
        ...

    @property
    def accepts_notifications(self) -> bool:
        """Whether frames other than responses reach the client here."""
        ...

    def send(self, frame: JsonObject) -> None:
        """Send a frame; ignored if the client is gone."""
        ...


class OutgoingRequests:
    """Unanswered requests to one client.

    Ids are random, so a client can't answer a request sent to another one.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._pending: dict[str, asyncio.Future[JsonObject]] = {}
        self._ids = (f"{os.urandom(_RANDOM_BYTES).hex()}-{number}" for number in itertools.count(1))

    async def send(
        self, method: str, params: JsonObject | None, channel: ResponseChannel, within_s: float
    ) -> JsonObject:
        """Send a request and wait for its result; notify the client on timeout or cancellation.

        Raises `RpcError` if the client answers with an error or has too many unanswered requests,
        `InvalidResponseError` if the result isn't an object, `RequestTimeoutError` without a response in time, and
        `ConnectionClosedError` if the client is gone or `channel` only carries responses.
        """
        if not channel.accepts_notifications:
            raise new_closed_error("cannot be asked: it reads nothing but responses")
        if len(self._pending) >= self._limit:
            raise RpcError(BUSY, "the client has too many questions to answer")
        request_id = next(self._ids)
        loop = asyncio.get_running_loop()
        response: asyncio.Future[JsonObject] = loop.create_future()
        self._pending[request_id] = response
        frame: JsonObject = {"jsonrpc": "2.0", "id": request_id, "method": method}
        try:
            channel.send(frame if params is None else {**frame, "params": params})
            async with asyncio.timeout(within_s):
                await response
        except (TimeoutError, asyncio.CancelledError) as exc:
            cancelled: JsonObject = {"requestId": request_id, "reason": "no longer wanted"}
            channel.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": cancelled})
            if isinstance(exc, TimeoutError):
                raise RequestTimeoutError(f"{method} was not answered within {within_s:g} s") from None
            raise
        finally:
            self._pending.pop(request_id, None)
            # Retrieve an error that arrived at the moment of cancellation.
            if response.done() and not response.cancelled():
                response.exception()
        return response.result()

    def resolve(self, frame: JsonObject) -> None:
        """Resolve the request that a response belongs to, ignoring unknown ones."""
        request_id = frame.get("id")
        response = self._pending.pop(request_id, None) if isinstance(request_id, str) else None
        if response is None or response.done():
            return
        result = frame.get("result")
        if isinstance(result, dict):
            response.set_result(result)
        elif "error" in frame:
            response.set_exception(parse_error(frame["error"], "client"))
        else:
            response.set_exception(InvalidResponseError("the client's response has no result object and no error"))

    def fail_all(self, reason: str) -> None:
        """Fail every pending request: the client is gone."""
        pending, self._pending = self._pending, {}
        for response in pending.values():
            if not response.done():
                response.set_exception(new_closed_error(reason))


def new_closed_error(reason: str) -> ConnectionClosedError:
    """Build the error for a client that can't be reached any more."""
    return ConnectionClosedError(TransportEnd(reason, FaultDetail(reason="closed")))


# -- waiting responses ------------------------------------------------------------------------

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
        """Keep the result in memory if all waiting ones together fit into `memory_bytes`, otherwise on disk."""
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
