"""A server with tasks: the extension of revision 2026-07-28, and the experimental ones of 2025-11-25.

Its tools are those that the scenarios `tasks-…` of the conformance suite call. Ids of tasks are `task-1`, `task-2`, …:
two servers have the same. Options: those of `peer`, `--http PORT` (the modern era over HTTP instead of stdio),
`--poll MS`, `--ttl MS` (0: unlimited), `--news no` (no notifications about tasks).
"""

from __future__ import annotations

import datetime
import itertools
import json
import os
import sys
import threading

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from peer import STAMP, Call, Peer, RpcError, split, text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from peer import Json

TASKS = STAMP + "tasks"
RELATED = STAMP + "related-task"
REQUIRED: Json = {"requiredCapabilities": {"extensions": {TASKS: {}}}}
NAMED = {"tools/call": "name", "tasks/get": "taskId", "tasks/update": "taskId", "tasks/cancel": "taskId"}
TERMINAL = {"completed", "failed", "cancelled"}
OUTLIVES_S = 20.0


def now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")  # noqa: TID251 — nothing of ours here


def question(what: str) -> Json:
    schema = {"type": "object", "properties": {what: {"type": "string"}}}
    return {
        "method": "elicitation/create",
        "params": {"mode": "form", "message": f"{what}?", "requestedSchema": schema},
    }


class Cancelled(Exception):
    pass


class Task:
    """One task; a thread of its own works on it."""

    def __init__(self, server: TaskServer, call: Call, work: Callable[[Task], Json]) -> None:
        self.server = server
        self.call = call
        self.id = f"task-{next(server.numbers)}"
        self.status = "working"
        self.message = ""
        self.created = self.updated = now()
        self.result: Json | None = None
        self.error: Json | None = None
        self.requests: Json = {}
        self.answers: Json = {}
        self.changed = threading.Condition()
        self.is_cancelled = False
        server.tasks[self.id] = self
        threading.Thread(target=self.run, args=(work,), daemon=True).start()

    def run(self, work: Callable[[Task], Json]) -> None:
        try:
            self.result = work(self)
            self.enter("completed")
        except Cancelled:
            self.enter("cancelled")
        except RpcError as exc:
            self.error = exc.error
            self.enter("failed")

    def enter(self, status: str, message: str = "") -> None:
        with self.changed:
            if self.status in TERMINAL:
                return
            self.status, self.message, self.updated = status, message, now()
            self.changed.notify_all()
        self.server.tell(self)

    def cancel(self) -> None:
        with self.changed:
            self.is_cancelled = True
            self.changed.notify_all()

    def wait_for(self, done: Callable[[], bool], limit_s: float) -> bool:
        with self.changed:
            met = self.changed.wait_for(lambda: self.is_cancelled or done(), limit_s)
        if self.is_cancelled:
            raise Cancelled
        return met

    def sleep(self, seconds: float) -> None:
        self.wait_for(lambda: False, seconds)

    def ask(self, *whats: str) -> Json:
        """Ask the client some things at once, in the way of its era, and give the answers."""
        if not self.call.modern:
            meta = {RELATED: {"taskId": self.id}}
            self.enter("input_required")
            # Asked on the stream of `tasks/result`, which the client opens now.
            self.wait_for(lambda: self.id in self.server.awaited, OUTLIVES_S)
            asked = {what: question(what) for what in whats}
            for what, one in asked.items():
                said = self.server.push(one["method"], {**one["params"], "_meta": meta}).wait() or {}
                self.answers[what] = said.get("result", said.get("error"))
        else:
            self.requests = {what: question(what) for what in whats}
            self.enter("input_required")
            self.wait_for(lambda: set(whats) <= set(self.answers), OUTLIVES_S)
        self.enter("working")
        return self.answers

    def update(self, answers: Json) -> None:
        with self.changed:
            for key in set(answers) & set(self.requests):
                self.answers[key] = answers[key]
                self.requests = {name: one for name, one in self.requests.items() if name != key}
            self.changed.notify_all()

    def describe(self, *, detailed: bool = True) -> Json:
        ttl, poll = self.server.ttl_ms or None, self.server.poll_ms
        if not self.call.modern:
            said: Json = {"ttl": ttl, "pollInterval": poll}
        else:
            said = {"ttlMs": ttl, "pollIntervalMs": poll}
            if detailed and self.status == "input_required":
                said["inputRequests"] = self.requests
            if detailed and self.status == "completed":
                said["result"] = self.result
            if detailed and self.status == "failed":
                said["error"] = self.error
        if self.message:
            said["statusMessage"] = self.message
        return {
            "taskId": self.id,
            "status": self.status,
            "createdAt": self.created,
            "lastUpdatedAt": self.updated,
            **said,
        }


class TaskServer(Peer):
    def __init__(self, options: dict[str, str]) -> None:
        super().__init__("tasks", options)
        self.numbers = itertools.count(1)
        self.tasks: dict[str, Task] = {}
        self.awaited: set[str] = set()
        self.local = threading.local()
        self.poll_ms, self.ttl_ms = int(options.get("poll", "50")), int(options.get("ttl", "60000"))
        self.tells = options.get("news", "yes") == "yes"
        string, number = {"type": "string"}, {"type": "number"}
        self.add("greet", self.greet, {"name": string})
        self.offer("slow_compute", self.compute, {"seconds": number, "label": string})
        self.offer("failing_job", self.fail, required=True)
        self.offer("protocol_error_job", self.break_off)
        self.offer("confirm_delete", self.confirm, {"filename": string})
        self.offer("multi_input", self.ask_twice)
        self.offer("test_tool_with_task", self.greet_later, required=True)
        if self.era == "legacy":
            self.capabilities["tasks"] = {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}
            self.methods |= {"tasks/result": self.wait_result, "tasks/list": self.list_tasks}
        else:
            self.capabilities["extensions"] = {TASKS: {}}
            self.methods |= {"tasks/update": self.update}
        self.methods |= {"tasks/get": self.get, "tasks/cancel": self.cancel}

    def offer(
        self, name: str, work: Callable[[Task], Json], properties: Json | None = None, *, required: bool = False
    ) -> None:
        """Offer a tool that becomes a task where the client knows tasks."""

        def run(call: Call) -> Json:
            if not (self.knows_tasks(call) if call.modern else "task" in call.params):
                if required:
                    raise RpcError(-32021 if call.modern else -32601, f"{name} needs tasks", REQUIRED)
                return self.work_at_once(call, work)
            if name == "test_tool_with_task" and call.modern:
                given = call.params.get("inputResponses")
                if not given:
                    return {"resultType": "input_required", "inputRequests": {"user_name": question("name")}}
                call.arguments["name"] = given["user_name"]["content"]["name"]
            task = Task(self, call, work).describe(detailed=False)
            return {"resultType": "task", **task} if call.modern else {"task": task}

        run.__doc__ = f"{name}, as a task."
        support = {"execution": {"taskSupport": "required" if required else "optional"}}
        self.add(name, run, properties, thread=True, **(support if self.era == "legacy" else {}))

    def work_at_once(self, call: Call, work: Callable[[Task], Json]) -> Json:
        task = Task(self, call, work)
        task.wait_for(lambda: task.status in TERMINAL, OUTLIVES_S)
        if task.error is not None:
            raise RpcError(task.error["code"], task.error["message"])
        return task.result or {}

    def knows_tasks(self, call: Call) -> bool:
        declared: Json = call.meta.get(STAMP + "clientCapabilities") or {}
        return TASKS in (declared.get("extensions") or {})

    # -- tools ------------------------------------------------------------------------------

    def greet(self, call: Call) -> Json:
        """Greet at once."""
        return text(f"Hello, {call.arguments.get('name')}!")

    def compute(self, task: Task) -> Json:
        label = str(task.call.arguments.get("label"))
        task.message = f"computing {label}"
        task.sleep(float(task.call.arguments.get("seconds", 0)))
        return text(f"computed {label}")

    def fail(self, task: Task) -> Json:
        task.sleep(0.05)
        return text("it did not work", isError=True)

    def break_off(self, task: Task) -> Json:
        raise RpcError(-32603, "the machine broke")

    def confirm(self, task: Task) -> Json:
        given = task.ask("confirm")["confirm"]
        return text(f"{task.call.arguments.get('filename')}: {json.dumps(given)}")

    def ask_twice(self, task: Task) -> Json:
        given = task.ask("first", "second")
        return text(json.dumps(given))

    def greet_later(self, task: Task) -> Json:
        return text(f"Hello, {task.call.arguments.get('name')}!")

    # -- tasks ------------------------------------------------------------------------------

    def find(self, call: Call) -> Task:
        if call.modern and not self.knows_tasks(call):
            raise RpcError(-32021, "Missing required client capability", REQUIRED)
        task = self.tasks.get(str(call.params.get("taskId")))
        if task is None:
            raise RpcError(-32602, "there is no such task")
        return task

    def get(self, call: Call) -> Json:
        return self.find(call).describe()

    def update(self, call: Call) -> Json:
        self.find(call).update(call.params.get("inputResponses") or {})
        return {}

    def cancel(self, call: Call) -> Json:
        task = self.find(call)
        if not call.modern and task.status in TERMINAL:
            raise RpcError(-32602, f"the task is {task.status}")
        self.log(f"cancelled {task.id}")
        task.cancel()
        if call.modern:
            return {}
        with task.changed:
            task.changed.wait_for(lambda: task.status in TERMINAL, OUTLIVES_S)
        return task.describe()

    def list_tasks(self, call: Call) -> Json:
        return {"tasks": [task.describe() for task in self.tasks.values()]}

    def wait_result(self, call: Call) -> Json:
        task = self.find(call)
        with task.changed:
            self.awaited.add(task.id)
            task.changed.notify_all()
            task.changed.wait_for(lambda: task.status in TERMINAL, OUTLIVES_S)
        if task.error is not None or task.result is None:
            error = task.error or {"code": -32000, "message": "the task was cancelled"}
            raise RpcError(error["code"], error["message"])
        return {**task.result, "_meta": {RELATED: {"taskId": task.id}}}

    def tell(self, task: Task) -> None:
        """Notify the client of a change, in the way of its era."""
        if not self.tells:
            return
        if self.initialized and not task.call.modern:
            self.notify("notifications/tasks/status", task.describe())
        for identity, wanted in list(self.listeners.items()):
            if task.id in (wanted.get("taskIds") or ()):
                meta = {STAMP + "subscriptionId": identity}
                self.notify("notifications/tasks", {**task.describe(), "_meta": meta})

    # -- transports -------------------------------------------------------------------------

    def requested(self, call: Call) -> None:
        if call.method == "tasks/result":
            threading.Thread(target=self.respond, args=(call,), daemon=True).start()
        else:
            super().requested(call)

    def send(self, frame: Json) -> bool:
        caught: list[Json] | None = getattr(self.local, "caught", None)
        if caught is None:
            return super().send(frame)
        caught.append({"jsonrpc": "2.0", **frame})
        return True

    def answer_frame(self, frame: Json, headers: Any) -> tuple[int, Json]:
        """Answer one request over HTTP, in the thread of its connection."""
        params: Json = frame.get("params") or {}
        name = params.get(NAMED.get(frame["method"], ""))
        if headers.get("Mcp-Method") != frame["method"] or (name is not None and headers.get("Mcp-Name") != name):
            error = {"code": -32020, "message": "the headers do not say what the body says"}
            return 400, {"jsonrpc": "2.0", "id": frame["id"], "error": error}
        caught: list[Json] = []
        self.local.caught = caught
        self.respond(Call(self, frame))
        code = caught[-1].get("error", {}).get("code")
        return 404 if code == -32601 else 400 if code in {-32602, -32021, -32022} else 200, caught[-1]


def serve_http(server: TaskServer, port: int) -> None:
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer  # noqa: PLC0415 — slow to load

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            frame = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            server.log(f"heard {frame.get('method', 'answer')} {frame.get('id', '')}".rstrip())
            status, body = server.answer_frame(frame, self.headers) if "id" in frame else (202, {})
            data = json.dumps(body).encode() if body else b""
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def do_GET(self) -> None:
            self.send_response(405)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_DELETE = do_GET  # noqa: N815 — the name is prescribed

        def log_message(self, format: str, *args: object) -> None:
            pass

    listening = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    sys.stderr.write(f"listening on {listening.server_address[1]}\n")
    sys.stderr.flush()
    listening.serve_forever()


def main() -> None:
    options = split(sys.argv[1:])[1]
    if "http" in options:
        serve_http(TaskServer({**options, "era": "modern"}), int(options["http"]))
    TaskServer(options).serve()


main()
