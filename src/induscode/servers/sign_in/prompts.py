"""Sign-in prompts: send the user to the sign-in page and receive the response.

With a browser on this machine, the response arrives at a loopback address (RFC 8252). Over ssh, the user opens the page
anywhere and pastes the address the browser ends up at. A device code (RFC 8628) needs no response: the client polls
the issuer until the user is done.
"""

from __future__ import annotations

import os
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, Literal, TypeAlias
from urllib.parse import urlsplit

import anyio
from anyio import to_thread

from indusagi.interop.auth.callback import CALLBACK_PATH, SIGN_IN_WAIT_S, listen_for_redirect, read_redirect, read_state
from indusagi.interop.auth.contract import AuthFault
from induscode.cli.dialog import Question, Reply
from induscode.cli.terminal import print_status

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping, Sequence

    from indusagi.interop.auth.contract import AuthSettings, DeviceCode, RedirectReceiver
    from induscode.cli.dialog import Dialog

SignInWay: TypeAlias = Literal["browser", "paste", "device"]
_PASTE_PORT: Final = 33_418
"""Port of the redirect address to paste. Nothing listens there."""
_MAX_LINE_BYTES: Final = 64 * 1024
_STDIN: Final = 0


class PersonPrompt:
    """Guides the user through a sign-in with a dialog.

    Args:
        dialog: Shows lines and asks for the pasted address.
        paste: Whether the user pastes the redirect address instead of us receiving the redirect.
        open_page: Opens a page in a browser and returns whether that worked.
        wait_s: How long the user has.
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
        """Prepare for the issuer's response: a listener on this machine, or a question for the address."""
        if self._paste:
            port = settings.callback_port or _PASTE_PORT
            chosen = settings.redirect_uri or ("" if settings.callback_port else next(iter(registered), ""))
            uri = chosen or f"http://127.0.0.1:{port}{CALLBACK_PATH}"
            yield _PastedRedirect(self._dialog, uri, self._wait_s)
            return
        async with listen_for_redirect(settings, registered, self._show_page, self._wait_s) as listener:
            yield listener

    async def _show_page(self, url: str) -> None:
        self._dialog.show(f"Sign in at: {url}")
        if await to_thread.run_sync(self._open_page, url):
            self._dialog.show("The page opens in your browser. Is that on another machine? Use --paste or --device")
        else:
            self._dialog.show("Open it in a browser on this machine; on another one use --paste or --device")

    async def show_device_code(self, code: DeviceCode) -> None:
        """Show a code and where to enter it."""
        self._dialog.show(f"On any device, open {code.verification_uri} and enter the code {code.user_code}")
        if code.verification_uri_complete:
            self._dialog.show(f"or open {code.verification_uri_complete}")
        self._dialog.show(f"Waiting for the sign-in, at most {max(1, code.expires_s // 60)} minutes")


class _PastedRedirect:
    """Asks the user for the address the browser ended up at."""

    def __init__(self, dialog: Dialog, redirect_uri: str, wait_s: float) -> None:
        self._dialog = dialog
        self.redirect_uri = redirect_uri
        self._wait_s = wait_s

    async def authorize(self, url: str) -> Mapping[str, str]:
        state, path = read_state(url), urlsplit(self.redirect_uri).path

        def parse(text: str) -> Mapping[str, str] | None:
            # Some browsers omit the scheme, and users may copy just the part after the question mark.
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
    """Open a page in a graphical browser and return whether that worked. A text browser would take the terminal."""
    has_display = sys.platform == "darwin" or any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")))
    if not has_display:
        return False
    import webbrowser  # noqa: PLC0415 — looks for browsers on import

    return webbrowser.open(url)


class StandardInputDialog:
    """The dialog of a process without a terminal: prints status lines and reads answers from standard input."""

    def show(self, text: str, /) -> None:
        """Print one line."""
        print_status(text)

    async def ask(self, question: Question, /) -> Reply:
        """Print a question and read one line. Invalid or missing input counts as cancelled."""
        for line in (question.title, *question.lines):
            print_status(line)
        data = bytearray()
        while b"\n" not in data and len(data) < _MAX_LINE_BYTES:
            try:
                await anyio.wait_readable(_STDIN)
            except OSError:
                pass  # files are always readable, but epoll(7) rejects them
            chunk = await to_thread.run_sync(os.read, _STDIN, 4096)
            if not chunk:
                break
            data += chunk
        text = data.partition(b"\n")[0].decode("utf-8", "replace").strip()
        problem = None if question.check is None else question.check(text)
        if problem is not None:
            print_status(problem)
        return Reply(text=text, cancelled=not text or problem is not None)
