"""What all test servers share: JSON-RPC over standard input and output, in both eras of MCP.

Standard library only, and nothing that is slow to load: a server starts in a few milliseconds. A
server adds its tools and methods to a `Peer` and calls `serve`.
With `--log FILE` it keeps a diary there: `start PID`, `heard METHOD ID`, `cancelled ID`, and more.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import threading

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any, NoReturn, TypeAlias

    Json: TypeAlias = dict[str, Any]
    Handler: TypeAlias = Callable[["Call"], "Json | None"]

MODERN = "2026-07-28"
LEGACY = "2025-11-25"
LIFE_S = 60
"""Nothing here lives longer by itself, whatever a test forgets to end."""
STAMP = "io.modelcontextprotocol/"
LEGACY_ONLY = {"initialize", "ping", "logging/setLevel"}
MODERN_ONLY = {"server/discover", "subscriptions/listen"}


class RpcError(Exception):
    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.error: Json = {"code": code, "message": message}
        if data is not None:
            self.error["data"] = data


class Call:
    """One request, while it is being answered."""

    def __init__(self, peer: Peer, frame: Json) -> None:
        self.peer = peer
        self.id: int | str = frame["id"]
        self.method: str = frame["method"]
        self.params: Json = frame.get("params") or {}
        self.meta: Json = self.params.get("_meta") or {}
        self.version: str | None = self.meta.get(STAMP + "protocolVersion")
        self.modern = peer.era == "modern" or (peer.era == "both" and self.version is not None)
        self.arguments: Json = self.params.get("arguments") or {}
        self.cancelled = threading.Event()

    def progress(self, done: float, total: float | None = None, message: str | None = None) -> None:
        if "progressToken" in self.meta:
            said = {"progress": done, "total": total, "message": message}
            given = {key: value for key, value in said.items() if value is not None}
            token = self.meta["progressToken"]
            self.peer.notify("notifications/progress", {"progressToken": token, **given})

    def allows(self, method: str) -> bool:
        """Tell whether the client said that it may be asked this."""
        stamped: Json = self.meta.get(STAMP + "clientCapabilities") or {}
        declared = stamped if self.modern else self.peer.client_capabilities
        return method.partition("/")[0] in declared


class Question:
    """A request of the server's to the client."""

    def __init__(self) -> None:
        self.answer: Json | None = None
        self.answered = threading.Event()

    def wait(self) -> Json | None:
        self.answered.wait(LIFE_S)
        return self.answer


class Peer:
    def __init__(self, name: str, options: dict[str, str]) -> None:
        self.info: Json = {"name": name, "version": "1.0"}
        self.era = options.get("era", "legacy")
        self.version = options.get("version", LEGACY)
        self.pages = int(options.get("pages", "1"))
        self.diary = options.get("log")
        self.capabilities: Json = {"tools": {"listChanged": True}}
        self.tools: list[Json] = []
        self.run: dict[str, Handler] = {}
        self.threaded: set[str] = set()
        self.methods: dict[str, Handler] = {
            "initialize": self.initialize,
            "ping": lambda call: {},
            "server/discover": self.discover,
            "subscriptions/listen": self.listen,
            "tools/list": lambda call: self.page(call, "tools", self.tools),
            "tools/call": self.call_tool,
        }
        self.before: Callable[[Call], bool] = lambda call: True
        """Sees every request first; a false answer means that nothing more is done with it."""
        self.at_end: Callable[[], object] = lambda: None
        """What happens after the end of input, before the process ends."""
        self.initialized = False
        self.client_capabilities: Json = {}
        self.running: dict[int | str, Call] = {}
        self.listeners: dict[int | str, Json] = {}
        self.questions: dict[int | str, Question] = {}
        self._ids = itertools.count(1)
        self._writing = threading.Lock()

    def add(
        self, name: str, run: Handler, properties: Json | None = None, *, thread: bool = False, **more: Any
    ) -> None:
        """Offer a tool, described by the docstring of its function."""
        schema: Json = {"type": "object", "properties": properties or {}}
        self.tools.append({"name": name, "description": run.__doc__ or name, "inputSchema": schema, **more})
        self.run[name] = run
        if thread:
            self.threaded.add(name)

    # -- speaking ---------------------------------------------------------------------------

    def write(self, data: bytes) -> bool:
        """Write bytes as they are; false when nobody reads them any more."""
        rest = memoryview(data)
        with self._writing:
            try:
                while rest:
                    rest = rest[os.write(1, rest) :]
            except OSError:
                return False
        return True

    def send(self, frame: Json) -> bool:
        return self.write(json.dumps({"jsonrpc": "2.0", **frame}).encode() + b"\n")

    def answer(self, call: Call, result: Json) -> bool:
        if call.modern:
            meta: Json = {STAMP + "serverInfo": self.info, **(result.get("_meta") or {})}
            result = {"resultType": "complete", **result, "_meta": meta}
            if call.method.endswith(("/list", "/read", "/discover")):
                result = {**result, "ttlMs": 0, "cacheScope": "private"}
        return self.send({"id": call.id, "result": result})

    def notify(self, method: str, params: Json | None = None) -> bool:
        return self.send({"method": method} if params is None else {"method": method, "params": params})

    def push(self, method: str, params: Json) -> Question:
        """Ask the client something."""
        question = Question()
        identity = next(self._ids)
        self.questions[identity] = question
        self.send({"id": identity, "method": method, "params": params})
        return question

    def changed(self) -> None:
        """Tell the client that the tools have changed, in the way of its era."""
        if self.initialized:
            self.notify("notifications/tools/list_changed")
        for identity, wanted in list(self.listeners.items()):
            if wanted.get("toolsListChanged"):
                meta = {STAMP + "subscriptionId": identity}
                self.notify("notifications/tools/list_changed", {"_meta": meta})

    def log(self, line: str) -> None:
        if self.diary:
            with open(self.diary, "a", encoding="utf-8") as file:
                file.write(line + "\n")

    # -- listening --------------------------------------------------------------------------

    def serve(self) -> NoReturn:
        """Listen until the end of input, then end the process."""
        self.log(f"start {os.getpid()}")
        self.listen_to_input()
        self.at_end()
        # Calls may still run in threads; nobody hears their answers any more.
        os._exit(0)

    def listen_to_input(self) -> None:
        for line in sys.stdin.buffer:
            frame: Json = json.loads(line)
            self.log(f"heard {frame.get('method', 'answer')} {frame.get('id', '')}".rstrip())
            if "method" not in frame:
                question = self.questions.get(frame["id"], Question())
                question.answer = frame
                question.answered.set()
            elif "id" in frame:
                self.requested(Call(self, frame))
            elif frame["method"] == "notifications/cancelled":
                identity = frame["params"]["requestId"]
                self.listeners.pop(identity, None)
                if identity in self.running:
                    self.running[identity].cancelled.set()

    def requested(self, call: Call) -> None:
        self.running[call.id] = call
        if call.method == "tools/call" and call.params.get("name") in self.threaded:
            threading.Thread(target=self.respond, args=(call,), daemon=True).start()
        else:
            self.respond(call)

    def respond(self, call: Call) -> None:
        try:
            result = self.method(call)(call) if self.before(call) else None
            if result is not None and not call.cancelled.is_set():
                self.answer(call, result)
        except RpcError as exc:
            self.send({"id": call.id, "error": exc.error})
        finally:
            self.running.pop(call.id, None)

    def method(self, call: Call) -> Handler:
        """Find who answers a request, and refuse what does not belong to its era."""
        if call.modern:
            if call.method == "initialize" or call.version not in {None, MODERN}:
                data = {"supported": [MODERN], "requested": call.version}
                raise RpcError(-32022, "unsupported protocol version", data)
            if call.version is None or STAMP + "clientCapabilities" not in call.meta:
                raise RpcError(-32602, "the request is not stamped")
        foreign = LEGACY_ONLY if call.modern else MODERN_ONLY
        if call.method not in self.methods or call.method in foreign:
            raise RpcError(-32601, f"method not found: {call.method}")
        if not (call.modern or self.initialized or call.method in {"initialize", "ping"}):
            raise RpcError(-32600, "initialize comes first")
        return self.methods[call.method]

    # -- methods ----------------------------------------------------------------------------

    def initialize(self, call: Call) -> Json:
        self.initialized = True
        self.client_capabilities = call.params["capabilities"]
        return {
            "protocolVersion": self.version,
            "capabilities": self.capabilities,
            "serverInfo": self.info,
            "instructions": "For tests.",
        }

    def discover(self, call: Call) -> Json:
        return {"supportedVersions": [MODERN], "capabilities": self.capabilities}

    def listen(self, call: Call) -> None:
        wanted: Json = call.params["notifications"]
        self.listeners[call.id] = wanted
        meta = {STAMP + "subscriptionId": call.id}
        told: Json = {"_meta": meta, "notifications": wanted}
        self.notify("notifications/subscriptions/acknowledged", told)

    def page(self, call: Call, key: str, rows: list[Json]) -> Json:
        cursor = str(call.params.get("cursor", "page-0"))
        number = int(cursor.removeprefix("page-")) if cursor.startswith("page-") else self.pages
        if not 0 <= number < self.pages:
            raise RpcError(-32602, f"no such page: {cursor}")
        size = -(-len(rows) // self.pages)
        result: Json = {key: rows[number * size : (number + 1) * size]}
        return {**result, "nextCursor": f"page-{number + 1}"} if number + 1 < self.pages else result

    def call_tool(self, call: Call) -> Json | None:
        run = self.run.get(call.params["name"])
        if run is None:
            raise RpcError(-32602, f"unknown tool: {call.params['name']}")
        return run(call)


def text(*parts: str, **more: Any) -> Json:
    """Make the result of a tool out of text."""
    return {"content": [{"type": "text", "text": part} for part in parts], **more}


def complain(message: str) -> None:
    """Write to standard error at once."""
    os.write(2, message.encode("utf-8", "surrogatepass"))


def split(words: Iterable[str]) -> tuple[list[str], dict[str, str]]:
    """Tell `--option value` from the other words of a command line."""
    rest: list[str] = []
    options: dict[str, str] = {}
    left = iter(words)
    for word in left:
        if word.startswith("--"):
            options[word[2:]] = next(left)
        else:
            rest.append(word)
    return rest, options
