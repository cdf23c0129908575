from __future__ import annotations

import asyncio
import os
import webbrowser
from typing import TYPE_CHECKING

import anyio
import httpx2
import pytest
from tests.support.dialogs import ScriptedDialog, scripted
from tests.support.waiting import until

from indusagi.interop.auth.contract import AuthFault, AuthSettings, DeviceCode
from induscode.cli.dialog import Question, Reply
from induscode.servers import sign_in as prompts
from induscode.servers.sign_in import PersonPrompt, StandardInputDialog, open_browser

if TYPE_CHECKING:
    from collections.abc import Sequence

PAGE = "https://issuer.example/authorize?client_id=c&state=s1"


async def paste(dialog: ScriptedDialog, settings: AuthSettings | None = None, registered: Sequence[str] = ()) -> object:
    prompt = PersonPrompt(dialog, paste=True)
    async with prompt.open_redirect(settings or AuthSettings(), registered) as receiver:
        return await receiver.authorize(PAGE)


# -- pasting ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [
        "http://127.0.0.1:33418/callback?code=c1&state=s1",
        "127.0.0.1:33418/callback?code=c1&state=s1",
        "  http://127.0.0.1:33418/callback?code=c1&state=s1#_=_ ",
        "?code=c1&state=s1",
        "code=c1&state=s1",
    ],
)
async def test_the_pasted_address_is_the_answer(line: str) -> None:
    dialog = scripted(f">{line}")
    assert await paste(dialog) == {"code": "c1", "state": "s1"}
    assert PAGE in dialog.questions[0].lines


async def test_the_address_of_another_sign_in_is_asked_for_again() -> None:
    dialog = scripted(">http://127.0.0.1:33418/callback?code=c1&state=other", ">?error=access_denied&state=s1")
    assert await paste(dialog) == {"error": "access_denied", "state": "s1"}
    assert dialog.problems == ["This is not the address of this sign-in: copy all of it, from http to the end"]


async def test_a_person_may_give_up() -> None:
    with pytest.raises(AuthFault, match="given up: no address was pasted"):
        await paste(scripted())


async def test_pasting_has_a_deadline() -> None:
    class Silent(ScriptedDialog):
        async def ask(self, question: Question, /) -> Reply:
            await anyio.sleep_forever()
            raise AssertionError

    prompt = PersonPrompt(Silent(), paste=True, wait_s=0)
    async with prompt.open_redirect(AuthSettings(), ()) as receiver:
        with pytest.raises(AuthFault, match="given up"):
            await receiver.authorize(PAGE)


@pytest.mark.parametrize(
    ("settings", "registered", "uri"),
    [
        (AuthSettings(), (), "http://127.0.0.1:33418/callback"),
        (AuthSettings(), ("http://127.0.0.1:9/callback",), "http://127.0.0.1:9/callback"),
        (AuthSettings(callback_port=7), ("http://127.0.0.1:9/callback",), "http://127.0.0.1:7/callback"),
        (AuthSettings(redirect_uri="https://app.example/cb"), (), "https://app.example/cb"),
    ],
)
async def test_nothing_listens_for_a_pasted_address(
    settings: AuthSettings, registered: Sequence[str], uri: str
) -> None:
    async with PersonPrompt(scripted(), paste=True).open_redirect(settings, registered) as receiver:
        assert receiver.redirect_uri == uri


# -- a browser --------------------------------------------------------------------------------


async def test_the_page_opens_in_the_browser_and_its_answer_arrives() -> None:
    dialog, opened = scripted(), list[str]()

    def open_page(url: str) -> bool:
        opened.append(url)
        return True

    async with PersonPrompt(dialog, open_page=open_page).open_redirect(AuthSettings(), ()) as receiver:
        async with asyncio.TaskGroup() as tasks:
            signing_in = tasks.create_task(receiver.authorize(PAGE))
            await until(lambda: bool(opened))
            async with httpx2.AsyncClient() as browser:
                answer = await browser.get(receiver.redirect_uri, params={"code": "c1", "state": "s1"})
    assert answer.status_code == 200
    assert signing_in.result() == {"code": "c1", "state": "s1"}
    assert opened == [PAGE]
    assert dialog.shown[0] == f"Sign in at: {PAGE}"
    assert "opens in your browser" in dialog.shown[1]


async def test_without_a_browser_the_address_is_shown() -> None:
    dialog = scripted()
    prompt = PersonPrompt(dialog, wait_s=0)
    async with prompt.open_redirect(AuthSettings(), ()) as receiver:
        with pytest.raises(AuthFault, match="no one has signed in"):
            await receiver.authorize(PAGE)
    assert dialog.shown[1] == "Open it in a browser on this machine; on another one use --paste or --device"


@pytest.mark.parametrize("url", ["http://issuer.example/authorize?state=s", "file:///x?state=s"])
async def test_a_doubtful_page_is_not_opened(url: str) -> None:
    dialog = scripted()
    for is_pasted in (True, False):
        async with PersonPrompt(dialog, paste=is_pasted).open_redirect(AuthSettings(), ()) as receiver:
            with pytest.raises(AuthFault, match="no https address"):
                await receiver.authorize(url)
    assert dialog.shown == []


def test_a_browser_needs_a_display(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []

    def open_page(url: str) -> bool:
        opened.append(url)
        return True

    monkeypatch.setattr(webbrowser, "open", open_page)
    monkeypatch.setattr(prompts.sys, "platform", "linux")
    assert not open_browser(PAGE)
    monkeypatch.setenv("DISPLAY", ":0")
    assert open_browser(PAGE)
    assert opened == [PAGE]


# -- another device ---------------------------------------------------------------------------


async def test_the_code_for_another_device_is_shown() -> None:
    dialog = scripted()
    code = DeviceCode(
        user_code="AB-12",
        verification_uri="https://issuer.example/device",
        verification_uri_complete="https://issuer.example/device?user_code=AB-12",
        expires_s=600,
    )
    await PersonPrompt(dialog).show_device_code(code)
    assert dialog.shown == [
        "On any device, open https://issuer.example/device and enter the code AB-12",
        "or open https://issuer.example/device?user_code=AB-12",
        "Waiting for the sign-in, at most 10 minutes",
    ]


# -- without a terminal -----------------------------------------------------------------------


def read_from(monkeypatch: pytest.MonkeyPatch, data: bytes) -> int:
    """Put a pipe with these bytes in the place of standard input; return its reading end."""
    reading, writing = os.pipe()
    os.write(writing, data)
    os.close(writing)
    monkeypatch.setattr(prompts, "_STDIN", reading)
    return reading


@pytest.mark.parametrize(
    ("data", "cancelled"), [(b"?code=c&state=s1\nrest", False), (b"", True), (b"nonsense\n", True)]
)
async def test_a_line_of_standard_input_is_the_answer(
    data: bytes, cancelled: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reading = read_from(monkeypatch, data)
    try:
        dialog = StandardInputDialog()
        dialog.show("a line")
        question = Question(title="Paste:", lines=("here",), check=lambda text: None if "code" in text else "wrong")
        reply = await dialog.ask(question)
    finally:
        os.close(reading)
    assert reply.cancelled is cancelled
    assert reply.text == data.partition(b"\n")[0].decode()
    assert "indus: a line\nindus: Paste:\nindus: here\n" in capsys.readouterr().err


async def test_a_file_may_be_standard_input(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    path = f"{tmp_path}/line"
    async with await anyio.open_file(path, "w") as file:
        await file.write("an answer")
    handle = await anyio.to_thread.run_sync(os.open, path, os.O_RDONLY)
    monkeypatch.setattr(prompts, "_STDIN", handle)
    try:
        assert (await StandardInputDialog().ask(Question(title="?"))).text == "an answer"
    finally:
        os.close(handle)
