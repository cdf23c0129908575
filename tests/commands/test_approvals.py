"""`indus approvals`: what a person sees and answers, and a call at a gateway that waits for it."""

from __future__ import annotations

import json
import os
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.commands.helpers import configured, row, user_file
from tests.commands.serving import serving, wait_for

from indusagi.core.time import now_ms
from induscode.commands import approvals
from induscode.commands.program import run
from induscode.gateway.approvals.store import Approval, ApprovalState, ApprovalStore

if TYPE_CHECKING:
    from collections.abc import Sequence


def add(approval_id: str, **facts: Any) -> Approval:
    times: dict[str, Any] = {"asked_ms": now_ms(), "expires_ms": now_ms() + 600_000, **facts}
    lines = ('argument "repo": "acme\\u202e"',)
    approval = Approval(id=approval_id, digest="d" * 64, tool="git__push", title="push", lines=lines, **times)
    with closing(ApprovalStore()) as store:
        store.add(approval)
    return approval


def test_a_call_is_listed_shown_and_answered_once(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(approvals, "_TAKEN_S", 0.0)
    assert run(["approvals"]) == 0
    assert "No call waits" in capsys.readouterr().out
    add("01A", principal="ada")
    add("01B", expires_ms=1)
    assert run(["approvals", "list"]) == 0
    out = capsys.readouterr().out
    assert "ada" in out
    assert "01B" not in out
    assert run(["approvals", "list", "--all", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["approvals"]) == 2
    assert run(["approvals", "show", "01a"]) == 0
    assert 'argument "repo": "acme\\u202e"' in capsys.readouterr().out
    assert run(["approvals", "approve", "01A", "--yes", "--digest", "e" * 64]) == 1
    assert run(["approvals", "approve", "01A"]) == 2  # there's no terminal to ask on
    assert run(["approvals", "approve", "01A", "--yes", "--digest", "d" * 64]) == 0
    said = capsys.readouterr()
    assert "approved, this once" in said.out
    assert "may have ended" in said.err  # no gateway holds it
    assert run(["approvals", "approve", "01A", "--yes"]) == 1
    assert run(["approvals", "deny", "01A"]) == 1
    assert "waits no longer: approved" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["show", "01"], ["approve", "x"], ["deny", ""]])
def test_an_unknown_or_ambiguous_id_is_an_error(words: Sequence[str], capsys: pytest.CaptureFixture[str]) -> None:
    add("01A")
    add("01B")
    assert run(["approvals", *words]) == 2
    assert "indus approvals list" in capsys.readouterr().err


def test_an_expired_call_cannot_be_approved(capsys: pytest.CaptureFixture[str]) -> None:
    add("01A", expires_ms=1)
    assert run(["approvals", "approve", "01A", "--yes"]) == 1
    assert "waits no longer: expired" in capsys.readouterr().err


@pytest.mark.parametrize(("state", "code"), [(ApprovalState.USED, 0), (ApprovalState.REFUSED, 1)])
def test_who_approves_hears_whether_the_call_ran(
    state: ApprovalState, code: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    add("01A")

    def sleep(_: float) -> None:
        end("01A", state)

    monkeypatch.setattr(approvals, "sleep", sleep)
    assert run(["approvals", "approve", "01A", "--yes"]) == code
    assert ("it didn't run" in capsys.readouterr().err) is bool(code)


def end(approval_id: str, state: ApprovalState) -> None:
    with closing(ApprovalStore()) as store:
        store.end(approval_id, state)


@pytest.mark.process
def test_a_call_at_a_gateway_waits_for_the_command_and_the_ledger_has_every_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    configured(user_file(), {"honest": row()})
    rules = tmp_path / ".indusvx" / "permissions.json"
    rules.parent.mkdir()
    rules.write_text(json.dumps({"ask": ["honest__echo(text=*)"]}), "utf-8")
    notified = tmp_path / "notified"
    settings = Path(os.environ["HOME"]) / ".config" / "indus" / "settings.json"
    settings.parent.mkdir(parents=True, exist_ok=True)
    settings.write_text(json.dumps({"approvals.notify": ["sh", "-c", f"cat > {notified}"]}), "utf-8")
    with serving("--profile", "none", cwd=tmp_path) as gateway:
        gateway.greet()
        gateway.tools()
        meta = {"progressToken": 1}
        waiting = gateway.send("tools/call", name="honest__echo", arguments={"text": "hi"}, _meta=meta)
        wait_for(lambda: notified.exists() and bool(notified.read_text("utf-8")))
        approval = json.loads(notified.read_text("utf-8"))
        assert "arguments" not in approval
        assert run(["approvals", "approve", approval["approval"], "--yes"]) == 0
        assert gateway.answer(waiting)["result"]["content"][0]["text"] == "hi"
        assert any(frame["method"] == "notifications/progress" for frame in gateway.heard)
        cancelled = gateway.send("tools/call", name="honest__echo", arguments={"text": "no"})
        wait_for(lambda: json.loads(notified.read_text("utf-8") or "{}").get("approval") != approval["approval"])
        gateway.write({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": cancelled}})
        capsys.readouterr()

        def read_states() -> list[str]:
            run(["approvals", "list", "--all", "--json"])
            return [one["state"] for one in json.loads(capsys.readouterr().out)["approvals"]]

        wait_for(lambda: read_states() == ["withdrawn", "used"])
    assert run(["ledger", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    steps = [row["facts"]["subject"] for row in rows if row["event"] == "approval"]
    assert steps == ["asked", "approved", "used", "asked", "withdrawn"]
    assert run(["calls", "--json"]) == 0
    assert f"(approval {approval['approval']})" in capsys.readouterr().out


@pytest.mark.process
def test_a_server_that_is_replaced_meanwhile_spoils_the_yes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    configured(user_file(), {"honest": row()})
    (tmp_path / ".indusvx").mkdir()
    (tmp_path / ".indusvx" / "permissions.json").write_text(json.dumps({"ask": ["honest__*"]}), "utf-8")
    with serving("--profile", "none", "--approvals", "ask", cwd=tmp_path) as gateway:
        gateway.greet()
        gateway.tools()
        waiting = gateway.send("tools/call", name="honest__echo", arguments={"text": "hi"})
        wait_for(lambda: "indus approvals show" in gateway.said())
        configured(user_file(), {"honest": row(env={"OTHER": "1"})})
        wait_for(lambda: "replaced honest" in gateway.said())
        asked = gateway.said().partition("indus approvals show ")[2].split()[0]
        run(["approvals", "approve", asked, "--yes"])
        assert "has changed since: try again" in gateway.answer(waiting)["result"]["content"][0]["text"]
