"""Clients that speak frame by frame: to a server directly, or through a relay in every way."""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio
import httpx2
from tests.support.scripts import ROOT
from tests.support.waiting import LIMIT_S, until

from indusagi.interop import HttpSettings, create_relay_host, linked_pair
from indusagi.interop.protocol_bridge.rpc.transport import decode_frame_verbatim, encode_frame

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from anyio.abc import TaskGroup

    from indusagi.interop import RelayHost, StdioServerConfig

CHILD = ROOT / "tests" / "support" / "relay_child.py"
BOTH = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
VERSION = "io.modelcontextprotocol/protocolVersion"
STAMP: dict[str, Any] = {
    VERSION: "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {"elicitation": {}, "sampling": {}, "roots": {}},
}
HELLO: dict[str, Any] = {
    "protocolVersion": "2025-11-25",
    "capabilities": {"elicitation": {}, "sampling": {}, "roots": {}},
    "clientInfo": {"name": "front", "version": "1"},
}
FORM = {"action": "accept", "content": {"name": "Ada"}}


def ordered(text: bytes) -> Any:
    """Read JSON so that two texts are equal only if the order of their keys is."""
    return json.loads(text, object_pairs_hook=_pairs)


def _pairs(pairs: list[tuple[str, Any]]) -> Any:
    return ("object", *pairs)


class Front:
    """A client that sends frames of the test, and records those it receives."""

    def __init__(self, say: Callable[[bytes], None]) -> None:
        self.link: Any = None
        """Its end of a link in memory."""
        self.received: list[bytes] = []
        self._say = say
        self._stirred = asyncio.Event()
        self._read = 0

    def hear(self, text: bytes) -> None:
        self.received.append(text)
        self._stirred.set()

    def frames(self) -> list[Any]:
        return [json.loads(text) for text in self.received]

    def say(self, method: str, params: Any = None, identity: Any = None) -> None:
        frame: dict[str, Any] = {"jsonrpc": "2.0"}
        if identity is not None:
            frame["id"] = identity
        frame["method"] = method
        self.write(frame if params is None else {**frame, "params": params})

    def write(self, frame: Any) -> None:
        self._say(frame if isinstance(frame, bytes) else json.dumps(frame).encode())

    async def next_frame(self) -> bytes:
        """Give what is heard next."""
        with anyio.fail_after(LIMIT_S):
            while self._read >= len(self.received):
                self._stirred.clear()
                await self._stirred.wait()
        self._read += 1
        return self.received[self._read - 1]

    async def exchange(self, method: str, params: Any = None, identity: Any = 1) -> list[bytes]:
        """Ask, answer what is asked back, and give all that is heard up to the answer."""
        self.say(method, params, identity)
        heard: list[bytes] = []
        while True:
            heard.append(await self.next_frame())
            frame = json.loads(heard[-1])
            if "method" in frame and "id" in frame:
                self.write({"jsonrpc": "2.0", "id": frame["id"], "result": FORM})
            elif frame.get("id") == identity:
                return heard

    async def ask(self, method: str, params: Any = None, identity: Any = 1) -> Any:
        """Ask, and give the answer."""
        return json.loads((await self.exchange(method, params, identity))[-1])

    async def call(self, name: str, identity: Any = 1, **arguments: Any) -> Any:
        return await self.ask("tools/call", {"name": name, "arguments": arguments}, identity)

    async def hello(self) -> None:
        assert "result" in await self.ask("initialize", HELLO, "hello")
        self.say("notifications/initialized")

    async def wait_for(self, test: Callable[[Any], bool]) -> Any:
        """Wait until something is heard that passes a test, and give it."""
        with anyio.fail_after(LIMIT_S):
            while True:
                for frame in self.frames():
                    if test(frame):
                        return frame
                self._stirred.clear()
                await self._stirred.wait()


def stamped(params: Any = None, **meta: Any) -> dict[str, Any]:
    """Write params as the newer protocol wants them."""
    return {**(params or {}), "_meta": {**STAMP, **meta}}


# -- ways -----------------------------------------------------------------------------------


@asynccontextmanager
async def process(*argv: str) -> AsyncGenerator[Front]:
    """Speak to a process through its standard streams."""
    child = await asyncio.create_subprocess_exec(
        *argv,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        limit=1 << 26,
        env={"PYTHONPATH": str(ROOT)},
    )
    source, sink = child.stdout, child.stdin
    assert source is not None
    assert sink is not None
    front = Front(lambda text: sink.write(text + b"\n"))

    async def read() -> None:
        while line := await source.readline():
            front.hear(line.strip())

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(read)
        try:
            yield front
        finally:
            sink.close()
            with anyio.move_on_after(LIMIT_S, shield=True):
                await child.wait()
            tasks.cancel_scope.cancel()
            child._transport.close()  # type: ignore[attr-defined] — else its pipes stay open until it is collected


def direct(config: StdioServerConfig) -> Any:
    """Speak to the server itself."""
    return process(config.command, *config.args)


def relayed_stdio(config: StdioServerConfig) -> Any:
    """Speak to a relay that is a process."""
    return process(sys.executable, str(CHILD), config.command, *config.args)


@asynccontextmanager
async def front_of(host: RelayHost) -> AsyncGenerator[Front]:
    """Speak to a relay in memory."""
    ours, theirs = linked_pair()
    front = Front(lambda text: ours.send(decode_frame_verbatim(text)))  # type: ignore[arg-type] — tests send objects
    ours.attach(lambda frame: front.hear(encode_frame(frame)), lambda end: None)  # type: ignore[arg-type]
    front.link = ours
    running = await host.connect(theirs)
    try:
        yield front
    finally:
        ours.finish()
        await running.waiting()


@asynccontextmanager
async def relayed_memory(config: StdioServerConfig) -> AsyncGenerator[Front]:
    async with front_of(create_relay_host(config)) as front:
        yield front


class HttpFront(Front):
    """Speaks over HTTP; a POST for every message, all in tasks of their own."""

    def __init__(self, client: httpx2.AsyncClient, url: str, tasks: TaskGroup) -> None:
        super().__init__(self._post)
        self.session: dict[str, str] = {}
        self.statuses: list[int] = []
        self.scopes: dict[Any, anyio.CancelScope] = {}
        """Leaving one breaks off the request of that id."""
        self.by_request: dict[Any, list[Any]] = {}
        """What was heard on the stream of each request; `standing`: on the standing one."""
        self.stream_is_open = False
        self._client, self._url, self._tasks = client, url, tasks

    async def stream_of(self, identity: Any) -> Any:
        """Wait for the first word on the stream of a request."""
        await until(lambda: bool(self.by_request.get(identity)))
        return self.by_request[identity][0]

    def _post(self, text: bytes) -> None:
        self._tasks.start_soon(self._carry, text)

    async def _carry(self, text: bytes) -> None:
        frame = json.loads(text)
        headers = {**BOTH, **self.session, **_routing(frame)}
        with anyio.CancelScope() as scope:
            self.scopes[frame.get("id")] = scope
            posting = self._client.stream("POST", self._url, content=text, headers=headers)
            async with posting as answer:
                self.statuses.append(answer.status_code)
                if "mcp-session-id" in answer.headers:
                    self.session["mcp-session-id"] = answer.headers["mcp-session-id"]
                await self._take(answer, frame.get("id"))

    async def _take(self, answer: httpx2.Response, place: Any) -> None:
        heard = self.by_request.setdefault(place, [])
        if answer.headers.get("content-type") == "text/event-stream":
            async for line in answer.aiter_lines():
                if line.startswith("data: "):
                    heard.append(json.loads(line[6:]))
                    self.hear(line[6:].encode())
        elif body := await answer.aread():
            heard.append(json.loads(body))
            self.hear(body)

    async def wait_for_raw(self, identity: Any) -> bytes:
        """Wait for the answer to a request, and give it as it was written."""
        await self.wait_for(lambda frame: frame.get("id") == identity)
        return next(text for text in self.received if json.loads(text).get("id") == identity)

    def listen(self) -> None:
        """Open the standing stream."""

        async def stream() -> None:
            headers = {"accept": "text/event-stream", **self.session}
            with anyio.CancelScope() as self.scopes["standing"]:
                async with self._client.stream("GET", self._url, headers=headers) as answer:
                    self.stream_is_open = True
                    await self._take(answer, "standing")

        self._tasks.start_soon(stream)


def _routing(frame: Any) -> dict[str, str]:
    params: dict[str, Any] = frame.get("params") or {}
    meta: dict[str, Any] = params.get("_meta") or {}
    version = meta.get(VERSION)
    if version is None:
        return {}
    named = params.get("name", params.get("uri"))
    name = {} if named is None else {"mcp-name": named}
    return {"mcp-protocol-version": version, "mcp-method": frame["method"], **name}


@asynccontextmanager
async def http_fronts(
    host: RelayHost, count: int = 1, *, stay: bool = False, **settings: Any
) -> AsyncGenerator[list[HttpFront]]:
    """Speak to a relay over HTTP, as several clients; those who stay are there when it ends."""
    chosen: Any = {"without_token": True, **settings}
    async with (
        httpx2.AsyncClient(timeout=60) as client,
        anyio.create_task_group() as tasks,
        host.serve_http(HttpSettings(**chosen)) as serving,
    ):
        url = f"http://127.0.0.1:{serving.port}/mcp"
        fronts = [HttpFront(client, url, tasks) for _ in range(count)]
        try:
            yield fronts
        finally:
            for scope in () if stay else [s for front in fronts for s in front.scopes.values()]:
                scope.cancel()


@asynccontextmanager
async def relayed_http(config: StdioServerConfig) -> AsyncGenerator[Front]:
    async with http_fronts(create_relay_host(config)) as [front]:
        yield front


WAYS: dict[str, Any] = {"memory": relayed_memory, "stdio": relayed_stdio, "http": relayed_http}
