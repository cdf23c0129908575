"""Tries a server that isn't configured: packages with their versions, and a start that leaves nothing behind.

A package starts in an exact version, which its client names (`npm view`, `pip index versions`): the client's own
settings say which index it asks. The server gets a temporary home and workspace, which are removed at the end.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from time import monotonic

import anyio
from anyio import CancelScope, to_thread

from indusagi.capabilities.leftovers import make_owned_dir
from indusagi.capabilities.sandbox.behaviour import Behaviour, RefusedUse
from indusagi.capabilities.sandbox.trace import SandboxObserver
from indusagi.core.cancel import CancelToken
from indusagi.core.faults import CoreError, Note
from indusagi.core.json import JsonObject, JsonValue, is_json_object
from indusagi.core.process.child import ChildProcess, KeptOutput
from indusagi.core.records import record
from indusagi.core.text import clean_text, cut_text
from indusagi.interop.protocol_bridge.client.handlers import Handlers
from indusagi.interop.protocol_bridge.client.start import StartHistory
from indusagi.interop.protocol_bridge.contract import (
    ProtocolFault,
    RemoteTool,
    RemoteToolRef,
    ServerConfig,
    StdioServerConfig,
    to_tool_result,
)
from indusagi.interop.protocol_bridge.endpoint import EndpointEvent, ServerEndpointImpl, create_server_endpoint
from indusagi.runtime.contract import ToolOutcome
from induscode.boot.runners import explain_slow_start
from induscode.cli.terminal import show_live_line
from induscode.deck.mcp.content import CONTENT_KINDS
from induscode.deck.mcp.drift import Drift, compare_definitions
from induscode.deck.mcp.review import Finding, review_items
from induscode.deck.mcp.store import LedgerStore
from induscode.deck.mcp.store.journal import Journal
from induscode.deck.mcp.store.pins import StorePins
from induscode.search.options import estimate_definition
from induscode.servers.config.trust import server_identity
from induscode.servers.registry import EXACT_VERSIONS, IDENTIFIERS, LAUNCHERS

# -- packages ---------------------------------------------------------------------------------

_CLIENT_TIMEOUT_S = 60.0
_MAX_CLIENT_BYTES = 4 * 1024 * 1024
_RELEASE = re.compile(r"\d+(?:\.\d+)*(?:\.post\d+)?")
"""A version that isn't a preview."""


class PackageError(CoreError):
    """There's no such package or version, or its client can't say."""


@record
class Package:
    """A package of npm or PyPI. Without a version, it's the latest."""

    kind: str
    name: str
    version: str = ""

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}" + (f"@{self.version}" if self.version else "")

    @property
    def words(self) -> tuple[str, ...]:
        """The command line that starts it."""
        return (LAUNCHERS[self.kind], *(["-y"] if self.kind == "npm" else []), f"{self.name}@{self.version}")


def parse_package(text: str) -> Package | None:
    """Parse `npm:NAME@VERSION`, `pypi:NAME@VERSION` or `pypi:NAME==VERSION`; return `None` for anything else.

    Raises `PackageError` if the name or the version is invalid.
    """
    kind, colon, rest = text.partition(":")
    if not colon or kind not in {"npm", "pypi"}:
        return None
    name, _, version = rest.replace("==", "@", 1).rpartition("@") if "@" in rest[1:] or "==" in rest else (rest, "", "")
    package = Package(kind, name, "" if version == "latest" else version)
    if IDENTIFIERS[kind].fullmatch(name) is None:
        raise PackageError(f"{text!r} doesn't name a package: write {kind}:NAME or {kind}:NAME@VERSION")
    if package.version and EXACT_VERSIONS[kind].fullmatch(package.version) is None:
        raise PackageError(f"{text!r} doesn't name an exact version; leave it out for the latest")
    return package


async def find_versions(package: Package) -> Sequence[str]:
    """Ask the client of a package's index for all versions, the latest release last.

    Raises `PackageError` if the client is missing, fails, or doesn't answer in time.
    """
    if package.kind == "npm":
        output = await _run_client(["npm", "view", package.name, "versions", "dist-tags", "--json"], package)
        with suppress(ValueError):
            answer: JsonValue = json.loads(output)
            versions, tags = (
                (answer.get(key) for key in ("versions", "dist-tags")) if is_json_object(answer) else (0, 0)
            )
            known = [versions] if isinstance(versions, str) else versions if isinstance(versions, list) else []
            latest = tags.get("latest") if is_json_object(tags) else None
            names = [str(one) for one in known]
            # Versions after the latest are previews, which only their number starts.
            return names[: names.index(str(latest)) + 1] if latest in known else names
    else:
        from induscode.search.weights import find_pip  # noqa: PLC0415 — for packages of PyPI

        pip = await to_thread.run_sync(find_pip) or ["pip"]
        output = await _run_client(
            [*pip, "--no-input", "--no-cache-dir", "--disable-pip-version-check", "index", "versions", package.name],
            package,
        )
        if match := re.search(r"Available versions: (.+)", output):
            return [version.strip() for version in reversed(match[1].split(","))]
    raise PackageError(f"{package}: its index lists no versions")


async def pin_package(package: Package) -> Package:
    """Return a package in an exact version: its own, or the latest; raises `PackageError` if there's none."""
    return package if package.version else replace(package, version=(await find_versions(package))[-1])


async def find_former(package: Package, version: str) -> Package:
    """Return a package in the `version`, or in the release before its own without one.

    Raises `PackageError` if there's none.
    """
    if version:
        return parse_package(f"{package.kind}:{package.name}@{version}") or package
    versions = await find_versions(package)
    before = versions[: versions.index(package.version)] if package.version in versions else versions
    releases = [one for one in before if _RELEASE.fullmatch(one)]
    if not releases:
        raise PackageError(f"{package}: its index lists no release before it")
    return replace(package, version=releases[-1])


async def _run_client(argv: Sequence[str], package: Package) -> str:
    output = KeptOutput(_MAX_CLIENT_BYTES, last_error_bytes=1_000)
    child = ChildProcess(output)
    folder = await to_thread.run_sync(make_owned_dir)
    try:
        with anyio.fail_after(_CLIENT_TIMEOUT_S):
            # In a directory where no project has settings. npm writes logs to its cache.
            environ = {**os.environ, "npm_config_cache": folder, "npm_config_update_notifier": "false"}
            await child.start(argv, environ, folder, with_input=False)
            await child.exited.wait()
            await child.output_ended.wait()
            await child.errors_ended.wait()
    except TimeoutError:
        raise PackageError(f"{package}: {argv[0]} has not answered within {_CLIENT_TIMEOUT_S:g} s") from None
    except OSError as exc:
        raise PackageError(f"{package}: {argv[0]} can't be started: {exc.strerror}") from exc
    finally:
        await child.end(1.0)
        with CancelScope(shield=True):
            await to_thread.run_sync(_remove, folder)
    if child.exit_code != 0:
        lines = clean_text(output.errors.decode("utf-8", "replace"))[0].replace("npm error", "").splitlines()
        reason = "; ".join(line.strip() for line in lines if line.strip())
        raise PackageError(f"{package}: {cut_text(reason, 300) or f'{argv[0]} failed'}")
    return output.data.decode("utf-8", "replace")


# -- trials -----------------------------------------------------------------------------------


@dataclass(slots=True)
class Trial:
    """A server that nothing remembers, while it runs and after."""

    config: ServerConfig
    endpoint: ServerEndpointImpl
    items: Sequence[RemoteTool] = ()
    notes: Sequence[Note] = ()
    start_ms: int = 0
    facts: JsonObject = field(default_factory=dict[str, "JsonValue"])
    """Its name and version, and the version of the protocol."""
    behaviour: Behaviour | None = None
    """What it used, once it has been watched."""
    refusals: Sequence[RefusedUse] = ()
    """What it asked for and didn't get while it was watched."""

    @property
    def tools(self) -> Sequence[RemoteTool]:
        """Its tools."""
        return [item for item in self.items if item.ref.kind == "tool"]

    @property
    def tokens(self) -> int:
        """The estimated size of its tools for a model."""
        return sum(estimate_definition(tool.descriptor) for tool in self.tools)

    @property
    def definitions(self) -> Mapping[RemoteToolRef, JsonObject]:
        """Its definitions as it sent them."""
        return {item.ref: item.raw for item in self.items}

    def as_json(self) -> JsonObject:
        """Return what it offers, for `--json`."""
        items: list[JsonValue] = [
            {
                "kind": item.ref.kind,
                "name": item.ref.name,
                "tokens": estimate_definition(item.descriptor),
                "definition": item.raw,
            }
            for item in self.items
        ]
        facts: JsonObject = {"server": self.facts, "startMs": self.start_ms, "tokens": self.tokens, "items": items}
        facts["behaviour"] = None if self.behaviour is None else self.behaviour.as_json()
        facts["refused"] = [{"target": one.target, "key": one.key, "reason": one.reason} for one in self.refusals]
        return {**facts, "notes": [str(note) for note in self.notes]}

    def review(self, known_names: Mapping[str, str]) -> Sequence[Finding]:
        """Review its definitions; see `review_items`."""
        return review_items(self.config.id, self.definitions, known_names)

    def compare(self, former: Trial) -> Sequence[Drift]:
        """List how its definitions differ from those of a former version."""
        return compare_definitions(former.definitions, self.definitions)

    async def learn(self) -> None:
        """Find out what it has used, if it's watched."""
        observer = getattr(getattr(self.config, "sandbox", None), "observer", None)
        if observer is not None:
            self.behaviour = await to_thread.run_sync(observer.find_behaviour)
            self.refusals = await to_thread.run_sync(observer.find_refusals)

    async def call(self, name: str, arguments: JsonObject, cancel: CancelToken) -> ToolOutcome:
        """Call a tool; raises `ProtocolFault` if the server fails."""
        return ToolOutcome(name, to_tool_result(await self.endpoint.invoke(name, arguments, cancel=cancel)))


@asynccontextmanager
async def open_trial(
    config: ServerConfig, handlers: Handlers | None = None, *, is_watched: bool = False
) -> AsyncGenerator[Trial]:
    """Start a server in a temporary home and workspace, list its items, and remove all of it after the block.

    If it's watched, it uses the network through a proxy, which reaches as much as its profile does.

    Raises `ProtocolFault` if it can't be started, or its tools can't be listed.
    """
    folder = await to_thread.run_sync(make_owned_dir)
    try:
        if isinstance(config, StdioServerConfig):
            home, work = (os.path.join(folder, name) for name in ("home", "work"))
            await anyio.Path(work).mkdir(0o700)
            sandbox = None if config.sandbox is None else replace(config.sandbox, home=home)
            if is_watched and sandbox is not None:
                sandbox = replace(sandbox, observer=SandboxObserver(reaches_private=sandbox.reaches_all))
            config = replace(config, cwd=work, sandbox=sandbox)

        def handle_event(event: EndpointEvent) -> None:
            slow = endpoint.status().slow_start
            if event == "slow_start" and slow is not None:
                show_live_line(config.id, explain_slow_start(slow))

        endpoint = create_server_endpoint(config, handlers=handlers, on_event=handle_event, history=StartHistory())
        try:
            trial = Trial(config, endpoint)
            try:
                await _list_items(trial)
            finally:
                show_live_line(config.id, "")
            yield trial
        finally:
            await endpoint.close()
    finally:
        with CancelScope(shield=True):
            await to_thread.run_sync(_remove, folder)


async def _list_items(trial: Trial) -> None:
    endpoint, began = trial.endpoint, monotonic()
    await endpoint.open()
    trial.start_ms = round((monotonic() - began) * 1000)
    if endpoint.facts is not None:
        info = endpoint.facts.server_info or {}
        trial.facts = {"name": info.get("name"), "version": info.get("version"), "protocol": endpoint.facts.version}
    items = [*await endpoint.list_tools()]
    for kind in CONTENT_KINDS:
        with suppress(ProtocolFault):  # the status has a note about it
            items += await endpoint.list_items(kind)
    trial.items, trial.notes = items, endpoint.status().notes


def _remove(folder: str) -> None:
    from shutil import rmtree  # noqa: PLC0415 — after a trial

    def make_writable(function: object, path: str, _: object) -> None:
        # Go's module cache is read-only.
        with suppress(OSError):
            os.chmod(os.path.dirname(path), 0o700)
            os.remove(path)

    rmtree(folder, onerror=make_writable)
    rmtree(folder, ignore_errors=True)


async def pin_definitions(
    store: LedgerStore, config: ServerConfig, definitions: Mapping[RemoteToolRef, JsonObject], place: str
) -> bool:
    """Approve exactly these definitions for a server that has just been added, and return whether they're stored.

    Everything else it lists later is an addition.
    """
    journal = Journal(store, [config])
    pins = StorePins(journal)
    journal.record_place(config.id, place, server_identity(config))
    for ref, raw in definitions.items():
        pins.approve(RemoteToolRef(config.id, ref.name, ref.kind), raw)
    for kind in ("tool", *CONTENT_KINDS):
        pins.finish_listing(config.id, kind)
    return await store.flush()
