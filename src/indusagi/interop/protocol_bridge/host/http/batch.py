"""Several requests in one body, which one old revision of the protocol knows.

They are answered in one piece, when the last of them is; nothing is said in between.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import anyio

from indusagi.core.json import compact_json, is_json_object
from indusagi.interop.protocol_bridge.host.dispatcher import NO_PARAMS
from indusagi.interop.protocol_bridge.host.http.request import AWAY, HttpRefusal, ResponseQueue, cancelled

if TYPE_CHECKING:
    from collections.abc import Sequence

    from indusagi.core.json import JsonObject
    from indusagi.interop.protocol_bridge.host.dispatcher import RequestDispatcher, ServerSession
    from indusagi.interop.protocol_bridge.host.http.request import Headers, Request
    from indusagi.interop.protocol_bridge.rpc.connection import RequestId

_VERSION = "2025-03-26"
_PARTS = 100


def object_to_batch(client: ServerSession, parts: int) -> None:
    """Look whether a client may send so many messages in one body.

    Raises:
        HttpRefusal: It may not.
    """
    if client.version != _VERSION:
        said = f"only version {_VERSION} of the protocol knows batches"
        raise HttpRefusal(400, f"the body must be one JSON-RPC message: {said}")
    if not 0 < parts <= _PARTS:
        raise HttpRefusal(400, f"a batch has one part or more, and {_PARTS} at most: this has {parts}")


async def answer_batch(
    request: Request, dispatcher: RequestDispatcher, frames: Sequence[JsonObject], headers: Headers
) -> None:
    """Have requests answered, in the order they came in."""
    asked: list[tuple[RequestId, ResponseQueue]] = []

    async def watch() -> None:
        await request.gone()
        for identity, queue in asked:
            dispatcher.cancel(identity, AWAY)
            queue.end()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch)
        for frame in frames:
            identity, params = cast("RequestId", frame["id"]), frame.get("params")
            given = params if is_json_object(params) else NO_PARAMS
            queue = ResponseQueue(only_answers=True)
            asked.append((identity, queue))
            method = cast("str", frame["method"])
            dispatcher.request(identity, method, given, queue, queue.end)
        bodies: list[bytes] = []
        for identity, queue in asked:
            await queue.settled()
            none = compact_json(cancelled(identity)).encode()
            bodies.append(await queue.next_frame(0) or none)
        await request.respond(200, b"[%b]" % b",".join(bodies), headers)
        tasks.cancel_scope.cancel()
