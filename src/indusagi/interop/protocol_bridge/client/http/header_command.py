"""Headers from a command that prints them as a JSON object; it runs again after a 401.

For credentials managed by another program (`vault`, `gcloud`, a company's helper). The command runs without a shell,
with a server process's environment plus the server's name and URL in `INDUS_SERVER` and `INDUS_SERVER_URL`. Its output
is secret and never appears in messages.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import Sequence

from indusagi.core.json import is_json_object
from indusagi.core.process.child import ChildProcess
from indusagi.interop.auth.contract import AuthFault, Refusal
from indusagi.interop.protocol_bridge.client.stdio import child_environment

_MAX_OUTPUT_BYTES = 64 * 1024
# RFC 9110 §5.1 (field names are tokens), §5.5 (field values)
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE = re.compile(r"[\x20-\x7e\t]*")
_UNAUTHORIZED = 401


def is_valid_header(name: str, value: str) -> bool:
    """Return whether a header can be sent."""
    return bool(_HEADER_NAME.fullmatch(name) and _HEADER_VALUE.fullmatch(value))


class HeaderCommand:
    """Authorizer that gets its headers from a command; one run serves all requests until a 401."""

    def __init__(self, command: Sequence[str], server: str, url: str, within_s: float) -> None:
        self._command = command
        self._server = server
        self._url = url
        self._within_s = within_s
        self._headers: dict[str, str] | None = None
        self._is_accepted = False
        self._lock = asyncio.Lock()

    async def build_headers(self, method: str, url: str) -> dict[str, str]:
        """Return the headers of the last run; the first request runs the command."""
        if self._headers is None:
            async with self._lock:
                if self._headers is None:
                    self._headers, self._is_accepted = await self._run(), False
        return self._headers

    async def handle_refusal(self, sent: dict[str, str], refusal: Refusal) -> bool:
        """Discard refused headers, so that the command runs again, unless they come from a fresh run."""
        if refusal.status != _UNAUTHORIZED:
            return False
        if sent is not self._headers:
            return True  # another request has run the command in between
        if not self._is_accepted:
            return False
        self._headers = None
        return True

    def accept(self, sent: dict[str, str], nonce: str) -> None:
        """Record that the server accepted the headers."""
        self._is_accepted = self._is_accepted or sent is self._headers

    async def close(self) -> None:
        """Do nothing: each run belongs to a request."""

    async def _run(self) -> dict[str, str]:
        output = _CommandOutput()
        child = ChildProcess(output)
        own = {"INDUS_SERVER": self._server, "INDUS_SERVER_URL": self._url}
        owner = f"the header command of server {self._server!r}"
        try:
            async with asyncio.timeout(self._within_s):
                await child.start(self._command, child_environment(os.environ, own), None, with_input=False)
                await child.output_ended.wait()
                await child.exited.wait()
        except TimeoutError:
            raise AuthFault(f"{owner} took longer than {self._within_s:g} s", is_transient=True) from None
        except (OSError, ValueError) as exc:
            raise AuthFault(f"{owner} cannot be started: {exc}") from exc
        finally:
            await child.end(0.5, drain_s=0.5)
        if child.exit_code:
            raise AuthFault(f"{owner} failed (exit code {child.exit_code})", is_transient=True)
        headers = _parse_headers(bytes(output.data))
        if headers is None:
            raise AuthFault(f"{owner} printed no JSON object of header names and texts")
        return headers


def _parse_headers(data: bytes) -> dict[str, str] | None:
    try:
        document: object = json.loads(data)
    except (ValueError, RecursionError):
        return None
    if not is_json_object(document) or not document:
        return None
    headers = {name.lower(): value for name, value in document.items() if isinstance(value, str)}
    is_valid = all(is_valid_header(name, value) for name, value in headers.items())
    return headers if is_valid and len(headers) == len(document) else None


class _CommandOutput:
    """The command's standard output, up to a limit; standard error is dropped."""

    def __init__(self) -> None:
        self.data = bytearray()

    def stdout_received(self, data: bytes) -> None:
        self.data += data[: _MAX_OUTPUT_BYTES - len(self.data)]

    def stderr_received(self, data: bytes) -> None:
        """Drop it: it may contain a secret."""

    def state_changed(self) -> None:
        """Ignore it: `_run` waits for the child."""
