"""`indus tokens`: tokens by name for a gateway, their use, and how they end."""

from __future__ import annotations

import json
import re
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.commands.serving import hello, serving, wait_for
from tests.support.scripts import run
from tests.support.waiting import LIMIT_S

from induscode.gateway.tokens import TokenStore, is_token

pytestmark = pytest.mark.process


def test_a_token_is_created_listed_used_and_revoked(tmp_path: Path) -> None:
    created = run("tokens", "create", "ci", "--calls-per-day", "2", "--expires", "30d", cwd=tmp_path)
    token = created.stdout.strip()
    assert is_token(token)
    with serving("--http", "127.0.0.1:0", cwd=tmp_path) as gateway:
        wait_for(lambda: "native tools" in gateway.said())
        found = re.search(r"serving at (\S+)", gateway.said())
        assert found is not None
        url, headers = found[1], {"accept": "application/json, text/event-stream", "authorization": f"Bearer {token}"}
        with httpx2.Client(headers=headers, timeout=LIMIT_S) as client:
            session = client.post(url, json=hello()).headers["mcp-session-id"]
            client.headers["mcp-session-id"] = session

            def call() -> Any:
                params = {"name": "ls", "arguments": {"path": str(tmp_path)}}
                frame = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
                return client.post(url, json=frame).json()["result"]

            assert [call()["isError"] for _ in range(3)] == [False, False, True]
            assert "The budget of the token 'ci' is used up: 2 calls per day" in call()["content"][0]["text"]
            with client.stream("GET", url) as stream:
                assert run("tokens", "revoke", "ci", cwd=tmp_path).stdout == "ci: revoked\n"
                for _ in stream.iter_bytes():
                    pass
            refused = client.post(url, json=hello())
            assert refused.status_code == 401
            assert "'ci' was revoked at" in refused.text
        assert token not in gateway.said()
    (row,) = json.loads(run("tokens", "list", "--json", cwd=tmp_path).stdout)["tokens"]
    assert (row["state"], row["calls_today"], row["client"], row["address"]) == ("revoked", 2, "test 1", "127.0.0.1")
    assert "digest" not in row
    said = run("tokens", "audit", "ci", "--json", cwd=tmp_path).stdout
    audit = json.loads(said)
    events = [event["event"] for event in audit["events"]]
    assert sorted(events) == ["budget", "connected", "created", "first used", "last used", "refused", "revoked"]
    assert (events[0], audit["calls"][0]["calls"]) == ("created", 2)
    for text in (said, run("ledger", "export", cwd=tmp_path).stdout, run("tokens", cwd=tmp_path).stdout):
        assert token not in text


def test_a_principal_is_locked_out_and_let_in_again(tmp_path: Path) -> None:
    assert run("tokens", "lock", "alice", cwd=tmp_path).stdout == "alice: locked out\n"
    assert "locked out" in run("tokens", cwd=tmp_path).stdout
    assert run("tokens", "unlock", "alice", cwd=tmp_path).stdout == "alice: may sign in again\n"
    assert run("tokens", cwd=tmp_path).stdout == "No tokens yet. Try: indus tokens create NAME\n"
    assert "'alice' isn't locked out" in run("tokens", "unlock", "alice", cwd=tmp_path).stderr


def test_a_rotated_token_keeps_its_limits(tmp_path: Path) -> None:
    first = run(
        "tokens", "create", "ci", "--rate", "3", "--scopes", "indus:call:github,indus:list", cwd=tmp_path
    ).stdout
    second = run("tokens", "rotate", "ci", cwd=tmp_path).stdout
    assert first != second
    with closing(TokenStore()) as store:
        (entry,) = store.list_entries()
    assert (entry.rate, entry.scopes) == (3.0, ("indus:call:github", "indus:list"))


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["create", "a b"], "use letters, digits"),
        (["create", "x", "--view", "phone"], "there is no such view; the setting serve.views has none"),
        (["create", "x", "--scopes", "call"], "there is no such scope; use indus:list"),
        (["create", "x", "--scopes", ""], "there is no such scope"),
        (["create", "x", "--expires", "soon"], "write 30min, 12h or 30d"),
        (["create", "x", "--expires", "0d"], "write 30min, 12h or 30d"),
        (["create", "x", "--calls-per-day", "0"], "not in the range"),
        (["create", "ci"], "There is a token 'ci' already"),
        (["revoke", "cii"], "Did you mean 'ci'?"),
        (["rotate", "old"], "was revoked at"),
    ],
)
def test_a_mistake_is_named_with_its_remedy(tmp_path: Path, words: list[str], reason: str) -> None:
    run("tokens", "create", "ci", cwd=tmp_path)
    run("tokens", "create", "old", cwd=tmp_path)
    run("tokens", "revoke", "old", cwd=tmp_path)
    done = run("tokens", *words, cwd=tmp_path)
    assert (done.returncode, reason in " ".join(done.stderr.split())) == (2, True)
