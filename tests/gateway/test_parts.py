"""Parts of a gateway in memory: its lists of content, the sign-in of the page, and what a cluster shares."""

from __future__ import annotations

import asyncio
import errno
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from anyio import to_thread

from indusagi.core.tasks import Listeners
from indusagi.interop.auth.contract import AuthFault
from indusagi.interop.protocol_bridge.contract import RemoteToolRef
from indusagi.interop.protocol_bridge.rpc.connection import RpcError
from indusagi.runtime.contract import ToolDescriptor
from induscode.deck.contract import BridgeFault
from induscode.deck.mcp.capability import BridgeCapability
from induscode.gateway import run, sharing
from induscode.gateway import sign_in as sign_in_module
from induscode.gateway.content import GatewayContent
from induscode.gateway.page import source as page
from induscode.gateway.page.source import ActionReply, SignInStart
from induscode.gateway.sharing import GatewaySharing
from induscode.gateway.status_lines import StatusLines

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence
    from pathlib import Path

    from indusagi.interop.protocol_bridge.contract import ItemKind

pytestmark = pytest.mark.anyio


def prompt(server: str, name: str) -> BridgeCapability:
    descriptor = ToolDescriptor(f"{server}__{name}", "", {"type": "object"})
    return BridgeCapability.from_definition(descriptor, RemoteToolRef(server, name, "prompt"), {"name": name})


def open_content(*items: BridgeCapability, **options: bool) -> GatewayContent:
    """Open the content of a gateway whose servers offer these items, in the order of the configuration."""
    servers = [*dict.fromkeys(item.ref.server for item in items)]

    def list_items(kind: ItemKind) -> Sequence[BridgeCapability]:
        return [item for item in items if item.ref.kind == kind]

    content = GatewayContent(**options)
    endpoints = [
        SimpleNamespace(config=SimpleNamespace(id=server), known_items=dict[str, Any]().get) for server in servers
    ]
    fleet = SimpleNamespace(endpoints=lambda: endpoints, users=None, name_session=str)
    enrolment = SimpleNamespace(disabled=[], list_servers=lambda: servers)
    bridge = cast("Any", SimpleNamespace(fleet=fleet, enrolment=enrolment))
    content.open(bridge, cast("Any", SimpleNamespace(list_items=list_items)), lambda server: server == "ourselves")
    return content


def test_a_second_item_of_a_name_is_left_out_and_the_others_stay() -> None:
    content = open_content(prompt("a__b", "c"), prompt("a", "b__c"), prompt("ourselves", "x"), prompt("z", "last"))
    known = content.known_items("prompt")
    assert [*known.refs] == ["a__b__c", "z__last"]
    assert known.refs["a__b__c"] == RemoteToolRef("a__b", "c", "prompt")
    assert [row["name"] for row in known.rows] == ["a__b__c", "z__last"]
    assert (content.refresh(), content.known_items("tool").rows) == ([], ())


def test_plain_names_belong_to_the_first_server_and_others_keep_their_prefix() -> None:
    content = open_content(prompt("one", "hi"), prompt("two", "hi"), prompt("two", "bye"), plain_names=True)
    assert content.known_items("prompt").refs == {
        "hi": RemoteToolRef("one", "hi", "prompt"),
        "two__hi": RemoteToolRef("two", "hi", "prompt"),
        "bye": RemoteToolRef("two", "bye", "prompt"),
    }


def offered(server: str, name: str, kind: ItemKind) -> BridgeCapability:
    descriptor = ToolDescriptor(f"{server}__{name}", "", {"type": "object"})
    return BridgeCapability.from_definition(descriptor, RemoteToolRef(server, name, kind), {"name": name})


def test_an_address_that_is_not_listed_belongs_to_the_server_of_its_template_or_to_the_only_one() -> None:
    book, note = offered("one", "book://{id}", "template"), offered("two", "note:1", "resource")
    content = open_content(book, note, plain_names=True)
    assert content._find_resource("note:1") == ("two", "note:1")
    assert content._find_resource("book://7") == ("one", "book://7")
    with pytest.raises(RpcError):
        content._find_resource("other:1")
    # Prompts are not read by an address: their server does not count.
    only = open_content(note, prompt("one", "hi"), plain_names=True)
    assert only._find_resource("other:1") == ("two", "other:1")
    with pytest.raises(RpcError):
        open_content(note)._find_resource("other:1")


async def test_the_page_shows_where_to_sign_in_and_waits_for_the_redirect(monkeypatch: pytest.MonkeyPatch) -> None:
    class Listener:
        redirect_uri = "http://127.0.0.1:1/callback"

        def __init__(self, show: Any) -> None:
            self.show = show

        async def authorize(self, url: str) -> dict[str, str]:
            await self.show(url)
            return {"code": "c1"}

    @asynccontextmanager
    async def listen(settings: object, registered: object, show: Any) -> AsyncGenerator[Listener]:
        yield Listener(show)

    monkeypatch.setattr(sign_in_module, "listen_for_redirect", listen)
    started = SignInStart()
    async with sign_in_module.PagePrompt("s", started.show).open_redirect(cast("Any", None), ()) as redirect:
        assert redirect.redirect_uri == "http://127.0.0.1:1/callback"
        url = "https://issuer.example/authorize?state=s1"
        assert await redirect.authorize(url) == {"code": "c1"}
    assert (started.url, started.known.is_set()) == (url, True)


@pytest.mark.parametrize("complete", ["https://issuer.example/device?code=X", None])
async def test_the_page_shows_where_a_code_is_entered(complete: str | None) -> None:
    started = SignInStart()
    address = "https://issuer.example/device"
    code = SimpleNamespace(verification_uri=address, verification_uri_complete=complete, user_code="X")
    await sign_in_module.PagePrompt("s", started.show).show_device_code(cast("Any", code))
    assert started.url == (complete or "https://issuer.example/device")


class SharedParts:
    """What a cluster shares, in memory."""

    def __init__(self, folder: Path, **rows: dict[str, dict[str, Any]]) -> None:
        self.shared, self.rows = 0, rows
        self.path = folder / "cluster" / "one.json"
        settings = SimpleNamespace(key=object(), node="one")
        node = SimpleNamespace(broker=SimpleNamespace(settings=settings), info=SimpleNamespace(node="one"))
        self.state: Any = SimpleNamespace(
            node=node, table=SimpleNamespace(list=self.list_rows), share_pins=self.share_pins, on_tokens=Listeners[[]]()
        )
        self.invocation: Any = SimpleNamespace(cluster_config=str(self.path), cwd=str(folder))

    def list_rows(self, kind: str) -> dict[str, dict[str, Any]]:
        return self.rows.get(kind, {})

    def share_pins(self) -> None:
        self.shared += 1


async def test_what_other_nodes_share_is_applied_also_if_its_file_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    changed: list[object] = []
    monkeypatch.setattr(sharing, "print_status", said.append)

    def ignore(*_: object) -> None:
        pass

    def limit(base: object) -> object:
        return (base, "limited")

    monkeypatch.setattr(sharing, "CallPublisher", ignore)
    monkeypatch.setattr(sharing, "SharedTrust", ignore)
    parts = SharedParts(tmp_path, server={"1": {"name": "b", "row": {"command": "x"}}, "2": {"name": 1, "row": {}}})
    ours = await to_thread.run_sync(GatewaySharing, parts.state, parts.invocation)
    gateway: Any = SimpleNamespace(change_checks=changed.append)
    monkeypatch.setattr(ours, "limit_checks", limit)
    ours._base = cast("Any", "checks")
    await ours._apply(gateway)
    assert (changed, parts.shared, said) == ([("checks", "limited")], 1, [])
    assert await to_thread.run_sync(parts.path.read_text) == '{"mcpServers":{"b":{"command":"x"}},"consents":[]}'

    def fail(*_: object) -> None:
        raise PermissionError(13, "read-only")

    monkeypatch.setattr(sharing, "make_private_dir", fail)
    await ours._apply(gateway)
    assert (len(changed), parts.shared) == (2, 2)
    assert said == ["the servers of the cluster cannot be written: [Errno 13] read-only"]


@pytest.mark.parametrize("is_writable", [True, False])
async def test_a_node_starts_only_if_the_servers_of_the_cluster_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_writable: bool
) -> None:
    said: list[str] = []
    info = SimpleNamespace(node="one")
    parts = SharedParts(tmp_path)
    members = SimpleNamespace(list_nodes=lambda: [info, SimpleNamespace(node="two")])
    node = SimpleNamespace(info=info, membership=members, open_session=None, on_note=Listeners[[str]]())

    @asynccontextmanager
    async def open_part(*_: object, **__: object) -> AsyncGenerator[Any]:
        yield node

    async def open_shared(_: object) -> Any:
        return parts.state

    class Sharing:
        trust = None

        def __init__(self, *_: object) -> None:
            self.calls = SimpleNamespace(close=self.close)
            self.tokens = SimpleNamespace(store=SimpleNamespace(close=list))

        async def close(self) -> None:
            said.append("closed")

        def write_servers(self) -> None:
            if not is_writable:
                raise PermissionError(13, "read-only")
            raise KeyError("written")

    monkeypatch.setattr(sharing, "open_node", open_part)
    monkeypatch.setattr(sharing, "open_sessions", open_part)
    monkeypatch.setattr(sharing, "open_shared_state", open_shared)
    monkeypatch.setattr(sharing, "GatewaySharing", Sharing)
    monkeypatch.setattr(sharing, "print_status", said.append)
    context: Any = SimpleNamespace(invocation=None, options=SimpleNamespace(cluster=object()))
    if is_writable:
        with pytest.raises(KeyError):
            await run._run_gateway(context)
    else:
        assert await run._run_gateway(context) == 1
        assert said[1] == "the servers and tokens of the cluster cannot be written: [Errno 13] read-only"
    assert (said[0], said[-1]) == ("node 'one' of a cluster, with two", "closed")


@pytest.mark.parametrize(
    ("auth", "token", "said"),
    [
        ("https://issuer", {}, "clients need an access token of https://issuer"),
        (None, {"token_path": None}, "no token is asked: every program of this machine can call these tools"),
        (None, {"token_is_new": True}, "token (shown once; it is kept in /t): secret"),
        (None, {"token_is_new": False}, "token: in /t"),
    ],
)
def test_a_client_is_told_what_lets_it_in(
    auth: str | None, token: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    monkeypatch.setattr(run, "print_status", lines.append)
    settings = SimpleNamespace(auth=None if auth is None else SimpleNamespace(issuer=auth), host="127.0.0.1")
    serving = SimpleNamespace(**{"token_path": "/t", "token_is_new": False, "token": "secret", **token})
    run._announce_access(cast("Any", settings), cast("Any", serving))
    assert lines == [said]


@pytest.mark.parametrize(
    ("cause", "is_ui", "said"),
    [
        (OSError(98, "in use"), False, " (choose another port: --http PORT, 0 for a free one)"),
        (OSError(98, "in use"), True, " (choose another port: --port N, 0 for a free one)"),
        (OSError(13, "no"), False, ""),
        (ValueError("no"), False, ""),
        (None, False, ""),
    ],
)
def test_another_port_is_advised_if_this_one_is_taken(cause: Any, is_ui: bool, said: str) -> None:
    if isinstance(cause, OSError) and cause.errno == 98:
        cause.errno = errno.EADDRINUSE
    assert run._find_port_remedy(cause, cast("Any", SimpleNamespace(is_ui=is_ui))) == said


async def test_a_sign_in_at_the_page_gives_an_address_a_problem_or_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    woken: list[Sequence[str]] = []
    ended: list[str] = []
    outcome: str = "address"

    async def sign_in(_: object, prompt: sign_in_module.PagePrompt) -> None:
        if outcome == "problem":
            raise AuthFault("the issuer says no")
        if outcome in {"address", "waits"}:
            address = "https://issuer.example/authorize"
            code = SimpleNamespace(verification_uri=address, verification_uri_complete=None, user_code="X")
            await prompt.show_device_code(cast("Any", code))
        if outcome == "waits":
            try:
                await asyncio.Event().wait()
            finally:
                for _ in range(5):
                    await asyncio.sleep(0)
                ended.append("one")

    async def wake(servers: Sequence[str]) -> None:
        woken.append(servers)

    monkeypatch.setattr(page, "sign_in_to_server", sign_in)
    gateway = SimpleNamespace(
        sign_ins=SimpleNamespace(is_personal=True),
        plan=SimpleNamespace(configs={"one": None}),
        session=SimpleNamespace(mcp=SimpleNamespace(wake=wake)),
        node=None,
        approvals=None,
        user_sign_ins=None,
    )
    ours = page.GatewayPage(cast("Any", gateway))
    assert (await ours._sign_in("one")).url == "https://issuer.example/authorize"
    outcome = "done"
    assert await ours._sign_in("one") == ActionReply("one: signed in")
    outcome = "problem"
    with pytest.raises(BridgeFault, match="not signed in to 'one': the issuer says no"):
        await ours._sign_in("one")
    assert ["one"] in woken
    outcome = "waits"
    await ours._sign_in("one")
    gateway.sign_ins.is_personal = False
    with pytest.raises(BridgeFault, match="sign in on the machine of the gateway: indus mcp login one"):
        await ours._sign_in("one")

    async def close_index() -> None:
        ended.append("index")

    monkeypatch.setattr(ours._index, "aclose", close_index)
    await ours.aclose()
    assert ended == ["one", "index"]


@pytest.mark.parametrize(("is_terminal", "printed"), [(True, ["1 starting", "1 ready"]), (False, ["1 starting"])])
def test_counts_are_printed_again_only_on_a_terminal_and_only_if_they_changed(
    is_terminal: bool, printed: Sequence[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: is_terminal)
    lines = StatusLines()
    for counts in ("1 starting", "1 starting", "1 ready", "1 ready"):
        lines.print_counts(counts)
    shown = capsys.readouterr().err
    assert [word for word in ("1 starting", "1 ready") for _ in range(shown.count(word))] == printed
