"""`indus connectors login` and `logout`, and what the other commands say about a connector that signs in."""

from __future__ import annotations

import json
import socket
from typing import TYPE_CHECKING

import httpx2
import pytest
from tests.support.oauth_service import SECRET, oauth_service
from tests.support.protected_server import opened_in_thread

from induscode.commands.program import run
from induscode.servers import sign_in as prompts

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.oauth_service import OAuthService

LIST = ["call", "saas-action", "action=execute", "slug=NOTES_LIST_NOTES", "arguments:={}", "--web-allow", "127.0.0.1"]


@pytest.fixture(scope="module")
def shared_service() -> Iterator[OAuthService]:
    with opened_in_thread(oauth_service()) as service:
        yield service


@pytest.fixture
def service(shared_service: OAuthService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OAuthService:
    """Write the document, with a person whose browser signs in at once."""
    shared_service.sent.clear()
    shared_service.issuer.tokens.clear()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NOTES_SECRET", SECRET)
    (tmp_path / "notes.json").write_text(json.dumps(shared_service.build_document()))

    def browse(url: str) -> bool:
        with httpx2.Client() as browser:
            answer = browser.post(url, data={"allow": "yes"})
            assert "You may close this page" in browser.get(answer.headers["location"]).text
        return True

    monkeypatch.setattr(prompts, "open_browser", browse)
    return shared_service


def add(service: OAuthService, *options: str) -> int:
    words = ["connectors", "add", "notes", "notes.json", "--base-url", service.base_url, "--web-allow", "127.0.0.1"]
    return run([*words, *options])


def test_a_connector_is_added_signed_in_to_used_and_removed(
    service: OAuthService, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = str(held.getsockname()[1])
    service.register("mine", f"http://127.0.0.1:{port}/callback")
    assert add(service, "--auth", "oauth", "--client-id", "mine") == 0
    out = capsys.readouterr().out
    assert f"signs in at {service.issuer.issuer}/authorize, {service.issuer.issuer}/token" in out
    assert "sign in: indus connectors login notes" in out

    assert run(["connectors", "list"]) == 0
    assert "oauth:login, not signed in" in capsys.readouterr().out
    assert run(["connectors", "doctor", "--web-allow", "127.0.0.1"]) == 1
    assert "not signed in: indus connectors login notes" in capsys.readouterr().out
    assert run(LIST) != 0
    out, err = capsys.readouterr()
    assert "needs a sign-in: indus connectors login notes" in out + err

    assert run(["connectors", "login", "notes", "--port", port]) == 0
    out, err = capsys.readouterr()
    assert "Signed in to 'notes', stored in" in out
    assert "stored as plain text" in err
    assert run(LIST) == 0
    assert "GET /v1/notes" in capsys.readouterr().out
    assert run(["connectors", "doctor", "--web-allow", "127.0.0.1", "--json"]) == 0
    (finding,) = json.loads(capsys.readouterr().out)["connectors"]
    assert (finding["problems"], finding["signIn"]["state"]) == ([], "signed in")
    assert run(["mcp", "auth", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"servers": []}, "a connector is no server that was removed"

    assert run(["connectors", "remove", "notes"]) == 0
    out, err = capsys.readouterr()
    assert out == "Signed out of 'notes'\nnotes: removed\n"
    assert "the issuer has not confirmed the revocation" in err
    secrets = [secret for token in service.issuer.tokens for secret in (token.access, token.refresh) if secret]
    assert secrets
    assert not any(secret in out + err for secret in secrets)


def test_a_client_of_its_own_needs_no_person(service: OAuthService, capsys: pytest.CaptureFixture[str]) -> None:
    service.register("machine", secret=SECRET)
    words = ["--auth", "oauth:login", "--grant", "client_credentials", "--client-id", "machine"]
    assert add(service, *words, "--client-secret", "NOTES_SECRET", "--json") == 0
    added = json.loads(capsys.readouterr().out)
    assert (added["auth"], added["warnings"]) == ("oauth:login", [])
    assert run(["connectors", "doctor", "--web-allow", "127.0.0.1"]) == 0
    assert run(LIST) == 0
    assert run(["connectors", "logout", "notes"]) == 0
    assert run(["connectors", "logout", "notes"]) == 0
    assert capsys.readouterr().out.endswith("Signed out of 'notes'\nThere is no sign-in to 'notes'\n")
    assert run(["connectors", "remove", "notes"]) == 0


@pytest.mark.parametrize(
    ("options", "code", "problem"),
    [
        (("--client-id", "mine"), 2, "belong to --auth oauth"),
        (("--auth", "oauth", "--client-id", "mine", "--client-secret", "s3cret"), 2, "name of an environment variable"),
        (("--auth", "oauth", "--client-secret", "NOTES_SECRET"), 2, "--client-id ID"),
        (("--auth", "oauth", "--client-id", "mine", "--scopes", 'a"b'), 2, "is no scope"),
        (("--auth", "oauth"), 3, "give its --client-id"),
        (("--auth", "oauth:other", "--client-id", "mine"), 3, "no usable OAuth scheme 'other'; it has: login"),
    ],
)
def test_options_that_make_no_sense(
    options: tuple[str, ...], code: int, problem: str, service: OAuthService, capsys: pytest.CaptureFixture[str]
) -> None:
    assert add(service, *options) == code
    err = " ".join(capsys.readouterr().err.split())
    assert problem in err
    assert "s3cret" not in err


def test_a_connector_without_oauth_has_no_sign_in(service: OAuthService, capsys: pytest.CaptureFixture[str]) -> None:
    assert add(service) == 0
    assert run(["connectors", "login", "notes"]) == 3
    assert "connector 'notes' has no sign-in: it was not added with --auth oauth" in capsys.readouterr().err
    assert run(["connectors", "remove", "notes"]) == 0
