"""Named tokens: whom they let in, to which view, for how long, and within which budget."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import stat
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import httpx2
import pytest
from anyio import to_thread
from tests.support.host_tools import Bench
from tests.support.waiting import until

from indusagi.core.secrets import hide_secrets
from indusagi.core.time import DAY_MS
from indusagi.interop import HttpSettings, create_provider_host
from indusagi.interop.protocol_bridge.client.handlers import current_caller
from indusagi.interop.protocol_bridge.contract import ProtocolFault
from indusagi.interop.protocol_bridge.host.identity import ClientIdentity, current_identity
from indusagi.runtime.calls import current_client
from indusagi.runtime.contract import ToolCall, ToolOutcome, ToolResult
from induscode.gateway import token_book as module
from induscode.gateway.token_book import TokenBook
from induscode.gateway.tokens import Budget, TokenEntry, TokenStore, find_day, generate_token, hash_token, is_token
from induscode.gateway.view_box import GatewayViews
from induscode.launch.views import parse_views

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator

    from indusagi.capabilities.context import ToolContext
    from indusagi.capabilities.tool import ToolAnswer
    from indusagi.core.json import JsonObject

pytestmark = pytest.mark.anyio
OWN = "u" * 32
"""The user's token."""
VIEWS = parse_views(
    {
        "phone": {"tools": ["echo"]},
        "guest": {"principals": ["*@partner"], "tools": ["fail"]},
        "editor": {"clients": ["ed"], "tools": ["who"]},
    }
)


def put_now(store: TokenStore, name: str, **facts: Any) -> str:
    """Store a token, and return it."""
    token, scopes = generate_token(), facts.pop("scopes", ("indus:list", "indus:call"))
    known = {entry.name: entry.changed_ms for entry in store.list_entries()}
    entry = TokenEntry(name=name, digest=hash_token(token).hex(), scopes=scopes, **facts)
    assert store.put(replace(entry, changed_ms=known.get(name, 0) + 1))
    return token


async def put(store: TokenStore, name: str, **facts: Any) -> str:
    """Store a token as another process does, and return it."""

    def run() -> str:
        with closing(TokenStore(store.path)) as other:
            return put_now(other, name, **facts)

    return await to_thread.run_sync(run)


async def change(store: TokenStore, name: str, kind: Any = "token", **facts: Any) -> None:
    """Change an entry as another process does, or add one."""

    def run() -> None:
        with closing(TokenStore(store.path)) as other:
            found = {(entry.kind, entry.name): entry for entry in other.list_entries()}
            entry = found.get((kind, name), TokenEntry(kind=kind, name=name))
            assert other.put(replace(entry, changed_ms=entry.changed_ms + 1, **facts))

    await to_thread.run_sync(run)


@pytest.fixture
def store(tmp_path: Path) -> Generator[TokenStore]:
    with closing(TokenStore(str(tmp_path / "tokens.db"))) as store:
        yield store


class ServedBench:
    """The tools of a bench, as a gateway's views expect them."""

    def __init__(self, bench: Bench) -> None:
        self._bench, self.context = bench, bench.context
        self.renew()

    def renew(self) -> None:
        """Serve the present tools of the bench."""
        self._box = self._bench.box()

    @property
    def runner(self) -> Any:
        return self

    def descriptors(self) -> Any:
        return self._box.descriptors()

    async def run(self, call: ToolCall, cancel: Any = None, *, on_progress: Any = None) -> ToolOutcome:
        return await self._box.runner.run(call, cancel, on_progress=on_progress)

    def find_server(self, name: str) -> None:
        return None

    def answers_unlisted(self, name: str) -> bool:
        return False

    def forwards_input(self, name: str) -> bool:
        return False

    def find_denied(self, names: Any) -> Any:
        return ()


class Served:
    """A host with named tokens, and a client."""

    def __init__(self, url: str, client: httpx2.AsyncClient, bench: Bench, book: TokenBook, box: ServedBench) -> None:
        self.url, self.client, self.bench, self.book, self.box = url, client, bench, book, box

    async def send(self, token: str, method: str, path: str = "", session: str = "", **params: Any) -> httpx2.Response:
        """Send a request: of a session, or self-contained."""
        headers = {"accept": "application/json, text/event-stream", "authorization": f"Bearer {token}"}
        if session or method == "initialize":
            headers |= {"mcp-session-id": session} if session else {}
        else:
            headers |= {"mcp-protocol-version": "2026-07-28", "mcp-method": method}
            headers |= {"mcp-name": params["name"]} if "name" in params else {}
            client = {"name": "hand", "version": "1"}
            meta: dict[str, Any] = {
                "protocolVersion": "2026-07-28",
                "clientCapabilities": {"elicitation": {"form": {}}},
                "clientInfo": client,
            }
            params["_meta"] = {f"io.modelcontextprotocol/{key}": value for key, value in meta.items()}
        frame = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        return await self.client.post(self.url + path, json=frame, headers=headers)

    async def open_session(self, token: str, path: str = "") -> str:
        """Shake hands, and return the id of the session."""
        client = {"name": "old", "version": "2"}
        params: dict[str, Any] = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client}
        return (await self.send(token, "initialize", path, **params)).headers["mcp-session-id"]

    async def list_tools(self, token: str, path: str = "") -> list[str] | int:
        """Return the names of the tools that a token sees, or the status of the refusal."""
        response = await self.send(token, "tools/list", path)
        return (
            [tool["name"] for tool in response.json()["result"]["tools"]]
            if response.status_code == 200
            else response.status_code
        )


@asynccontextmanager
async def served(store: TokenStore, **settings: Any) -> AsyncGenerator[Served]:
    """Serve four tools with views to the tokens of a store."""
    bench, book = Bench(), TokenBook(store)

    async def who(_: JsonObject, __: ToolContext) -> ToolAnswer:
        client = current_client.get()
        return f"{client and client.principal} {current_identity.get().credential}"

    bench.add("who", who)
    box: Any = ServedBench(bench)
    views = GatewayViews(lambda: box, VIEWS)
    host = create_provider_host(lambda: box, choose_view=views.choose)
    chosen = HttpSettings(tokens=(OWN,), named=book, views=views.list_open(), **settings)
    async with host.serve_http(chosen) as serving, httpx2.AsyncClient(timeout=60) as client:
        yield Served(serving.url, client, bench, book, box)


# -- access -----------------------------------------------------------------------------------


def test_a_token_is_256_random_bits_that_redaction_and_scanners_know() -> None:
    token = generate_token()
    assert is_token(token)
    assert len(token) == len("indus_") + 43
    assert hide_secrets(f"it is {token}, says the log") == "it is …, says the log"
    assert not is_token(token[:-1])


def test_only_the_digest_of_a_token_is_stored_in_a_private_file(store: TokenStore) -> None:
    token = put_now(store, "ci")
    store.close()
    assert token.encode() not in Path(store.path).read_bytes()
    assert stat.S_IMODE(Path(store.path).stat().st_mode) == 0o600
    assert "digest" not in repr(TokenEntry(name="a", digest="00"))


async def test_a_token_has_a_name_scopes_and_the_lists_that_fit(store: TokenStore) -> None:
    all_, lists, calls = (
        await put(store, "ci"),
        await put(store, "lo", scopes=("indus:list",)),
        await put(store, "ca", scopes=("indus:call",)),
    )
    async with served(store) as host:
        response = await host.send(all_, "tools/call", name="who", arguments={})
        assert response.json()["result"]["content"][0]["text"] == "ci token"
        for token, method, missing in ((lists, "tools/call", "indus:call"), (calls, "tools/list", "indus:list")):
            refused = await host.send(token, method, name="who")
            assert refused.status_code == 403
            assert f"lacks the scope {missing}" in refused.json()["error"]["message"]
            assert "www-authenticate" not in refused.headers  # no sign-in would help
        for path in ("/health", "/metrics"):
            url = host.url.removesuffix("/mcp") + path
            assert (await host.client.get(url, headers={"authorization": f"Bearer {all_}"})).status_code in {403, 404}
        for wrong in (generate_token(), all_[:-1], all_ + "a", "indus_", hash_token(all_).hex()):
            assert await host.list_tools(wrong) == 401
        basic = {"authorization": f"Basic {all_}"}
        assert (await host.client.post(host.url, headers=basic, json={})).status_code == 401
        assert len(await host.list_tools(OWN)) == 11  # type: ignore[arg-type] — a list


async def test_a_view_has_a_path_and_its_token_opens_only_that(store: TokenStore) -> None:
    ci, phone, gone = await put(store, "ci"), await put(store, "ph", view="phone"), await put(store, "x", view="gone")
    partner = await put(store, "eve@partner")
    async with served(store) as host:
        assert await host.list_tools(OWN, "/v/phone") == ["echo"]
        assert await host.list_tools(OWN, "/v/guest") == ["fail"]
        assert await host.list_tools(ci, "/v/phone") == ["echo"]
        assert await host.list_tools(ci, "/v/%70hone") == ["echo"]
        assert await host.list_tools(ci, "/v/guest") == 403  # of other principals
        assert [await host.list_tools(phone, path) for path in ("", "/v/phone")] == [["echo"], ["echo"]]
        for token, path in ((phone, "/v/guest"), (phone, "/v/editor"), (gone, ""), (partner, "/v/phone")):
            assert await host.list_tools(token, path) == 403
        assert [await host.list_tools(partner, path) for path in ("", "/v/guest")] == [["fail"], ["fail"]]
        for path in ("/v/none", "/v/", "/v/phone/", "/v/phone%2f..%2fguest", "/v/PHONE"):
            assert await host.list_tools(OWN, path) == 404
        response = await host.send(phone, "tools/call", "/v/guest", name="fail", arguments={})
        assert response.json()["error"]["message"] == "the token opens the view 'phone' only, not 'guest'"
        assert "there is no tool named 'fail'" in (await host.send(phone, "tools/call", name="fail")).text


async def test_a_session_belongs_to_one_token_and_one_view(store: TokenStore) -> None:
    ci, other, phone = await put(store, "ci"), await put(store, "other"), await put(store, "ph", view="phone")
    async with served(store) as host:
        session = await host.open_session(ci)
        in_view = await host.open_session(ci, "/v/phone")
        bound = await host.open_session(phone)
        tries = [
            (ci, "", session, 200),
            (other, "", session, 404),
            (OWN, "", session, 404),
            (ci, "/v/phone", session, 404),
            (ci, "/v/phone", in_view, 200),
            (ci, "/v/editor", in_view, 404),
            (ci, "", in_view, 404),
            (OWN, "/v/phone", in_view, 404),
            (phone, "/v/phone", bound, 200),
            (phone, "", bound, 200),
            (ci, "/v/phone", bound, 404),
        ]
        for token, path, used, status in tries:
            assert (await host.send(token, "tools/list", path, used)).status_code == status, (path, used)


async def test_a_revoked_token_loses_its_stream_its_call_and_its_session(store: TokenStore) -> None:
    token, other = await put(store, "ci"), await put(store, "other")
    async with served(store) as host:
        kept, session = await host.open_session(other), await host.open_session(token)
        headers = {"authorization": f"Bearer {token}", "accept": "text/event-stream", "mcp-session-id": session}
        async with (
            httpx2.AsyncClient(timeout=60) as second,
            second.stream("GET", host.url, headers=headers) as stream,
            anyio.create_task_group() as tasks,
        ):
            answers: list[Any] = []

            async def call(session: str) -> None:
                try:
                    answers.append(
                        (await host.send(token, "tools/call", session=session, name="hang", arguments={})).text
                    )
                except httpx2.HTTPError as exc:
                    answers.append(repr(exc))

            tasks.start_soon(call, session)
            tasks.start_soon(call, "")
            await until(lambda: host.bench.seen["hang"] == 2)
            await change(store, "ci", revoked_ms=1)
            await host.book.poll()
            assert b"".join([part async for part in stream.aiter_bytes()]).count(b"event: message") == 0
            await until(lambda: len(answers) == 2)
            await until(lambda: len(host.bench.reasons) == 2)
            assert all("cancelled" in answer for answer in answers)
        for used in ("", session):
            refused = await host.send(token, "tools/list", session=used)
            assert refused.status_code == 401
            assert "the token 'ci' was revoked at" in refused.json()["error"]["message"]
        assert (await host.send(other, "tools/list", session=kept)).status_code == 200


async def test_a_call_that_waits_for_an_answer_ends_with_its_token(store: TokenStore) -> None:
    token = await put(store, "ci")
    async with served(store) as host:
        ended: list[str] = []

        async def ask(_: JsonObject, __: ToolContext) -> ToolAnswer:
            caller = current_caller.get()
            assert caller is not None
            try:
                await caller.ask("elicitation/create", {"message": "Sure?", "requestedSchema": {"type": "object"}})
            finally:
                ended.append("ended")
            return "done"

        host.bench.add("ask", ask)
        host.box.renew()
        answer = await host.send(token, "tools/call", name="ask", arguments={})
        assert answer.json()["result"]["resultType"] == "input_required"
        assert ended == []
        await change(store, "ci", revoked_ms=1)
        await host.book.poll()
        await until(lambda: ended != [])


async def test_an_expired_token_ends_like_a_revoked_one(store: TokenStore, monkeypatch: pytest.MonkeyPatch) -> None:
    token, now = await put(store, "ci", expires_ms=2_000), [1_999]
    monkeypatch.setattr(module, "now_ms", lambda: now[0])
    async with served(store) as host:
        session = await host.open_session(token)
        headers = {"authorization": f"Bearer {token}", "accept": "text/event-stream", "mcp-session-id": session}
        async with httpx2.AsyncClient(timeout=60) as second, second.stream("GET", host.url, headers=headers) as stream:
            now[0] = 2_000
            await host.book.poll()
            async for _ in stream.aiter_bytes():
                pass
        assert "expired at" in (await host.send(token, "tools/list", session=session)).json()["error"]["message"]


async def test_a_request_whose_body_comes_after_the_end_is_refused(store: TokenStore) -> None:
    token = await put(store, "ci")
    async with served(store) as host:
        port = int(host.url.split(":")[2].split("/")[0])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        body = b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18"}}'
        head = (
            "POST /mcp HTTP/1.1",
            f"host: 127.0.0.1:{port}",
            f"authorization: Bearer {token}",
            "accept: application/json",
            "content-type: application/json",
            f"content-length: {len(body)}",
            "\r\n",
        )
        writer.write("\r\n".join(head).encode())
        await until(lambda: host.book._spending != {})
        await change(store, "ci", revoked_ms=1)
        await host.book.load()
        writer.write(body)
        assert b" 401 " in await reader.readline()
        writer.close()
        await writer.wait_closed()


async def test_a_replaced_token_ends_and_the_new_one_is_another_client(store: TokenStore) -> None:
    old = await put(store, "ci")
    async with served(store) as host:
        session = await host.open_session(old)
        new = await put(store, "ci")
        await host.book.poll()
        assert (await host.send(old, "tools/list", session=session)).status_code == 401
        assert (await host.send(new, "tools/list", session=session)).status_code == 404
        assert await host.list_tools(new) != []


async def test_a_refusal_is_noted_once_in_the_ledger(store: TokenStore) -> None:
    token, events = await put(store, "ci", revoked_ms=1), list[Any]()
    async with served(store) as host:
        host.book.write_event = events.append
        for _ in range(3):
            assert await host.list_tools(token) == 401
    assert [(event["name"], event["subject"]) for event in events] == [("ci", "refused")]
    assert token not in json.dumps(events)


async def test_a_relay_locks_principals_out_and_takes_no_token(store: TokenStore) -> None:
    token = await put(store, "ci", calls_per_day=1)
    await change(store, "alice", "principal", revoked_ms=1)
    book = TokenBook(store)
    book.takes_tokens = False
    await book.load()
    assert book.find(token, "") is None
    assert book.find_end(ClientIdentity(principal="alice", credential="principal")) != ""


async def test_next_to_access_tokens_a_token_is_a_user_of_its_own(store: TokenStore) -> None:
    first, book = await put(store, "ci", created_ms=1), TokenBook(store)
    await book.load()
    alone = book.find(first, "")
    book.has_users = True
    shared = book.find(first, "")
    second = await put(store, "ci", created_ms=2)
    await book.load()
    again = book.find(second, "")
    assert isinstance(alone, ClientIdentity)
    assert isinstance(shared, ClientIdentity)
    assert isinstance(again, ClientIdentity)
    assert (alone.user, len({alone.user, shared.user, again.user})) == ("", 3)


async def test_a_locked_principal_and_the_name_of_a_token_are_refused_to_access_tokens(store: TokenStore) -> None:
    await put(store, "ci")
    await change(store, "alice", "principal", revoked_ms=1)
    book = TokenBook(store)
    await book.load()
    clients = [ClientIdentity(principal=name, credential="principal") for name in ("alice", "ci", "bob")]
    reasons = ["'alice' is locked out of this gateway", "'ci' is the name of a token of this gateway", ""]
    assert [book.find_end(client) for client in clients] == reasons
    await change(store, "alice", "principal", revoked_ms=0)
    await book.load()
    assert book.find_end(clients[0]) == book.find_end(ClientIdentity()) == ""


async def test_a_file_that_is_removed_or_replaced_is_read_again(store: TokenStore) -> None:
    token = await put(store, "ci")
    async with served(store) as host:
        assert await host.list_tools(token) != 401
        await to_thread.run_sync(lambda: [path.unlink() for path in Path(store.path).parent.glob("tokens.db*")])
        await host.book.poll()
        assert await host.list_tools(token) == 401
        other = await put(store, "ci")
        await host.book.poll()
        assert (await host.list_tools(token), await host.list_tools(other) != 401) == (401, True)


def test_a_damaged_file_keeps_a_gateway_from_starting(store: TokenStore) -> None:
    """A new file would let everybody in whom the old one locks out."""
    put_now(store, "ci")
    store.close()
    Path(store.path).write_bytes(b"x" * 4096)

    async def serve() -> None:
        async with served(TokenStore(store.path)):
            pass

    with pytest.raises(ProtocolFault, match=r"the tokens in .* cannot be read"):
        asyncio.run(serve())


# -- budgets ----------------------------------------------------------------------------------


def act_as(name: str, credential: Any = "token") -> None:
    current_identity.set(ClientIdentity(principal=name, credential=credential))


@asynccontextmanager
async def opened(*stores: TokenStore, default: Budget | None = None) -> AsyncGenerator[list[TokenBook]]:
    """Open the books of several gateways, and write what they have used at the end."""
    books = [TokenBook(store, default) for store in stores]
    async with anyio.create_task_group() as tasks:
        for book in books:
            await book.load()
            tasks.start_soon(book.watch)
        yield books
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("limit", [1, 10, 1_000])
async def test_parallel_calls_at_two_gateways_never_exceed_a_budget(store: TokenStore, limit: int) -> None:
    await put(store, "ci", calls_per_day=limit)
    async with opened(store, TokenStore(store.path)) as books:
        act_as("ci")
        ran: list[str] = []

        async def call(book: TokenBook) -> None:
            ran.append(await book.take())

        for _ in range(max(1, limit // 32)):
            async with anyio.create_task_group() as tasks:
                for number in range(64):
                    tasks.start_soon(call, books[number % 2])
        assert ran.count("") == limit
        message = f"The budget of the token 'ci' is used up: {limit:,} call{'s' * (limit > 1)} per day, until "
        assert all(reason.startswith(message) for reason in ran if reason)


async def test_a_budget_survives_a_restart_and_gives_back_what_was_not_used(store: TokenStore) -> None:
    await put(store, "ci", calls_per_day=1_000)
    act_as("ci")
    for _ in range(2):
        async with opened(TokenStore(store.path)) as (book,):
            assert [await book.take() for _ in range(3)] == [""] * 3
    assert await to_thread.run_sync(store.grant, "token:ci", find_day(), 1_000, 1_000) == 994


async def test_a_budget_begins_again_with_the_next_day(store: TokenStore, monkeypatch: pytest.MonkeyPatch) -> None:
    await put(store, "ci", calls_per_day=1)
    act_as("ci")
    events, today = list[Any](), find_day()
    async with opened(store) as (book,):
        book.write_event = events.append
        assert await book.take() == ""
        refusals = [await book.take() for _ in range(5)]
        assert len({*refusals}) == 1
        assert [event["detail"] for event in events] == ["1 call per day"]
        monkeypatch.setattr(module, "find_day", lambda: today + 1)
        assert await book.take() == ""
        assert await book.take() != ""
    assert len(events) == 2


async def test_tokens_are_counted_over_restarts_and_gateways(store: TokenStore) -> None:
    await put(store, "ci", tokens_per_day=100)
    act_as("ci")
    call, outcome = ToolCall("1", "x", {}), ToolOutcome("1", ToolResult.text("a" * 200))

    async def run() -> ToolOutcome:
        return outcome

    async with opened(store, TokenStore(store.path)) as (one, other):
        for book in (one, other):
            assert await book.run(call, run) is outcome
            await book.poll()
        await one.poll()
        assert "100 tokens per day" in await other.take()
    async with opened(TokenStore(store.path)) as (book,):
        assert "100 tokens per day" in await book.take()
    (use,) = await to_thread.run_sync(store.list_uses)
    assert (use.calls, use.tokens) == (2, 102)


async def test_principals_have_the_budget_of_the_settings_and_the_user_has_none(store: TokenStore) -> None:
    async with opened(store, default=Budget(calls=1)) as (book,):
        for name, credential, runs in (
            ("a", "principal", 1),
            ("b", "principal", 1),
            ("", "user", 9),
            ("x", "token", 9),
        ):
            act_as(name, credential)
            assert [await book.take() for _ in range(9)].count("") == runs


async def test_a_budget_that_cannot_be_read_lets_no_call_through(
    store: TokenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await put(store, "ci", calls_per_day=5)
    act_as("ci")

    def fail(*_: object) -> int:
        raise sqlite3.OperationalError("disk I/O error")

    async with opened(store) as (book,):
        monkeypatch.setattr(store, "grant", fail)
        assert "can't be read, so the call wasn't made: disk I/O error" in await book.take()


def test_later_entries_win_in_any_order(store: TokenStore) -> None:
    entry = TokenEntry(name="ci", digest="00", changed_ms=5)
    assert store.put(entry)
    assert not store.put(replace(entry, changed_ms=4, view="old"))
    assert not store.put(replace(entry, view="same"))
    assert store.put(replace(entry, changed_ms=6, revoked_ms=6))
    assert [(one.view, one.revoked_ms) for one in store.list_entries()] == [("", 6)]
    assert TokenEntry.parse(store.list_entries()[0].to_json()) == store.list_entries()[0]
    values: list[Any] = [None, {}, {"kind": "other", "name": "x"}, {"kind": "token", "name": "x", "expires_ms": "soon"}]
    for wrong in values:
        with pytest.raises(ValueError, match=r"not an entry|invalid literal"):
            TokenEntry.parse(wrong)


def test_use_is_added_per_day_and_machine(store: TokenStore) -> None:
    use = module.TokenUse(owner="token:a", day=3, calls=1, tokens=5, first_ms=3 * DAY_MS, last_ms=3 * DAY_MS)
    assert [store.add_use(use) for _ in range(2)] == [5, 10]
    store.put_use(replace(use, node="other", tokens=7))
    assert store.add_use(use) == 22
    assert store.add_use(replace(use, day=4, tokens=1)) == 1
