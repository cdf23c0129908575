"""`/mcp` in memory: its table, what each action does to which server, and what it refuses."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from tests.support.deck import capability

from indusagi.core.faults import Note
from indusagi.interop.protocol_bridge.contract import (
    EndpointPhase,
    EndpointStatus,
    FaultDetail,
    ProtocolFault,
    RemoteToolRef,
    StdioServerConfig,
)
from induscode.deck.mcp.drift import DisabledTool, DriftGrade
from induscode.frontends.terminal.slash import SlashError
from induscode.frontends.terminal.slash import mcp as module
from induscode.frontends.terminal.slash.mcp import MCP
from induscode.servers.config.rows import Origin, ServerRow

if TYPE_CHECKING:
    from collections.abc import Sequence

    from induscode.deck.mcp.capability import BridgeCapability
    from induscode.deck.mcp.review import Finding

pytestmark = pytest.mark.anyio
READY, CLOSED = EndpointPhase.READY, EndpointPhase.CLOSED
GONE = ProtocolFault("spawn_failed", "server 'bad': it was\n not found", detail=FaultDetail(reason="not_found"))


@dataclass
class Stage:
    """A session with servers in memory."""

    states: dict[str, str] = field(default_factory=lambda: {"good": "startable", "bad": "startable"})
    statuses: dict[str, EndpointStatus] = field(default_factory=dict[str, EndpointStatus])
    off_in_file: Sequence[str] = ()
    capabilities: Sequence[BridgeCapability] = ()
    disabled: Sequence[DisabledTool] = ()
    notes: Sequence[Note] = ()
    holders: Sequence[str] = ()
    log: Sequence[str] = ()
    shown: list[str] = field(default_factory=list[str])
    rows: list[tuple[str, ...]] = field(default_factory=list[tuple[str, ...]])
    did: list[str] = field(default_factory=list[str])
    switched_off: set[str] = field(default_factory=set[str])
    switched_on: set[str] = field(default_factory=set[str])
    no_mcp: bool = False

    def __post_init__(self) -> None:
        origin = Origin(file="/f.json", scope="user", dialect="indus")
        self.server_rows = [ServerRow(StdioServerConfig(name, "run-it", []), origin) for name in self.states]
        for name in self.states:
            self.statuses.setdefault(name, EndpointStatus(name, READY, 2, answer_s=0.0123, restarts=1))

    async def run(self, rest: str) -> list[str]:
        """Run an action; return what it has shown."""
        self.shown.clear()
        plan = SimpleNamespace(
            rows=self.server_rows, state_of=self.state_of, notes=self.notes,
            configs={row.id: row.config for row in self.server_rows},
        )  # fmt: skip
        fleet = SimpleNamespace(
            restart=self.restart, wake=self.wake, stop=self.stop, read_log=self.read_log,
            leases=SimpleNamespace(find_holders=self.find_holders),
        )  # fmt: skip
        mcp = SimpleNamespace(
            plan=plan, status=lambda: self.statuses, status_of=self.statuses.get,
            require_status=self.statuses.__getitem__, capabilities=self.capabilities,
            disabled=self.disabled, fleet=fleet,
            enrolment=SimpleNamespace(notes=self.notes, list_findings=self.list_findings),
        )  # fmt: skip
        servers = SimpleNamespace(
            plan=plan, mcp=mcp, switched_off=self.switched_off, switched_on=self.switched_on,
            phases=SimpleNamespace(get_age=self.get_age, awaited=()), find_held_back=self.find_held_back,
            apply_plan=self.apply_plan, read_plan=self.read_plan,
        )  # fmt: skip
        conversation = SimpleNamespace(servers=servers, invocation=self)
        host = SimpleNamespace(
            screen=SimpleNamespace(show=self.shown.append, can_mark=False),
            conversation=conversation,
            print_table=self.print_table,
        )
        await MCP.run(cast("Any", host), rest)
        return [*self.shown]

    def state_of(self, row: ServerRow) -> str:
        return self.states[row.id]

    def print_table(self, heads: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
        self.rows = [heads, *rows]

    def get_age(self, name: str) -> float | None:
        return 61.0 if name == "good" else None

    def find_held_back(self, _: object) -> list[ServerRow]:
        return []

    def list_findings(self, _: str) -> Sequence[Finding]:
        return []

    def find_holders(self, _: str) -> Sequence[str]:
        return self.holders

    def read_log(self, name: str) -> Sequence[str]:
        if name == "bad":
            raise GONE
        return self.log

    async def restart(self, name: str) -> None:
        self.did.append(f"restart {name}")

    async def wake(self, name: str) -> None:
        self.did.append(f"wake {name}")

    async def stop(self, name: str) -> None:
        self.did.append(f"stop {name}")

    async def apply_plan(self, _: object) -> list[str]:
        self.did.append("apply")
        return ["then indus mcp trust x"]

    async def read_plan(self) -> None:
        self.did.append("read")


@pytest.fixture(autouse=True)
def off(monkeypatch: pytest.MonkeyPatch) -> None:
    def find(stage: Stage) -> list[Any]:
        return [SimpleNamespace(name=name, file="/off.json") for name in stage.off_in_file]

    monkeypatch.setattr(module, "find_switched_off", find)


async def test_the_table_of_servers_is_shown_with_problems_and_remedies() -> None:
    states = {"good": "startable", "bad": "startable", "new": "untrusted", "unset": "unresolved", "out": "startable"}
    ref = RemoteToolRef("good", "old")
    stage = Stage(
        states,
        {"bad": EndpointStatus("bad", EndpointPhase.FAULTED, 0, GONE, next_try_s=7.4)},
        off_in_file=["filed", "good"],
        capabilities=[capability("good", "look"), capability("bad", "look")],
        disabled=[DisabledTool(one, "n", DriftGrade.ROUTING) for one in (ref, replace(ref, server="x"))],
        notes=[Note("server 'unset' of /f.json", "the variable KEY is not set")],
        switched_off={"out"},
    )  # fmt: skip
    shown = await stage.run("")
    tokens = stage.rows[1][5]
    assert int(tokens) > 1
    assert stage.rows == [
        ("NAME", "VIA", "STATE", "SINCE", "TOOLS", "TOKENS", "ANSWER", "RESTARTS"),
        ("good", "stdio", "ready", stage.rows[1][3], "1 of 2", tokens, "12 ms", "1"),
        ("bad", "stdio", "failed", "-", "1 of 1", tokens, "-", "0"),
        ("new", "stdio", "not trusted", "-", "-", "-", "-", "-"),
        ("unset", "stdio", "failed", "-", "-", "-", "-", "-"),
        ("out", "stdio", "off", "-", "-", "-", "-", "-"),
        ("filed", "-", "off", "-", "-", "-", "-", "-"),
    ]
    assert shown == [
        "good: 1 tool is disabled, changed since approved: old", "  Fix: /mcp approve good",
        "bad: it was not found (next try in 7 s)",
        "  Fix: install the command, or correct it: indus mcp get bad",
        "new: it isn't trusted yet", "  Fix: /mcp trust new",
        "unset: the variable KEY is not set", "  Fix: set the variable, then /mcp reload",
        "out: switched off for this session", "  Fix: /mcp enable out",
        "filed: switched off in /off.json", "  Fix: /mcp enable filed",
    ]  # fmt: skip
    assert (await Stage({}).run("list"))[0].startswith("no servers are configured")


async def test_servers_are_started_and_stopped() -> None:
    stage = Stage()
    assert await stage.run("restart good") == ["✓ good: 2 tools"]
    assert (await stage.run("disconnect good"))[0].startswith("server 'good' is disconnected; calls of its tools fail")
    with pytest.raises(SlashError, match="server 'good' is connected"):
        await stage.run("connect good")
    faulted, idle = EndpointPhase.FAULTED, EndpointPhase.IDLE
    for phase, start, word in (
        (CLOSED, "restart", "○ good: off"),
        (faulted, "restart", "✗ good: failed"),
        (idle, "wake", "✓ good: 1 tool"),
    ):
        stage.did.clear()
        stage.statuses["good"] = EndpointStatus("good", phase, 1)
        assert await stage.run("connect good") == [word]
        assert stage.did == [f"{start} good"]
        if phase is not EndpointPhase.FAULTED:
            with pytest.raises(SlashError, match="server 'good' is not connected"):
                await stage.run("disconnect good")
    stage.statuses["bad"] = EndpointStatus("bad", EndpointPhase.FAULTED, 0, GONE)
    assert await stage.run("restart bad") == [
        "✗ bad: it was not found",
        "  Fix: install the command, or correct it: indus mcp get bad",
    ]


async def test_a_server_in_use_or_without_consent_is_not_touched() -> None:
    stage = Stage({"good": "startable", "new": "untrusted"}, holders=["explore", "general"], switched_off={"new"})
    for action in ("restart good", "disconnect good"):
        with pytest.raises(SlashError, match="is used by explore, general: wait for its end"):
            await stage.run(action)
    with pytest.raises(SlashError, match="server 'new' is switched off for this session: /mcp enable new"):
        await stage.run("connect new")
    stage.switched_off.clear()
    with pytest.raises(SlashError, match=r"server 'new' is not started: it isn't trusted yet \(/mcp trust new\)"):
        await stage.run("connect new")
    stage.off_in_file = ["filed"]
    with pytest.raises(SlashError, match="server 'filed' is switched off in its file: /mcp enable filed"):
        await stage.run("connect filed")
    assert stage.did == []


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("odd", "/mcp has no action 'odd'; there are: list, connect"),
        ("list x", "what is 'x' for"),
        ("connect", "name the server: good, bad"),
        ("connect good bad", "what is 'bad' for"),
        ("connect goof", "good"),
        ("reload x", "what is 'x' for"),
        ("approve good a b", "what is 'b' for"),
        ("enable good", "server 'good' is switched on already"),
    ],
)
async def test_words_that_mean_nothing_are_refused(line: str, said: str) -> None:
    with pytest.raises(SlashError, match=said):
        await Stage().run(line)
    with pytest.raises(SlashError, match="there are no servers"):
        await Stage({}).run("connect")


async def test_servers_are_switched_off_and_on_for_the_session() -> None:
    stage = Stage(off_in_file=["filed"])
    assert await stage.run("disable good") == [
        "server 'good' is switched off for this session; --save writes it to its file",
        "then /mcp trust x",
    ]
    assert stage.switched_off == {"good"}
    with pytest.raises(SlashError, match="server 'good' is switched off already"):
        await stage.run("disable good")
    assert (await stage.run("enable good"))[0].startswith("server 'good' is switched on for this session")
    assert (stage.switched_off, stage.switched_on, stage.did) == (set[str](), set[str](), ["apply"] * 2)
    await stage.run("enable filed")
    assert (stage.switched_on, stage.did[2:]) == ({"filed"}, ["read", "apply"])


async def test_tools_and_logs_of_a_server_are_shown() -> None:
    ref = RemoteToolRef("good", "old")
    stage = Stage(
        capabilities=[capability("good", "look", description="Look.\nMore."), capability("bad", "look")],
        disabled=[DisabledTool(ref, "good__old", DriftGrade.ROUTING)],
        notes=[
            Note("server 'good', tool 'odd'", "left out: its schema"),
            Note("server 'good', tool 'two'", "renamed"),
            Note("server 'bad', tool 'x'", "left out: its name"),
        ],
        log=["stderr: one", "stderr: two"],
    )
    assert await stage.run("tools good") == ["'odd': left out: its schema"]
    assert [row[0] for row in stage.rows] == ["NAME", "good__look", "good__old"]
    assert (stage.rows[1][2], stage.rows[2][1]) == ("Look.", "-")
    assert stage.rows[2][2].endswith(": /mcp approve good old")
    assert await stage.run("logs good") == ["stderr: one", "stderr: two"]
    assert (await stage.run("logs bad"))[0].startswith("server 'bad' has written nothing in this session")
    stage.capabilities, stage.disabled = (), ()
    assert (await stage.run("tools good"))[-1].startswith("no tool of server 'good' is known")
