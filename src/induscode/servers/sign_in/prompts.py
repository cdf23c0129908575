"""Prompts of a sign-in: how a person gets to the sign-in page, and how its answer comes back.

In a browser on this machine the answer arrives at a loopback address (RFC 8252). Over ssh the person opens the page
anywhere and pastes the address at which the browser ends. A device code (RFC 8628) needs no answer: the client asks the
issuer until the person is done.
"""

from __future__ import annotations

import os
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, Literal, TypeAlias
from urllib.parse import urlsplit

import anyio
from anyio import to_thread

from indusagi.interop.auth.callback import (
    CALLBACK_PATH,
    SIGN_IN_WAIT_S,
    check_authorization_url,
    listen_for_redirect,
    read_redirect,
    read_state,
)
from indusagi.interop.auth.contract import AuthFault
from induscode.cli.dialog import Question, Reply
from induscode.cli.terminal import print_status

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping, Sequence

    from indusagi.interop.auth.callback import RedirectListener
    from indusagi.interop.auth.contract import AuthSettings, DeviceCode, RedirectReceiver
    from induscode.cli.dialog import Dialog

SignInWay: TypeAlias = Literal["browser", "paste", "device"]
_PASTE_PORT: Final = 33_418
"""In the address that a browser ends at when its answer is pasted; nothing listens there."""
_MAX_LINE_BYTES: Final = 64 * 1024
_STDIN: Final = 0


class PersonPrompt:
    """Puts a sign-in to a person by a dialog.

    Args:
        dialog: Shows lines, and asks for the pasted address.
        paste: Whether the address at which the browser ends is pasted, instead of received.
        open_page: Opens a page in a browser, and returns whether there is one.
        wait_s: How long the person has.
    """

    def __init__(
        self,
        dialog: Dialog,
        *,
        paste: bool = False,
        open_page: Callable[[str], bool] | None = None,
        wait_s: float = SIGN_IN_WAIT_S,
    ) -> None:
        self._dialog = dialog
        self._paste = paste
        self._open_page = open_page or open_browser
        self._wait_s = wait_s

    @asynccontextmanager
    async def open_redirect(
        self, settings: AuthSettings, registered: Sequence[str]
    ) -> AsyncGenerator[RedirectReceiver]:
        """Prepare for the answer of the issuer: a listener on this machine, or a question for its address."""
        if self._paste:
            port = settings.callback_port or _PASTE_PORT
            chosen = settings.redirect_uri or ("" if settings.callback_port else next(iter(registered), ""))
            uri = chosen or f"http://127.0.0.1:{port}{CALLBACK_PATH}"
            yield _PastedRedirect(self._dialog, uri, self._wait_s)
            return
        async with listen_for_redirect(settings, registered) as listener:
            yield _BrowserRedirect(self._dialog, listener, self._open_page, self._wait_s)

    async def show_device_code(self, code: DeviceCode) -> None:
        """Show a code and where to enter it."""
        check_authorization_url(code.verification_uri)
        self._dialog.show(f"On any device, open {code.verification_uri} and enter the code {code.user_code}")
        if code.verification_uri_complete:
            check_authorization_url(code.verification_uri_complete)
            self._dialog.show(f"or open {code.verification_uri_complete}")
        self._dialog.show(f"Waiting for the sign-in, at most {max(1, code.expires_s // 60)} minutes")


class _BrowserRedirect:
    """Sends the person to a browser on this machine."""

    def __init__(
        self, dialog: Dialog, listener: RedirectListener, open_page: Callable[[str], bool], wait_s: float
    ) -> None:
        self._dialog = dialog
        self._listener = listener
        self._open_page = open_page
        self._wait_s = wait_s

    @property
    def redirect_uri(self) -> str:
        return self._listener.redirect_uri

    async def authorize(self, url: str) -> Mapping[str, str]:
        check_authorization_url(url)
        state = read_state(url)
        self._listener.expect(state)
        self._dialog.show(f"Sign in at: {url}")
        if await to_thread.run_sync(self._open_page, url):
            self._dialog.show("The page opens in your browser. Is that on another machine? Use --paste or --device")
        else:
            self._dialog.show("Open it in a browser on this machine; on another one use --paste or --device")
        return await self._listener.wait(state, self._wait_s)


class _PastedRedirect:
    """Asks the person for the address at which the browser has ended."""

    def __init__(self, dialog: Dialog, redirect_uri: str, wait_s: float) -> None:
        self._dialog = dialog
        self.redirect_uri = redirect_uri
        self._wait_s = wait_s

    async def authorize(self, url: str) -> Mapping[str, str]:
        check_authorization_url(url)
        state, path = read_state(url), urlsplit(self.redirect_uri).path

        def parse(text: str) -> Mapping[str, str] | None:
            # Some browsers leave out the scheme; a person may copy the part after the question mark alone.
            query = text.strip().rpartition("?")[2].partition("#")[0]
            return read_redirect(f"{path}?{query}", path, state)

        def check(text: str) -> str | None:
            problem = "This is not the address of this sign-in: copy all of it, from http to the end"
            return None if parse(text) is not None else problem

        question = Question(
            title="Sign in, in any browser, at:",
            lines=(
                url,
                f"The browser ends at a page that it cannot load, {self.redirect_uri.partition('?')[0]}?code=…",
                "Paste the address of that page here:",
            ),
            check=check,
        )
        reply = Reply(cancelled=True)
        with anyio.move_on_after(self._wait_s):
            reply = await self._dialog.ask(question)
        values = None if reply.cancelled else parse(reply.text)
        if values is None:
            raise AuthFault("the sign-in was given up: no address was pasted")
        return values


def open_browser(url: str) -> bool:
    """Open a page in a graphical browser, and return whether there is one; a text browser would take the terminal."""
    has_display = sys.platform == "darwin" or any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")))
    if not has_display:
        return False
    import webbrowser  # noqa: PLC0415 — looks for browsers when it is loaded

    return webbrowser.open(url)


class StandardInputDialog:
    """The dialog of a process without a terminal: status lines, and one line of standard input as the answer."""

    def show(self, text: str, /) -> None:
        """Print one line."""
        print_status(text)

    async def ask(self, question: Question, /) -> Reply:
        """Print a question, and read one line; an invalid one and the end of the input count as cancelled."""
        for line in (question.title, *question.lines):
            print_status(line)
        data = bytearray()
        while b"\n" not in data and len(data) < _MAX_LINE_BYTES:
            try:
                await anyio.wait_readable(_STDIN)
            except OSError:
                pass  # a file is always readable, and epoll(7) refuses it
            chunk = await to_thread.run_sync(os.read, _STDIN, 4096)
            if not chunk:
                break
            data += chunk
        text = data.partition(b"\n")[0].decode("utf-8", "replace").strip()
        problem = None if question.check is None else question.check(text)
        if problem is not None:
            print_status(problem)
        return Reply(text=text, cancelled=not text or problem is not None)
