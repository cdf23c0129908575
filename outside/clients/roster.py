"""The clients: how each is started, and how it cancels.

Three are libraries, with a program of a page each in `programs/`; two are commands, which are run
once for everything that is asked of them.
"""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from indusagi.core.json import is_json_object
from outside.clients.report import BOOK, PROMPT, RESOURCE, TEXT, NoReport, Report, read_report

if TYPE_CHECKING:
    from collections.abc import Sequence

    from indusagi.core.json import JsonObject, JsonValue
    from outside.clients.running import Runs
    from outside.clients.subject import Target

_PROGRAMS = Path(__file__).with_name("programs")
_LAUNCHER = "@modelcontextprotocol/inspector/clients/launcher/build/index.js"
_SIGINT, _ABORT, _TASK = "SIGINT to the client", "AbortSignal", "its task is cancelled"


class Way(Protocol):
    """How a client is made to do what is asked of it."""

    def visit(self, target: Target, runs: Runs) -> Report:
        """Let it do everything once.

        Raises:
            NoReport: It does not come to an end.
        """
        ...


@dataclass(frozen=True, slots=True)
class Client:
    """A client in one of the ways it can be used."""

    name: str
    way: Way
    cancels: str
    """By what a call that runs is cancelled."""


@dataclass(frozen=True, slots=True)
class Program:
    """A program of ours around a client library."""

    command: Sequence[str]
    more: JsonObject

    def visit(self, target: Target, runs: Runs) -> Report:
        """Run it; it reports by itself."""
        wanted: JsonObject = {"text": TEXT, "resource": RESOURCE, "prompt": PROMPT, "book": BOOK}
        asked = {**target.as_json(), **self.more, **wanted}
        return read_report(runs.result(*self.command, json.dumps(asked)))


@dataclass(frozen=True, slots=True)
class Inspector:
    """The Inspector's command."""

    command: Sequence[str]
    era: str

    def visit(self, target: Target, runs: Runs) -> Report:
        """Run it once for each thing."""

        def ask(method: str, *arguments: str) -> list[str]:
            how = [*self.command, "--cli", "--protocol-era", self.era, "--format", "json", "-q"]
            return [*how, *arguments, "--method", method, *_can_reach(target)]

        def call(tool: str, *arguments: str) -> JsonObject:
            return _object(_object(runs.result(*ask_tool(tool, *arguments))).get("result"))

        def ask_tool(tool: str, *arguments: str) -> list[str]:
            return ask("tools/call", "--tool-name", f"shelf__{tool}", *arguments)

        said = ("--tool-args-json", json.dumps({"text": TEXT}))
        hello = _object(_object(runs.result(*ask("initialize"))).get("result"))
        tools = _object(_object(runs.result(*ask("tools/list"))).get("result"))
        failed = call("fail")
        read = _object(_object(runs.result(*ask("resources/read", "--uri", RESOURCE))).get("result"))
        named = ("--prompt-name", PROMPT, "--prompt-args", f"book={BOOK}")
        got = _object(_object(runs.result(*ask("prompts/get", *named))).get("result"))
        return Report(
            protocol=str(hello.get("protocolVersion")),
            tools=_names(tools),
            echoed=_text(call("echo", *said)),
            image=_image(call("picture")),
            resource=_content(read),
            prompt=_content(got),
            error=_text(failed) if failed.get("isError") is True else "",
            steps=None,
            uncancelled=runs.interrupted(*ask_tool("slow")),
            after=_text(call("echo", *said)),
        )


def _can_reach(target: Target) -> list[str]:
    if target.url:
        header = f"Authorization: Bearer {target.token}"
        return ["--transport", "http", "--server-url", target.url, "--header", header]
    return [*target.subject.command]


@dataclass(frozen=True, slots=True)
class FastMcp:
    """The command of FastMCP, which chooses the protocol by itself and does not tell which."""

    command: str

    def visit(self, target: Target, runs: Runs) -> Report:
        """Run it once for each thing."""
        spoken_to = (
            ["--server-spec", target.url, "--auth", target.token]
            if target.url
            else ["--command", shlex.join(target.subject.command)]
        )

        def ask(what: str, *arguments: str) -> list[str]:
            return [self.command, what, *spoken_to, "--json", *arguments]

        def call(tool: str, *arguments: str) -> JsonObject:
            return _object(runs.result(*ask("call", "--target", f"shelf__{tool}", *arguments)))

        said = ("--input-json", json.dumps({"text": TEXT}))
        failed = call("fail")
        read = runs.result(*ask("call", "--target", RESOURCE))
        got = runs.result(*ask("call", "--target", PROMPT, "--prompt", "--input-json", json.dumps({"book": BOOK})))
        return Report(
            protocol="",
            tools=_names(_object(runs.result(*ask("list")))),
            echoed=_text(call("echo", *said)),
            image=_image(call("picture")),
            resource=_content(read),
            prompt=_content(got),
            error=_text(failed) if failed.get("is_error") is True else "",
            steps=None,
            uncancelled=runs.interrupted(*ask("call", "--target", "shelf__slow")),
            after=_text(call("echo", *said)),
        )


def clients(node: Path, packages: Path, modern: Path, legacy: Path) -> list[Client]:
    """List them all; paths are not looked at."""
    inspector = [str(node), str(packages / _LAUNCHER)]
    typescript = [str(node), str(_PROGRAMS / "typescript.mjs")]
    langchain = [str(legacy / "python"), str(_PROGRAMS / "langchain.py")]
    agents = [str(modern / "python"), str(_PROGRAMS / "openai_agents.py")]
    where: JsonObject = {"packages": str(packages)}
    return [
        Client("Inspector CLI, legacy", Inspector(inspector, "legacy"), _SIGINT),
        Client("Inspector CLI, modern", Inspector(inspector, "modern"), _SIGINT),
        Client("TypeScript SDK", Program(typescript, {**where, "era": "legacy"}), _ABORT),
        Client("TypeScript SDK, auto", Program(typescript, {**where, "era": "auto"}), _ABORT),
        Client("fastmcp CLI", FastMcp(str(modern / "fastmcp")), _SIGINT),
        Client("langchain-mcp-adapters", Program(langchain, {}), _TASK),
        Client("openai-agents", Program(agents, {}), _TASK),
    ]


def _object(value: JsonValue) -> JsonObject:
    if is_json_object(value):
        return value
    raise NoReport(f"{value!r} is no result")


def _blocks(result: JsonObject) -> list[JsonObject]:
    content = result.get("content")
    return [block for block in content if is_json_object(block)] if isinstance(content, list) else []


def _text(result: JsonObject) -> str:
    return "".join(str(block.get("text", "")) for block in _blocks(result))


def _content(value: JsonValue) -> str:
    """Give the texts of a resource or of a prompt, wherever a client puts them."""
    if isinstance(value, list):
        return "".join(map(_content, value))
    if not is_json_object(value):
        return ""
    text = value.get("text")
    inner = (value.get(key) for key in ("contents", "messages", "content", "resource"))
    return text if isinstance(text, str) else "".join(map(_content, inner))


def _image(result: JsonObject) -> tuple[str, str]:
    for block in _blocks(result):
        if block.get("type") == "image":
            return str(block.get("mimeType")), str(block.get("data"))
    return "", ""


def _names(listing: JsonObject) -> list[str]:
    tools = listing.get("tools")
    return [str(_object(tool).get("name")) for tool in tools] if isinstance(tools, list) else []
