"""What clients do to a gateway in a lap: every kind of call, and each answer is looked at.

A part runs to its end and raises `Wrong` for an answer that is not what it must be. Parts run side
by side; nothing of a lap is left when it is over.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from bench.gateway.client import Pipes, meet, names

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from bench.gateway.client import Answer
    from bench.gateway.http_client import Web
    from indusagi.core import JsonObject

_CALLS = 30
_FEWER = 5
_BIG = 300_000
_STEPS = 4
_FOREVER_S = 50
"""Duration of a call that is cancelled: longer than any deadline."""
_KINDS = ["text", "image", "audio", "resource_link", "resource", "resource"]
_WITHIN_S = 60.0
_SHOWN = 300


class Wrong(Exception):
    """An answer that is not what it must be; the message says which."""


@dataclass(slots=True)
class Visitor:
    """A client of a gateway, and what it is told between answers."""

    client: Pipes | Web
    tool: str
    """How the tools of the server that stays up are named, as in `gamma__{}`."""
    done: Counter[str] = field(default_factory=Counter[str])
    progress: dict[object, list[float]] = field(default_factory=dict[object, list[float]])
    begun: dict[object, asyncio.Event] = field(default_factory=dict[object, asyncio.Event])
    changes: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the gateway says that its tools have changed."""
    _tokens: itertools.count[int] = field(default_factory=itertools.count)

    def noticed(self, message: Answer) -> None:
        """Take what is told between answers."""
        params = _inner(message, "params")
        if message.get("method") == "notifications/tools/list_changed":
            self.changes.set()
        elif (token := params.get("progressToken")) in self.progress:
            self.progress[token].append(params["progress"])
            self.begun[token].set()

    async def call(self, name: str, arguments: JsonObject, token: object = None) -> Answer:
        """Call a tool of the server that stays up; give the whole answer."""
        self.done[name] += 1
        return await self.client.request("tools/call", self.asking(name, arguments, token))

    def asking(self, name: str, arguments: JsonObject, token: object = None) -> JsonObject:
        """Write the parameters of a call."""
        params: JsonObject = {"name": self.tool.format(name), "arguments": arguments}
        if token is not None:
            params["_meta"] = {"progressToken": cast("str", token)}
        return params

    def expect_progress(self) -> str:
        """Make a token for a call that tells how far it is."""
        token = f"step-{next(self._tokens)}"
        self.progress[token], self.begun[token] = [], asyncio.Event()
        return token

    def forget(self, token: str) -> list[float]:
        """Give what was told under a token, and expect no more."""
        del self.begun[token]
        return self.progress.pop(token)


def texts(answer: Answer) -> list[str]:
    """Give the texts of a result."""
    return [block["text"] for block in blocks(answer) if block.get("type") == "text"]


def blocks(answer: Answer) -> list[Answer]:
    """Give the content of a result."""
    return _inner(answer, "result").get("content") or []


def _inner(message: Answer, key: str) -> Answer:
    """Give an object inside of a message; an empty one if it is missing."""
    return message.get(key) or {}


def is_error(answer: Answer) -> bool:
    """Tell whether a call failed, in either way of the protocol."""
    return "error" in answer or bool(_inner(answer, "result").get("isError"))


def expect(found: object, wanted: object, what: str) -> None:
    """Compare.

    Raises:
        Wrong: They differ.
    """
    if found != wanted:
        raise Wrong(f"{what}: {str(found)[:_SHOWN]} instead of {str(wanted)[:100]}")


# -- parts of a lap -----------------------------------------------------------------------------


async def echoes(visitor: Visitor) -> None:
    """Call, and get back what was said."""
    for _ in range(_CALLS):
        said = random.choice("aé\n\u2028😀") * random.randint(1, 2000)
        answer = await visitor.call("echo", {"text": said})
        expect(texts(answer), [said], "an echo")


async def sums(visitor: Visitor) -> None:
    """Get structured answers."""
    for number in range(_CALLS):
        answer = await visitor.call("add", {"a": number, "b": 1})
        found = _inner(answer, "result").get("structuredContent")
        expect(found, {"sum": number + 1}, "a sum")


async def failures(visitor: Visitor) -> None:
    """Call what fails, what refuses, and what is not there."""
    for _ in range(_FEWER):
        expect(texts(await visitor.call("fail", {})), ["it did not work"], "a failure")
        for name in ("refuse", "nowhere"):
            if not is_error(answer := await visitor.call(name, {})):
                raise Wrong(f"{name} is no error: {str(answer)[:_SHOWN]}")


async def media(visitor: Visitor) -> None:
    """Get a block of every kind."""
    for _ in range(_FEWER):
        found = blocks(await visitor.call("media", {}))
        # The last has an unknown type: the gateway decides how it is passed on.
        expect([block["type"] for block in found[:-1]], _KINDS, "all kinds")


async def giants(visitor: Visitor) -> None:
    """Get long answers."""
    for _ in range(_FEWER):
        (text,) = texts(await visitor.call("big", {"bytes": _BIG})) or [""]
        expect(len(text), _BIG, "a long answer")


async def steps(visitor: Visitor) -> None:
    """Hear how far a call is."""
    for _ in range(_FEWER):
        token = visitor.expect_progress()
        answer = await visitor.call("slow", {"seconds": 0.02, "progress": _STEPS}, token)
        expect(texts(answer), ["done"], "a slow call")
        # Progress may be dropped while a long response is read; none may be late or repeated.
        told = visitor.forget(token)
        expect(told, sorted({*told}.intersection(range(1, _STEPS + 1))), "progress in order")


async def cancels(visitor: Visitor) -> None:
    """Give up a call that has begun."""
    for _ in range(_FEWER):
        token = visitor.expect_progress()
        endless: JsonObject = {"seconds": _FOREVER_S, "progress": _FOREVER_S * 50}
        if isinstance(visitor.client, Pipes):
            asking = visitor.asking("slow", endless, token)
            identity, answer = visitor.client.asked("tools/call", asking)
            await visitor.begun[token].wait()
            said: JsonObject = {"requestId": identity, "reason": "not needed"}
            await visitor.client.notify("notifications/cancelled", said)
            visitor.client.forget(identity)
            if answer.done():
                raise Wrong("a call was answered before it was cancelled")
        else:
            # Over HTTP, to go away is to cancel.
            async with asyncio.TaskGroup() as tasks:
                calling = tasks.create_task(visitor.call("slow", endless, token))
                await visitor.begun[token].wait()
                calling.cancel()
        visitor.forget(token)
        visitor.done["cancelled"] += 1


async def listings(visitor: Visitor) -> None:
    """List, and find what is always there."""
    for _ in range(_FEWER):
        found = await names(visitor.client)
        visitor.done["listed"] += 1
        if visitor.tool.format("echo") not in found:
            raise Wrong(f"a listing lacks the tools that are always there: {found}")


PARTS: tuple[Callable[[Visitor], Awaitable[None]], ...] = (
    echoes,
    echoes,
    sums,
    failures,
    media,
    giants,
    steps,
    cancels,
    listings,
)


async def lap(visitor: Visitor, *more: Awaitable[None]) -> None:
    """Do every part at once, and wait for all.

    Raises:
        Wrong: One of the answers was wrong, or did not come.
    """
    try:
        async with asyncio.timeout(_WITHIN_S), asyncio.TaskGroup() as tasks:
            for part in PARTS:
                tasks.create_task(cast("Any", part(visitor)))
            for one in more:
                tasks.create_task(cast("Any", one))
    except TimeoutError:
        raise Wrong(f"a lap was not over after {_WITHIN_S:g} s") from None
    except BaseExceptionGroup as group:
        raise Wrong(f"{_first(group)}") from group


def _first(exc: BaseException) -> BaseException:
    while isinstance(exc, BaseExceptionGroup):
        exc = cast("BaseExceptionGroup[BaseException]", exc).exceptions[0]
    return exc


async def visit(visitor: Visitor, *, greets: bool = True) -> None:
    """Connect, list, and call once; the modern protocol has no handshake."""
    if greets:
        await meet(visitor.client)
    await listings(visitor)
    said = f"visit {random.random()}"
    expect(texts(await visitor.call("echo", {"text": said})), [said], "an echo of a visitor")
    visitor.done["visits"] += 1
