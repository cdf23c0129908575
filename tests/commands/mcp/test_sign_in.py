"""`indus mcp login`, `logout` and `auth`, and what other commands say about a server that needs a sign-in."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
from tests.commands.helpers import configured, project_file, row, servers_of, user_file
from tests.support.authlib_server import AuthlibServer
from tests.support.protected_server import site_in_thread

from induscode.commands.mcp import configure
from induscode.commands.program import run
from induscode.servers import sign_in as prompts

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.protected_server import Site


@pytest.fixture(scope="module")
def shared_site() -> Iterator[Site]:
    with site_in_thread() as site:
        yield site


@pytest.fixture
def site(shared_site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """Add the server to the user's file, with a person whose browser signs in at once."""
    issuer = shared_site.issuer
    issuer.requests.clear()
    issuer.tokens.clear()
    monkeypatch.chdir(tmp_path)
    configured(user_file(), {"demo": {"type": "http", "url": shared_site.server.url}})

    def browse(url: str) -> bool:
        with httpx2.Client() as browser:
            answer = browser.post(url, data={"allow": "yes"})
            assert "You may close this page" in browser.get(answer.headers["location"]).text
        return True

    monkeypatch.setattr(prompts, "open_browser", browse)
    return shared_site


def test_a_person_signs_in_and_out(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["mcp", "login", "demo"]) == 0
    out, err = capsys.readouterr()
    assert "Signed in to 'demo', stored in" in out
    assert "Server 'demo': ready, 1 tool" in out
    assert err.count("stored as plain text") == 1
    assert run(["mcp", "auth", "--json"]) == 0
    (facts,) = json.loads(capsys.readouterr().out)["servers"]
    assert facts["state"] == "signed in"
    assert facts["scopes"] == ["read", "offline_access"]
    assert run(["mcp", "auth"]) == 0
    table = capsys.readouterr().out
    assert "in 59 min, refreshed" in table
    assert run(["mcp", "list"]) == 0
    assert "ready" in capsys.readouterr().out
    assert run(["call", "demo__whoami"]) == 0
    assert capsys.readouterr().out == "ada@example.org\n"
    secrets = [secret for token in site.issuer.tokens for secret in (token.access, token.refresh) if secret]
    assert not any(secret in out + err + table for secret in secrets)
    assert run(["mcp", "logout", "demo"]) == 0
    assert capsys.readouterr().out == "Signed out of 'demo'\n"
    assert all(token.is_revoked for token in site.issuer.tokens)
    assert run(["mcp", "logout", "demo"]) == 0
    assert capsys.readouterr().out == "There is no sign-in to 'demo'\n"


def test_the_sign_in_of_a_removed_server_is_listed_and_ended_by_its_url(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["mcp", "login", "demo"]) == 0
    assert run(["mcp", "remove", "demo"]) == 0
    capsys.readouterr()
    assert run(["mcp", "auth", "--json"]) == 0
    (facts,) = json.loads(capsys.readouterr().out)["servers"]
    assert facts["name"] == site.server.url
    assert facts["state"] == "signed in"
    assert run(["mcp", "logout", site.server.url]) == 0
    assert all(token.is_revoked for token in site.issuer.tokens)


@pytest.mark.usefixtures("site")
def test_a_server_that_needs_a_sign_in_names_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["mcp", "list", "--json"]) == 0
    (server,) = json.loads(capsys.readouterr().out)["servers"]
    assert server["phase"] == "idle"
    assert server["fault"]["reason"] == "sign_in"
    assert server["message"] == "it needs a sign-in: indus mcp login demo"
    assert run(["mcp", "doctor", "--json"]) == 1
    (findings,) = json.loads(capsys.readouterr().out)["servers"]
    assert findings["handshake"] == "needs sign-in"
    assert findings["remedy"] == "sign in: indus mcp login demo"
    assert run(["mcp", "list"]) == 0
    assert "demo  http       sign in " in capsys.readouterr().out
    assert run(["mcp", "doctor", "demo"]) == 1
    assert "  state: sign in\n" in capsys.readouterr().out
    assert run(["mcp", "auth"]) == 0
    assert "not signed in" in capsys.readouterr().out
    assert run(["call", "demo__whoami"]) == 3
    assert "indus mcp login demo" in capsys.readouterr().err


def test_a_refused_revocation_is_told(
    site: Site, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def hide_endpoint(self: AuthlibServer) -> dict[str, Any]:
        return {name: value for name, value in describe(self).items() if name != "revocation_endpoint"}

    describe = AuthlibServer.metadata
    monkeypatch.setattr(AuthlibServer, "metadata", hide_endpoint)
    assert run(["mcp", "login", "demo"]) == 0
    assert run(["mcp", "logout", "demo"]) == 0
    assert "the issuer has not confirmed the revocation" in capsys.readouterr().err
    assert site.issuer.count("revoke") == 0


def test_a_sign_in_that_fails_says_why(
    site: Site, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site.issuer, "fail_with", 500)
    assert run(["mcp", "login", "demo"]) == 1
    assert "not signed in to 'demo': " in capsys.readouterr().err


@pytest.mark.parametrize("answer", [True, False])
def test_adding_a_server_offers_the_sign_in_on_a_terminal(
    answer: bool, site: Site, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    questions: list[str] = []

    def confirm(question: str) -> bool:
        questions.append(question)
        return answer

    monkeypatch.setattr(configure, "can_ask_user", lambda: True)
    monkeypatch.setattr(configure, "confirm", confirm)
    assert run(["mcp", "add", "other", site.server.url]) == 0
    out, err = capsys.readouterr()
    assert questions == ["Server 'other' wants a sign-in. Sign in now, in a browser?"]
    assert ("Server 'other': ready, 1 tool" in out) is answer
    assert ("is added and needs a sign-in: indus mcp login other" in err) is not answer


def test_adding_a_server_elsewhere_names_the_command(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["mcp", "add", "other", site.server.url]) == 0
    assert "server 'other' is added and needs a sign-in: indus mcp login other" in capsys.readouterr().err
    assert "other" in servers_of(user_file())


def test_servers_without_a_sign_in_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["mcp", "auth"]) == 0
    assert "No server behind a URL is configured" in capsys.readouterr().out
    configured(
        user_file(),
        {"process": row(), "header": {"url": "http://127.0.0.1:9/mcp", "headers": {"Authorization": "Bearer x"}}},
    )
    for name, problem in (("process", "is a process"), ("header", "has a header Authorization")):
        assert run(["mcp", "login", name]) == 1
        assert problem in capsys.readouterr().err
        assert run(["mcp", "logout", name]) == 1
        assert problem in capsys.readouterr().err
    assert run(["mcp", "login", "absent"]) == 2
    assert "There is no server 'absent'" in capsys.readouterr().err
    configured(project_file(tmp_path), {"theirs": {"url": "http://127.0.0.1:9/mcp"}})
    assert run(["mcp", "login", "theirs"]) == 2
    assert "it isn't trusted yet: indus mcp trust theirs" in capsys.readouterr().err
    assert run(["mcp", "auth", "--json"]) == 0
    states = {facts["name"]: facts["state"] for facts in json.loads(capsys.readouterr().out)["servers"]}
    assert states == {"header": "header", "theirs": "untrusted"}
