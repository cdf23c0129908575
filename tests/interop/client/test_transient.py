"""Every failure that passes, at everything that polls a server: it is asked again, after the pause that it wants."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, get_args

import anyio
import httpcore2
import httpx2
import pytest
from tests.support.issuers import MemoryIssuer, Sent, play
from tests.support.networks import make_answer, to_fetch_error

from indusagi.core.tasks import Backoff
from indusagi.interop.auth.requests import HttpReply
from indusagi.interop.protocol_bridge.client.http.failures import classify_network_error, classify_status
from indusagi.interop.protocol_bridge.client.tasks import ServerTasks
from indusagi.interop.protocol_bridge.client.watches import ChangedLists, ServerWatches, keep_listening
from indusagi.interop.protocol_bridge.contract import RECOVERIES, FaultDetail, FaultReason, ProtocolFault, ServerLimits
from indusagi.interop.protocol_bridge.rpc.connection import (
    METHOD_NOT_FOUND,
    ConnectionClosedError,
    InvalidResponseError,
    RequestTimeoutError,
    RpcError,
    is_transient,
)
from indusagi.interop.protocol_bridge.rpc.transport import TransportEnd

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from indusagi.core.json import JsonObject

pytestmark = pytest.mark.anyio

LIMITS = ServerLimits(relist_gap_s=0.0, list_s=60)


def refuse(detail: FaultDetail | None, code: int = -32000) -> RpcError:
    error = RpcError(code, "it failed")
    error.detail = detail
    return error


def status(code: int, **headers: str) -> RpcError:
    rows = {name.replace("_", "-"): value for name, value in headers.items()}
    return refuse(classify_status(make_answer(httpx2.Response(code, headers=rows))).detail)


def network(exc: Exception) -> RpcError:
    return refuse(classify_network_error(to_fetch_error(exc)).detail)


PASSING: dict[str, Callable[[], Exception]] = {
    **{f"HTTP {code}": (lambda code=code: status(code)) for code in (408, 425, 429, 500, 502, 503, 504, 529)},
    "HTTP 503, later": lambda: status(503, retry_after="7"),
    "HTTP 429, later": lambda: status(429, retry_after="7"),
    "HTTP 503 with a JSON-RPC error": lambda: refuse(FaultDetail(http_status=503), -32603),
    "no connection": lambda: network(httpcore2.ConnectError("refused")),
    "connecting takes too long": lambda: network(httpcore2.ConnectTimeout("slow")),
    "cut while reading": lambda: network(httpcore2.ReadError("cut")),
    "cut before the answer": lambda: network(httpcore2.RemoteProtocolError("cut")),
    "no answer in time": lambda: network(TimeoutError()),
    "request timed out": lambda: RequestTimeoutError("late"),
    "proxy is down": lambda: network(httpcore2.ProxyError("503 Service Unavailable")),
}
LASTING: dict[str, Callable[[], Exception]] = {
    **{f"HTTP {code}": (lambda code=code: status(code)) for code in (400, 401, 403, 404, 405, 410, 422)},
    "method not found": lambda: refuse(None, METHOD_NOT_FOUND),
    "an error of the server": lambda: refuse(None, -32603),
    "nonsense": lambda: InvalidResponseError("nonsense"),
    "connection closed": lambda: ConnectionClosedError(TransportEnd("exited", FaultDetail(reason="exited"))),
}
FAILURES = 3


class Flaky:
    """Answers after some failures."""

    def __init__(self, failure: Callable[[], Exception], times: int = FAILURES) -> None:
        self.failure, self.left, self.asked = failure, times, list[str]()

    def ask(self, method: str) -> None:
        self.asked.append(method)
        if self.left:
            self.left -= 1
            raise self.failure()


class Pauses:
    """Passes every pause at once, and notes what the server wanted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.wanted = list[float | None]()

        def note(backoff: Backoff, retry_after_s: float | None = None) -> float:
            self.wanted.append(retry_after_s)
            return 0.0

        monkeypatch.setattr(Backoff, "next_pause", note)


# -- everything that asks again ---------------------------------------------------------------


async def poll_task(flaky: Flaky) -> str:
    sent = list[str]()

    async def send(method: str, params: JsonObject, within_s: float) -> JsonObject:
        sent.append(method)
        if method == "tasks/get":
            flaky.ask(method)
            return {"taskId": "t", "status": "completed", "result": {"content": []}}
        return {}

    tasks = ServerTasks(send, lambda method, params: asyncio.sleep(0, {}), 60)
    try:
        await tasks.follow({"taskId": "t", "status": "submitted"}, is_modern=True, limit_s=60)
    finally:
        assert "tasks/cancel" not in sent
    return "completed"


async def wait_for_legacy_task(flaky: Flaky) -> str:
    async def send(method: str, params: JsonObject, within_s: float) -> JsonObject:
        assert method == "tasks/result"
        flaky.ask(method)
        return {"content": []}

    tasks = ServerTasks(send, lambda method, params: asyncio.sleep(0, {}), 60)
    await tasks.follow({"taskId": "t", "status": "completed"}, is_modern=False, limit_s=60)
    return "completed"


async def answer_task(flaky: Flaky) -> str:
    delivered, questions = list[Any](), list[str]()

    async def send(method: str, params: JsonObject, within_s: float) -> JsonObject:
        if method == "tasks/update":
            flaky.ask(method)
            delivered.append(params["inputResponses"])
        if delivered:
            return {"taskId": "t", "status": "completed", "result": {}}
        asked: JsonObject = {"q": {"method": "elicitation/create", "params": {}}}
        return {"taskId": "t", "status": "input_required", "inputRequests": asked, "pollIntervalMs": 1}

    async def ask_user(method: str, params: JsonObject) -> JsonObject:
        questions.append(method)
        return {"action": "accept"}

    tasks = ServerTasks(send, ask_user, 60)
    await tasks.follow({"taskId": "t", "status": "submitted"}, is_modern=True, limit_s=60)
    assert (delivered, questions) == ([{"q": {"action": "accept"}}], ["elicitation/create"])
    return "completed"


async def subscribe(flaky: Flaky) -> str:
    """The subscription to changed lists: `FAILURES` gaps, each with another listing."""
    gaps, is_open = list[str](), asyncio.Event()

    async def listen(on_acknowledged: Callable[[JsonObject], None]) -> None:
        flaky.ask("subscriptions/listen")
        on_acknowledged({})
        is_open.set()
        await anyio.sleep_forever()

    raised = list[Exception]()
    async with anyio.create_task_group() as group:

        async def keep() -> None:
            try:
                await keep_listening(listen, LIMITS, lambda: gaps.append("gap"))
            except Exception as exc:  # noqa: BLE001 — raised below
                raised.append(exc)
                is_open.set()

        group.start_soon(keep)
        await is_open.wait()
        group.cancel_scope.cancel()
    if raised:
        raise raised[0]
    assert gaps == ["gap"]
    return "completed"


class WatchedSession:
    """A modern session with one flaky subscription."""

    is_modern = True

    def __init__(self, flaky: Flaky) -> None:
        self.flaky, self.reported = flaky, list[tuple[str, Any]]()
        self.is_open = asyncio.Event()

    async def listen(self, accept: Any, **notifications: Any) -> None:
        self.flaky.ask("subscriptions/listen")
        accept(notifications)
        self.is_open.set()
        await anyio.sleep_forever()

    def report(self, method: str, params: JsonObject) -> None:
        self.reported.append((method, params))

    async def request(self, method: str, params: JsonObject) -> JsonObject:
        return {"taskId": params["taskId"], "status": "working"}


async def watch_resource(flaky: Flaky) -> str:
    session: Any = WatchedSession(flaky)
    async with asyncio.TaskGroup() as tasks:
        watches = ServerWatches(session, LIMITS, tasks, session.request)
        refusal = await outcome_of(watches.watch_resource("a"))
        watches.close()
    if refusal is not None:
        raise refusal
    assert session.reported == [("notifications/resources/updated", {"uri": "a"})]
    return "completed"


async def outcome_of(work: Awaitable[None]) -> Exception | None:
    """Return what it raises: a task group would wrap it."""
    try:
        await work
    except Exception as exc:  # noqa: BLE001 — raised by the caller
        return exc
    return None


async def watch_task(flaky: Flaky) -> str:
    session: Any = WatchedSession(flaky)
    async with asyncio.TaskGroup() as tasks:
        watches = ServerWatches(session, LIMITS, tasks, session.request)
        watches.watch_task("t")
        open_or_over = tasks.create_task(session.is_open.wait())
        for _ in range(200):
            await asyncio.sleep(0)
        is_open = open_or_over.done()
        open_or_over.cancel()
        watches.close()
    if not is_open:
        raise flaky.failure()
    assert session.reported == [("notifications/tasks", {"taskId": "t", "status": "working"})]
    return "completed"


async def relist(flaky: Flaky) -> str:
    is_listed = asyncio.Event()

    async def read(kind: str) -> None:
        try:
            flaky.ask(kind)
        except Exception as exc:
            detail = getattr(exc, "detail", None)
            kind_of = "timeout" if isinstance(exc, RequestTimeoutError) else "transport"
            raise ProtocolFault(kind_of, "its tools could not be listed", exc, detail=detail) from exc
        is_listed.set()

    lists = ChangedLists(0.0, read)
    lists.wanted.add("tool")
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(lists.run())
        lists.note_gap()
        for _ in range(200):
            await asyncio.sleep(0)
        running.cancel()
    if not is_listed.is_set():
        raise flaky.failure()
    return "completed"


def to_reply(exc: Exception) -> HttpReply:
    """Give what the driver of a sign-in reports where the client of a server raises this."""
    detail = exc.detail if isinstance(exc, RpcError) else None
    if detail is not None and detail.http_status is not None:
        later = {} if detail.retry_after_s is None else {"retry-after": f"{detail.retry_after_s:.0f}"}
        return HttpReply(detail.http_status, later)
    return HttpReply(0, problem="it could not be reached") if is_transient(exc) else HttpReply(200, body=b"nonsense")


async def fetch_issuer_metadata(flaky: Flaky) -> str:
    url = "https://login.example.org/.well-known/openid-configuration"

    def answer(sent: Sent) -> HttpReply:
        try:
            flaky.ask(sent.url)
        except Exception as exc:  # noqa: BLE001 — any failure of the table
            return to_reply(exc)
        return HttpReply(200, body=b'{"issuer": "https://login.example.org"}')

    _, document = await MemoryIssuer(answers={url: answer}).fetch_json(url)
    if not document:
        raise flaky.failure()
    return "completed"


POLLERS: dict[str, Callable[[Flaky], Awaitable[str]]] = {
    "tasks/get": poll_task,
    "tasks/result": wait_for_legacy_task,
    "tasks/update": answer_task,
    "subscription to lists": subscribe,
    "watched resource": watch_resource,
    "watched task": watch_task,
    "changed list": relist,
    "issuer metadata": fetch_issuer_metadata,
}


@pytest.mark.parametrize("fault", PASSING)
@pytest.mark.parametrize("poller", POLLERS)
async def test_a_failure_that_passes_is_waited_for(poller: str, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    flaky, pauses = Flaky(PASSING[fault]), Pauses(monkeypatch)
    with anyio.fail_after(60):
        assert await POLLERS[poller](flaky) == "completed"
    assert len(flaky.asked) == FAILURES + 1
    if "later" in fault:
        assert [pause for pause in pauses.wanted if pause] == [7.0] * FAILURES


@pytest.mark.parametrize("fault", LASTING)
@pytest.mark.parametrize("poller", POLLERS)
async def test_what_the_server_itself_says_is_final(poller: str, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    flaky, pauses = Flaky(LASTING[fault]), Pauses(monkeypatch)
    with anyio.fail_after(60), pytest.raises(type(LASTING[fault]())):
        await POLLERS[poller](flaky)
    assert (len(flaky.asked), pauses.wanted) == (1, [])


@pytest.mark.parametrize(("later", "requests"), [("", 4), ("5", 4), ("3600", 1)])
def test_an_issuer_that_stays_away_is_reported_and_not_waited_for_long(later: str, requests: int) -> None:
    url = "https://login.example.org/x"
    issuer = MemoryIssuer(answers={url: lambda _: HttpReply(503, {"retry-after": later})})
    last, document = play(issuer.fetch_json(url))
    assert (last.status, document, len(issuer.requests)) == (503, {}, requests)
    assert sum(issuer.waits) <= 15.0


def test_every_reason_has_its_row() -> None:
    assert set(RECOVERIES) == set(get_args(FaultReason))
    assert not is_transient(ValueError("a defect"))


# -- the task whose caller gives up ------------------------------------------------------------


async def test_finding_f6_a_task_is_cancelled_when_its_caller_gives_up_and_not_before() -> None:
    sent, is_polled = list[str](), asyncio.Event()

    async def send(method: str, params: JsonObject, within_s: float) -> JsonObject:
        sent.append(method)
        if method == "tasks/get" and sent.count("tasks/get") == 1:
            raise status(503)
        if sent.count("tasks/get") == 3:
            is_polled.set()
        return {"taskId": "t", "status": "working", "pollIntervalMs": 50}

    tasks = ServerTasks(send, lambda method, params: asyncio.sleep(0, {}), 60)
    async with asyncio.TaskGroup() as group:
        following = group.create_task(tasks.follow({"taskId": "t", "status": "working"}, is_modern=True, limit_s=600))
        with anyio.fail_after(60):
            await is_polled.wait()
        assert "tasks/cancel" not in sent
        following.cancel()
        await asyncio.wait({following})
    assert sent[-1] == "tasks/cancel"
