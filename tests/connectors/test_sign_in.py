"""Connectors that sign in by OAuth, against the Authlib server: sign-in, refresh, step-up, other origins."""

from __future__ import annotations

import asyncio
import json
import socket
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlsplit

import anyio
import pytest
from anyio import to_thread
from tests.support.dialogs import scripted
from tests.support.oauth_service import SECRET, OAuthService, oauth_service
from tests.support.protected_server import follow_redirect, sign_in_by_http, skip_pauses

from indusagi.capabilities.ports import WebSettings
from indusagi.core.app_dirs import state_dir
from indusagi.core.json import is_json_object
from indusagi.interop.auth.contract import AuthFault
from indusagi.interop.auth.secrets import SecretFiles
from induscode.connectors.auth import OAuthReference
from induscode.connectors.gateway import ConnectorGateway
from induscode.connectors.sign_in import ConnectorSignIn
from induscode.connectors.sources import examine_source
from induscode.connectors.store import ConnectorStore
from induscode.deck.contract import ActionError
from induscode.servers.sign_in import PersonPrompt

if TYPE_CHECKING:
    from indusagi.core.json import JsonObject
    from indusagi.interop.auth.contract import DeviceCode

pytestmark = pytest.mark.anyio
PERSON = OAuthReference(scheme="login", client_id="mine")
MACHINE = OAuthReference(
    scheme="login", client_id="machine", secret_variable="NOTES_SECRET", grant="client_credentials"
)
VARIABLES = {"NOTES_SECRET": SECRET}


class Notes:
    """The connector `notes` of a service, and a person who signs in to it."""

    def __init__(self, folder: Path, service: OAuthService, reference: OAuthReference) -> None:
        self.service = service
        self.store = ConnectorStore(str(folder / "state"))
        self._source, self._reference = folder / "notes.json", reference
        with socket.create_server(("127.0.0.1", 0)) as held:
            self._port: int = held.getsockname()[1]

    async def add(self, document: JsonObject) -> None:
        """Register the connector."""
        data = json.dumps(document).encode()
        await to_thread.run_sync(self._source.write_bytes, data)
        reading = examine_source("notes", str(self._source), data, self.service.base_url, self._reference)
        await to_thread.run_sync(lambda: self.store.add(reading.row, reading.document))
        callback = f"http://127.0.0.1:{self._port}/callback"
        self.service.register("mine", callback)
        self.service.register("machine", secret=SECRET)

    def open_gateway(self) -> ConnectorGateway:
        """Open a gateway, as a process that starts does."""
        return ConnectorGateway(self.store, WebSettings(allow_private=("127.0.0.1",), total_s=10), VARIABLES)

    def open_sign_in(self) -> ConnectorSignIn:
        return ConnectorSignIn(self.store, self.store.read()[0]["notes"], VARIABLES)

    async def sign_in(self) -> dict[str, str]:
        """Sign in by a browser, and return the parameters of its page."""
        pages: list[str] = []
        opened = anyio.Event()

        def open_page(url: str) -> bool:
            pages.append(url)
            anyio.from_thread.run_sync(opened.set)
            return True

        async def browse() -> None:
            await opened.wait()
            await follow_redirect(await sign_in_by_http(pages[0]))

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(browse())
            await self.open_sign_in().sign_in(PersonPrompt(scripted(), open_page=open_page), port=self._port)
        return dict(parse_qsl(urlsplit(pages[0]).query))


async def open_notes(folder: Path, service: OAuthService, reference: OAuthReference = PERSON) -> Notes:
    notes = Notes(folder, service, reference)
    await notes.add(service.build_document())
    return notes


async def execute(gateway: ConnectorGateway, slug: str) -> JsonObject:
    answer = await gateway.execute(slug, {})
    assert is_json_object(answer)
    body = answer["body"]
    assert is_json_object(body)
    return body


async def fail(gateway: ConnectorGateway, slug: str) -> ActionError:
    with pytest.raises(ActionError) as caught:
        await gateway.execute(slug, {})
    return caught.value


# -- a person -----------------------------------------------------------------------------------


async def test_an_action_without_a_sign_in_names_the_command_and_sends_nothing(tmp_path: Path) -> None:
    async with oauth_service() as service:
        gateway = (await open_notes(tmp_path, service)).open_gateway()
        error = await fail(gateway, "NOTES_LIST_NOTES")
        expected = "NOTES_LIST_NOTES was not executed: connector 'notes' needs a sign-in: indus connectors login notes"
        assert (str(error), error.code) == (expected, "auth")
        assert service.sent == []
        assert await execute(gateway, "NOTES_GET_STATUS") == {"status": "up", "signedIn": False}


async def test_a_person_signs_in_with_pkce_for_the_reading_operations(tmp_path: Path) -> None:
    async with oauth_service() as service:
        notes = await open_notes(tmp_path, service)
        gateway = notes.open_gateway()
        await fail(gateway, "NOTES_LIST_NOTES")
        page = await notes.sign_in()
        assert page["scope"] == "read offline_access"
        assert page["code_challenge_method"] == "S256"
        # The token that the service repeats is hidden, and the gateway that was refused before goes on.
        body = await execute(gateway, "NOTES_LIST_NOTES")
        assert body == {"did": "GET /v1/notes", "echo": "Bearer [access token]"}
        assert service.issuer.requests == [("authorization_code", 200)], "nothing was discovered or registered"
        facts = await notes.open_sign_in().read_facts()
        assert facts is not None
        assert (facts.state, facts.scopes, facts.has_refresh_token) == ("signed in", ("read", "offline_access"), True)


@pytest.mark.parametrize("challenges", [True, False])
async def test_an_operation_with_other_scopes_steps_up(tmp_path: Path, challenges: bool) -> None:
    async with oauth_service() as service:
        service.challenges = challenges
        notes = await open_notes(tmp_path, service)
        gateway = notes.open_gateway()
        await notes.sign_in()
        await execute(gateway, "NOTES_LIST_NOTES")
        error = await fail(gateway, "NOTES_ADD_NOTE")
        assert "connector 'notes' needs a sign-in for the scope 'write': indus connectors login notes" in str(error)
        page = await notes.sign_in()
        assert page["scope"].split() == ["read", "write", "offline_access"], "what was granted before stays"
        assert (await execute(gateway, "NOTES_ADD_NOTE"))["did"] == "POST /v1/notes"


async def test_a_refused_action_whose_scope_was_granted_is_an_answer_of_the_service(tmp_path: Path) -> None:
    async with oauth_service() as service:
        notes = await open_notes(tmp_path, service)
        await notes.sign_in()
        service.issuer.tokens[-1].scope = ""
        error = await fail(notes.open_gateway(), "NOTES_LIST_NOTES")
        assert "notes answered 403 Forbidden" in str(error)
        assert service.issuer.requests == [("authorization_code", 200)]


async def test_an_expired_token_is_refreshed_once_by_all_calls_of_two_processes(tmp_path: Path) -> None:
    async with oauth_service() as service:
        notes = await open_notes(tmp_path, service)
        await notes.sign_in()
        gateways = [notes.open_gateway(), notes.open_gateway()]
        for gateway in gateways:
            await execute(gateway, "NOTES_LIST_NOTES")
        service.issuer.expire_access()
        async with asyncio.TaskGroup() as tasks:
            calls = [tasks.create_task(execute(gateway, "NOTES_LIST_NOTES")) for gateway in gateways for _ in range(3)]
        assert {str(call.result()["did"]) for call in calls} == {"GET /v1/notes"}
        assert service.issuer.count("refresh_token") == 1
        assert service.issuer.reuses == 0
        for gateway in gateways:
            await gateway.aclose()


async def test_an_ended_sign_in_needs_another_one_and_signing_out_forgets_it(tmp_path: Path) -> None:
    async with oauth_service() as service:
        notes = await open_notes(tmp_path, service)
        await notes.sign_in()
        for token in service.issuer.tokens:
            token.is_revoked = True
        error = await fail(notes.open_gateway(), "NOTES_LIST_NOTES")
        assert "needs another sign-in: the last one has ended: indus connectors login notes" in str(error)
        assert await notes.open_sign_in().sign_out() is False, "the document names no revocation endpoint"
        assert await notes.open_sign_in().sign_out() is None
        assert "needs a sign-in: " in str(await fail(notes.open_gateway(), "NOTES_LIST_NOTES"))


async def test_a_token_never_follows_a_redirect_to_another_origin(tmp_path: Path) -> None:
    async with oauth_service() as service:
        notes = await open_notes(tmp_path, service)
        await notes.sign_in()
        error = await fail(notes.open_gateway(), "NOTES_GO_AWAY")
        assert error.code == "redirect"
        assert [request for request, _ in service.sent] == ["GET /v1/away"]
        assert service.strayed == []


async def test_a_document_whose_sign_in_moves_disables_the_connector(tmp_path: Path) -> None:
    async with oauth_service() as service:
        notes = await open_notes(tmp_path, service)
        await notes.sign_in()
        moved = json.dumps(service.build_document()).replace(f"{service.issuer.issuer}/token", "https://evil.example/t")
        await to_thread.run_sync((tmp_path / "notes.json").write_text, moved)
        error = await fail(notes.open_gateway(), "NOTES_LIST_NOTES")
        assert error.code == "drift"
        assert "its sign-in moves to" in str(error)
        assert service.sent == []


# -- a client of its own ------------------------------------------------------------------------


async def test_client_credentials_sign_in_by_themselves_and_step_up(tmp_path: Path) -> None:
    async with oauth_service() as service:
        gateway = (await open_notes(tmp_path, service, MACHINE)).open_gateway()
        assert (await execute(gateway, "NOTES_LIST_NOTES"))["did"] == "GET /v1/notes"
        assert (await execute(gateway, "NOTES_ADD_NOTE"))["did"] == "POST /v1/notes"
        service.issuer.expire_access()
        assert (await execute(gateway, "NOTES_LIST_NOTES"))["did"] == "GET /v1/notes"
        assert service.issuer.requests == [("client_credentials", 200)] * 3
        assert [token.scope for token in service.issuer.tokens] == ["read", "read write", "read write"]


async def test_a_missing_or_wrong_secret_is_told_without_a_request_to_the_service(tmp_path: Path) -> None:
    async with oauth_service() as service:
        notes = await open_notes(tmp_path, service, MACHINE)
        for variables, problem in (({}, "the variable NOTES_SECRET is not set"), ({"NOTES_SECRET": "x"}, "invalid_cl")):
            gateway = ConnectorGateway(notes.store, WebSettings(allow_private=("127.0.0.1",)), variables)
            error = await fail(gateway, "NOTES_LIST_NOTES")
            assert error.code == "auth"
            assert problem in str(error)
        assert service.sent == []


async def test_the_secret_of_a_machine_may_be_a_reference_that_no_file_repeats(tmp_path: Path) -> None:
    async with oauth_service() as service:
        notes = await open_notes(tmp_path, service, replace(MACHINE, secret_variable="${keyring:notes}"))
        assert "no secret 'notes' is stored" in str(await fail(notes.open_gateway(), "NOTES_LIST_NOTES"))
        await to_thread.run_sync(SecretFiles().set, "notes", SECRET)
        assert (await execute(notes.open_gateway(), "NOTES_LIST_NOTES"))["did"] == "GET /v1/notes"
        service.issuer.expire_access()
        await to_thread.run_sync(SecretFiles().set, "notes", "rotated")
        assert "invalid_client" in str(await fail(notes.open_gateway(), "NOTES_LIST_NOTES"))

        def read_all() -> str:
            return "".join(file.read_text("utf-8") for file in (Path(state_dir()) / "credentials").iterdir())

        assert SECRET not in await to_thread.run_sync(read_all)


# -- OpenID Connect -----------------------------------------------------------------------------


async def test_openid_connect_finds_the_issuer_and_registers_a_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    skip_pauses(monkeypatch)
    async with oauth_service() as service:
        url = f"{service.issuer.issuer}/.well-known/oauth-authorization-server"
        notes = Notes(tmp_path, service, OAuthReference(scheme="account"))
        await notes.add(service.build_document(account={"type": "openIdConnect", "openIdConnectUrl": url}))

        class Approving(PersonPrompt):
            async def show_device_code(self, code: DeviceCode) -> None:
                service.issuer.approve(code.user_code)

        await notes.open_sign_in().sign_in(Approving(scripted()), device=True)
        assert (await execute(notes.open_gateway(), "NOTES_LIST_NOTES"))["did"] == "GET /v1/notes"
        facts = await notes.open_sign_in().read_facts()
        assert facts is not None
        assert facts.account == "ada@example.org"
        assert service.issuer.count("register", 201) == 1
        assert await notes.open_sign_in().sign_out() is True
        assert all(token.is_revoked for token in service.issuer.tokens)


async def test_a_document_without_a_device_flow_says_so(tmp_path: Path) -> None:
    async with oauth_service() as service:
        notes = await open_notes(tmp_path, service)
        with pytest.raises(AuthFault, match="offers no sign-in on another device"):
            await notes.open_sign_in().sign_in(PersonPrompt(scripted()), device=True)
