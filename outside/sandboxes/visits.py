"""One start of a server: what it listed, and what it answered, in a form that can be compared."""

from __future__ import annotations

import asyncio
import re
import shutil
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from indusagi.core.json import compact_json, is_json_object
from indusagi.interop import ProtocolFault, ServerLimits, create_server_endpoint
from indusagi.interop.protocol_bridge.contract import LISTED_KINDS, StdioServerConfig
from outside.host import agreeable

if TYPE_CHECKING:
    from pathlib import Path

    from indusagi.capabilities.sandbox.profile import ServerProfile
    from indusagi.core.json import JsonValue
    from indusagi.interop import ServerEndpointImpl
    from outside.servers import Server

_DEADLINE_S = 120.0
_LIMITS = ServerLimits(connect_s=60.0, call_idle_s=40.0)
_CHANCE = re.compile(r"[0-9a-fA-F]{8}-[0-9a-fA-F-]{27}|\d[\d.,:+TZ-]*|\b[0-9a-f]{7,40}\b|\x1b\[[0-9;]*m")
"""Times, ids and process numbers, which differ from start to start."""
_UNREACHABLE = re.compile(r"ENOTFOUND|Name or service not known|can't be reached|status code #")
"""How servers say that a host can't be reached, and what our proxy says then."""
_WORD = re.compile(r"\w+")


@dataclass(slots=True)
class Outcome:
    """What came of one start."""

    listed: dict[str, str] = field(default_factory=dict[str, str])
    """Each item's definition by its kind and name."""
    answers: list[str] = field(default_factory=list[str])
    fault: str = ""

    def differs_from(self, other: Outcome, *, is_offline: bool = False) -> str:
        """Say in what it differs; empty if in nothing.

        With `is_offline`, servers may say in other words that a host can't be reached.
        """
        if self.fault or other.fault:
            return self.fault or other.fault
        for name in self.listed.keys() ^ other.listed.keys():
            return f"{name} is {'more' if name in self.listed else 'missing'}"
        for name, definition in self.listed.items():
            if definition != other.listed[name]:
                return f"{name} is defined in another way"
        for mine, theirs in zip(self.answers, other.answers, strict=True):
            if mine != theirs and not (is_offline and _UNREACHABLE.search(mine) and _UNREACHABLE.search(theirs)):
                return f"it answers {mine!r} in place of {theirs!r}"
        return ""


class Surroundings:
    """A home and a workspace that every start finds as the first one did, at the same places."""

    def __init__(self, folder: Path, template: Path) -> None:
        self.home, self.work = folder / "home", folder / "work"
        self._state, self._template = folder / "state", template

    def renew(self) -> None:
        """Make them anew."""
        for path in (self.home, self.work, self._state):
            shutil.rmtree(path, ignore_errors=True)
        self.home.mkdir()
        shutil.copytree(self._template, self.work, symlinks=True)


def build_config(server: Server, work: Path) -> StdioServerConfig:
    """Make the configuration of a server, without a sandbox."""
    command, *arguments = server.command
    return StdioServerConfig(server.id, command, arguments, server.env, cwd=str(work), limits=_LIMITS)


async def start_once(server: Server, surroundings: Surroundings, profile: ServerProfile | None) -> Outcome:
    """Start a server in a profile, list everything, make its calls and end it."""
    surroundings.renew()
    outcome = Outcome()
    config = replace(build_config(server, surroundings.work), sandbox=profile)
    endpoint = create_server_endpoint(config, handlers=agreeable())
    try:
        async with asyncio.timeout(_DEADLINE_S):
            await endpoint.open()
            for kind in ("tool", *LISTED_KINDS):
                for item in await endpoint.list_items(kind):
                    outcome.listed[f"{kind} {item.ref.name}"] = compact_json(_sort(item.raw))
            for call in server.calls:
                answer = (await _call(endpoint, call.tool, call.arguments)).replace(str(surroundings.work), "WORK")
                outcome.answers.append(_CHANCE.sub("#", answer)[:4000])
    except (ProtocolFault, TimeoutError) as exc:
        fault = str(exc) or f"it took more than {_DEADLINE_S:g} s"
        outcome.fault = fault.replace(str(surroundings.work), "WORK")
    finally:
        await endpoint.close()
    return outcome


async def _call(endpoint: ServerEndpointImpl, tool: str, arguments: JsonValue) -> str:
    try:
        result = await endpoint.invoke(tool, arguments)
    except ProtocolFault as fault:
        return f"fault: {fault}"
    texts = [str(block.get("text", block.get("type", ""))) for block in result.content if is_json_object(block)]
    return f"{'error: ' if result.is_error else ''}{' '.join(texts)}"


def _sort(value: JsonValue) -> JsonValue:
    """Sort keys, lists and words: some servers give them in another order at every start."""
    if is_json_object(value):
        return {key: _sort(value[key]) for key in sorted(value)}
    if isinstance(value, list | tuple):
        items = [_sort(item) for item in value]
        return sorted(items, key=str)
    return " ".join(sorted(_WORD.findall(value))) if isinstance(value, str) else value
