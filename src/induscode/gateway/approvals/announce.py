"""Announces a request for approval as the user chose: a desktop notification, a webhook, or a command.

It names the call but has none of its arguments: `indus approvals show` and the page do. A command runs without a shell
and gets the request as JSON on standard input; a webhook gets the same JSON by the guarded HTTP client.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from indusagi.core.faults import Note
from indusagi.core.json import JsonObject, compact_json
from indusagi.core.process.child import ChildProcess, KeptOutput
from indusagi.core.time import iso_utc
from indusagi.interop.auth.secrets import SecretFault, reveal_value
from indusagi.net.address import FetchError, HttpPolicy, parse_url
from indusagi.net.client import CrossSiteRedirect, WebClient, WebRequest

if TYPE_CHECKING:
    from induscode.gateway.approvals.store import Approval

_COMMAND_S: Final = 15.0
_REDIRECTED: Final = 300
_MACOS: Final = "on run argv\ndisplay notification (item 2 of argv) with title (item 1 of argv)\nend run"
_MARKUP: Final = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})


class AnnouncementError(Exception):
    """The announcement failed."""


async def announce(approval: Approval, target: str | Sequence[str]) -> Note | None:
    """Announce a request to `desktop`, a URL or a command, and return a note if that failed."""
    try:
        target = await reveal_value(target)
        if not isinstance(target, str):
            await _run(target, compact_json(build_announcement(approval)).encode())
        elif target == "desktop":
            await _run(build_desktop_command(approval), b"")
        else:
            await _post(target, compact_json(build_announcement(approval)).encode())
    except (AnnouncementError, SecretFault) as exc:
        remedy = "indus approvals list shows the call; correct the setting approvals.notify"
        return Note("a call that needs approval wasn't announced", str(exc), remedy)
    return None


def build_announcement(approval: Approval) -> JsonObject:
    """Build what a command or webhook gets."""
    return {
        "approval": approval.id,
        **{name: getattr(approval, name) for name in ("title", "tool", "server", "principal", "client", "node")},
        "expires_at": iso_utc(approval.expires_ms),
        "show": f"indus approvals show {approval.id}",
    }


def build_desktop_command(approval: Approval, platform: str = sys.platform) -> Sequence[str]:
    """Build the command that shows a notification: notify-send(1), on macOS osascript(1)."""
    title, text = "A call needs your approval", f"{approval.title} (indus approvals list)"
    if platform == "darwin":
        return ["osascript", "-e", _MACOS, title, text]
    # The text may be markup: https://specifications.freedesktop.org/notification-spec/latest/markup.html.
    return ["notify-send", "--app-name=indus", "--", title, text.translate(_MARKUP)]


async def _post(url: str, body: bytes) -> None:
    # The user chose this address, so any network is fine; redirects to other origins aren't.
    # Messages leave out the address, which may be a secret.
    try:
        target = parse_url(url)
        client = WebClient(HttpPolicy(allow_private=(target.server,), ports=(target.port,)))
        headers = {"Content-Type": "application/json"}
        answer = await client.send(WebRequest(url, "POST", headers, body, follow="origin"))
    except FetchError as exc:
        raise AnnouncementError(f"the webhook doesn't answer ({exc.code})") from None
    if isinstance(answer, CrossSiteRedirect) or answer.status >= _REDIRECTED:
        raise AnnouncementError(f"the webhook answers with status {answer.status}")


async def _run(argv: Sequence[str], data: bytes) -> None:
    child = ChildProcess(KeptOutput())
    try:
        async with asyncio.timeout(_COMMAND_S):
            await child.start(argv, os.environ, None)
            child.write(data)
            child.close_input()
            await child.exited.wait()
    except TimeoutError:
        raise AnnouncementError(f"{argv[0]} took longer than {_COMMAND_S:g} s") from None
    except (OSError, ValueError) as exc:
        raise AnnouncementError(f"{argv[0]} cannot be started: {exc}") from None
    finally:
        with suppress(OSError):
            await child.end(0.5, drain_s=0.5)
    if child.exit_code:
        raise AnnouncementError(f"{argv[0]} failed (exit code {child.exit_code})")
