"""What is to be pasted into the configuration of an MCP client, so that it has this gateway."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from indusagi.core.json import JsonObject, JsonValue

TOKEN_VARIABLE = "INDUS_SERVE_TOKEN"
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_BRACED = re.compile(r"\$\{[^}]*\}")
_DOLLARED = re.compile(r"\$(?:\w+|\{[^}]*\})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where a gateway behind HTTP is found."""

    url: str
    with_token: bool
    sse: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One way to reach the gateway: a command that starts it, or an address."""

    name: str
    command: Sequence[str]
    address: Address | None = None


@dataclass(frozen=True, slots=True)
class Client:
    """An MCP client: how an entry of its configuration is written, and where it belongs."""

    place: str
    write: Callable[[Entry], str]
    replaces: re.Pattern[str] | None
    """What it takes for a variable in a command line; none of them has a way to say it is not."""

    def trouble_with(self, entry: Entry) -> str | None:
        """Say what of an entry cannot be written for this client; None if everything can."""
        for word in entry.command if entry.address is None else ():
            try:
                word.encode()
            except UnicodeEncodeError:
                return f"{word!r} is not UTF-8, as the file of a client has to be"
            found = None if self.replaces is None else self.replaces.search(word)
            if found is not None:
                return f"{word!r} would be read with a value in the place of {found[0]!r}"
        return None


def own_command() -> Sequence[str]:
    """Give the command line that starts this very program, with nothing left to a search."""
    program = sys.argv[0]
    if os.path.basename(program) == "__main__.py":
        return (sys.executable, "-m", "induscode")
    found = program if os.path.dirname(program) else shutil.which(program)
    return (os.path.abspath(found or program),)


# -- clients ----------------------------------------------------------------------------------


def _json(document: JsonObject) -> str:
    return json.dumps(document, indent=2)


def _started(entry: Entry) -> JsonObject:
    return {"command": entry.command[0], "args": [*entry.command[1:]]}


def _header(address: Address, reference: str) -> JsonObject:
    return {"headers": {"Authorization": f"Bearer {reference}"}} if address.with_token else {}


def _claude(entry: Entry) -> str:
    row: JsonObject
    if entry.address is None:
        row = {"type": "stdio", **_started(entry)}
    else:
        kind = "sse" if entry.address.sse else "http"
        header = _header(entry.address, f"${{{TOKEN_VARIABLE}}}")
        row = {"type": kind, "url": entry.address.url, **header}
    return _json({"mcpServers": {entry.name: row}})


def _cursor(entry: Entry) -> str:
    row = _started(entry)
    if entry.address is not None:
        row = {"url": entry.address.url, **_header(entry.address, f"${{env:{TOKEN_VARIABLE}}}")}
    return _json({"mcpServers": {entry.name: row}})


def _vscode(entry: Entry) -> str:
    if entry.address is None:
        return _json({"servers": {entry.name: {"type": "stdio", **_started(entry)}}})
    asked = f"{entry.name}-token"
    kind = "sse" if entry.address.sse else "http"
    header = _header(entry.address, f"${{input:{asked}}}")
    row: JsonObject = {"type": kind, "url": entry.address.url, **header}
    question: JsonObject = {
        "type": "promptString",
        "id": asked,
        "description": f"Token of {entry.name}",
        "password": True,
    }
    inputs: list[JsonValue] = [question] if entry.address.with_token else []
    return _json({"inputs": inputs, "servers": {entry.name: row}})


def _gemini(entry: Entry) -> str:
    row = _started(entry)
    if entry.address is not None:
        url = entry.address.url
        where: JsonObject = {"url": url, "type": "sse"} if entry.address.sse else {"httpUrl": url}
        row = {**where, **_header(entry.address, f"${TOKEN_VARIABLE}")}
    return _json({"mcpServers": {entry.name: row}})


def _codex(entry: Entry) -> str:
    key = entry.name if _BARE_KEY.fullmatch(entry.name) else _toml(entry.name)
    lines = [f"[mcp_servers.{key}]"]
    if entry.address is None:
        arguments = ", ".join(map(_toml, entry.command[1:]))
        lines += [f"command = {_toml(entry.command[0])}", f"args = [{arguments}]"]
    else:
        lines.append(f"url = {_toml(entry.address.url)}")
        if entry.address.with_token:
            lines.append(f"bearer_token_env_var = {_toml(TOKEN_VARIABLE)}")
    return "\n".join(lines)


def _toml(text: str) -> str:
    """Write a basic string; what JSON escapes in pairs, TOML wants as it is or as one number."""
    quoted = json.dumps(text, ensure_ascii=False)
    return re.sub(r"[\x7f-\x9f\u2028\u2029]", lambda found: f"\\u{ord(found[0]):04X}", quoted)


CLIENTS = {
    "claude": Client(".mcp.json of a project, or: claude mcp add-json", _claude, _BRACED),
    "cursor": Client(".cursor/mcp.json of a project, or ~/.cursor/mcp.json", _cursor, _BRACED),
    "vscode": Client(
        ".vscode/mcp.json of a workspace, or 'MCP: Open User Configuration'", _vscode, _BRACED
    ),
    "codex": Client("~/.codex/config.toml", _codex, None),
    "gemini": Client(
        ".gemini/settings.json of a project, or ~/.gemini/settings.json", _gemini, _DOLLARED
    ),
}
