"""Delivers resources and prompts of a run's servers, subject to pins and permissions.

Items are addressed by server and the server's name or URI. The first request starts a sleeping server. Requests for
items disabled by drift fail with the remedy. The HTML of an MCP App (`ui://`) is pinned by digest on first read:
https://modelcontextprotocol.io/specification/2026-07-28/extensions/apps.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias, cast

from indusagi.capabilities.budget import UNLIMITED
from indusagi.core.json import JsonObject, JsonValue, is_json_object
from indusagi.core.records import record
from indusagi.core.text import clean_json
from indusagi.interop.protocol_bridge.client.skills import (
    DIRECTORY_READ,
    READ_DIRECTORY,
    SKILLS,
    find_mismatch,
    read_content,
)
from indusagi.interop.protocol_bridge.contract import FaultDetail, ProtocolFault, RemoteToolRef, qualify_tool_name
from indusagi.interop.protocol_bridge.fleet import send_past_move
from indusagi.interop.protocol_bridge.uris import matches_template, normalize_uri
from indusagi.runtime.calls import UNLISTED
from indusagi.runtime.contract import (
    JsonContentBlock,
    TextContentBlock,
    ToolCall,
    ToolDescriptor,
    ToolOutcome,
    ToolResult,
    project_content,
)
from induscode.deck.contract import BridgeFault, Capability
from induscode.deck.mcp.capability import BridgeCapability, RunRemote
from induscode.deck.mcp.enrolment import refuse_disabled

if TYPE_CHECKING:
    from indusagi.capabilities.context import ToolContext
    from indusagi.interop.protocol_bridge.contract import ItemKind
    from indusagi.interop.protocol_bridge.endpoint import ServerEndpointImpl
    from indusagi.runtime.contract import ProgressSink, ToolContentBlock
    from induscode.deck.mcp.boot import BootedBridge
    from induscode.deck.mcp.drift import DisabledTool

    Wrap: TypeAlias = Callable[[Capability], Capability]

CONTENT_KINDS: tuple[ItemKind, ...] = ("resource", "template", "prompt", "skill", "instructions")
"""Kinds to list and enrol for runs that offer more than tools."""
READ_RESOURCE = "read_resource"
"""Tool part of the name permission rules see: `github__read_resource`."""
_APP = "ui://"
_APP_TYPE = "profile=mcp-app"
_SKILL = "skill://"


class ContentRefused(BridgeFault):
    """A resource or prompt can't be used. The message has the remedy."""

    code = "drift"


class UnlistedPrompt(ContentRefused):
    """The server doesn't list this prompt."""

    code = "unknown_prompt"


class DeniedContent(ContentRefused):
    """A permission rule denies this resource or prompt."""

    code = "denied"


@record
class ContentUse:
    """A resource or prompt in use. Call observers see it in place of a tool."""

    ref: RemoteToolRef


class ServerContent:
    """Resources and prompts of a bridge's servers."""

    def __init__(self, bridge: BootedBridge, wrap: Wrap | None = None, context: ToolContext | None = None) -> None:
        """Use a bridge. `wrap` adds the permission check to each use, which runs in `context`."""
        self._bridge = bridge
        self._wrap = wrap
        self._context = context

    def list_items(self, kind: ItemKind) -> Sequence[BridgeCapability]:
        """List the enrolled items of a kind in configuration order."""
        rank = {server: index for index, server in enumerate(self._bridge.enrolment.list_servers())}
        items = self._bridge.ledger.live_items(kind)
        return sorted(items, key=lambda item: rank.get(item.ref.server, len(rank)))

    async def read_resource(self, server: str, uri: str, *, on_progress: ProgressSink | None = None) -> JsonObject:
        """Read a resource, listed or not, by the server's URI.

        Raises `ContentRefused` if it's disabled, its content doesn't match its pin, or a rule denies it, and
        `ProtocolFault` if the server is unavailable or refused.
        """
        ref = RemoteToolRef(server, uri, "resource")
        return await self._observe(ref, {"uri": uri}, self._read_resource(ref, on_progress))

    async def _read_resource(self, ref: RemoteToolRef, on_progress: ProgressSink | None) -> JsonObject:
        server, uri = ref.server, ref.name
        self._refuse_disabled(ref)
        result = await self._request(ref, "resources/read", {"uri": uri}, {"uri": uri}, on_progress)
        contents = result.get("contents")
        skills = self._bridge.ledger.live_capabilities_for_server(server, "skill")
        for skill in skills:
            problem = find_mismatch(skill.raw, uri, contents)
            if problem is not None:
                raise ContentRefused(f"{uri} of server {server!r} belongs to the skill {skill.ref.name!r}: {problem}")
        if uri.startswith(_SKILL) and skills:
            return result  # digests cover every character
        if not _is_app(uri, contents):
            return {**result, "contents": clean_json(contents)[0]} if contents else result
        if contents is not None:
            disabled = self._bridge.enrolment.check_content(read_content(server, uri, contents))
            if disabled is not None:
                raise ContentRefused(str(project_content(refuse_disabled(disabled).content)))
        return result

    async def get_prompt(
        self, server: str, name: str, arguments: JsonObject | None = None, *, on_progress: ProgressSink | None = None
    ) -> JsonObject:
        """Get the messages of a listed prompt by the server's name for it.

        Unlisted prompts have no definition to pin, so they're never requested.

        Raises:
            UnlistedPrompt: The server doesn't list it.
            ContentRefused: It's disabled, or a rule denies it.
            ProtocolFault: The server is unavailable or refused.
        """
        ref = RemoteToolRef(server, name, "prompt")
        return await self._observe(ref, arguments or {}, self._get_prompt(ref, arguments, on_progress))

    async def _get_prompt(
        self, ref: RemoteToolRef, arguments: JsonObject | None, on_progress: ProgressSink | None
    ) -> JsonObject:
        self._refuse_disabled(ref)
        if self._bridge.ledger.find(ref) is None:
            await self.open_item(ref)  # it may have appeared since an earlier run
        params: JsonObject = {"name": ref.name} if arguments is None else {"name": ref.name, "arguments": arguments}
        result = await self._request(ref, "prompts/get", params, arguments or {}, on_progress)
        return cast("JsonObject", clean_json(result)[0])

    async def get_skill(self, server: str, uri: str) -> JsonObject:
        """Get the approved entry of a skill by the server's URI of its `SKILL.md`.

        Raises `ContentRefused` if it's disabled, or the server doesn't list it, and `ProtocolFault` if the server is
        unavailable or refused.
        """
        ref = RemoteToolRef(server, uri, "skill")
        await self.open_item(ref)
        known = self._bridge.ledger.find(ref)
        if known is None:
            raise ContentRefused(f"server {server!r} lists no skill {uri!r}")
        return {"skill": clean_json(known[1].raw)[0]}

    async def read_directory(self, server: str, uri: str) -> JsonObject:
        """Read a directory of a skill with unlisted files, by the server's URI.

        Raises `ContentRefused` if the server can't list directories, and `ProtocolFault` if the server is unavailable
        or refused.
        """
        endpoint = await self.open_item(RemoteToolRef(server, uri, "resource"))
        if endpoint.facts is None or not endpoint.facts.offers(SKILLS, DIRECTORY_READ):
            raise ContentRefused(f"{uri} of server {server!r} is no directory")
        return cast("JsonObject", clean_json(await endpoint.request(READ_DIRECTORY, {"uri": uri}))[0])

    async def complete(self, server: str, params: JsonObject) -> JsonObject:
        """Ask a server for completions of a prompt argument or template variable.

        Raises `ContentRefused` if the prompt or template is disabled, and `ProtocolFault` if the server is unavailable
        or refused.
        """
        about = params.get("ref")
        name, uri = (about.get("name"), about.get("uri")) if is_json_object(about) else (None, None)
        ref = RemoteToolRef(server, str(name), "prompt") if uri is None else RemoteToolRef(server, str(uri), "template")
        endpoint = await self.open_item(ref)
        return cast("JsonObject", clean_json(await endpoint.request("completion/complete", params))[0])

    async def read_apps(self) -> Sequence[BridgeCapability]:
        """Read the HTML of every enrolled app, check it against its pin, and return the contents' descriptions."""
        contents: list[BridgeCapability] = []
        for item in self.list_items("resource"):
            if item.ref.name.startswith(_APP):
                with suppress(ProtocolFault):  # the status has the fault
                    endpoint = await self.wake(item.ref.server)
                    result = await endpoint.request("resources/read", {"uri": item.ref.name})
                    content = read_content(item.ref.server, item.ref.name, result.get("contents"))
                    self._bridge.enrolment.check_content(content)
                    contents.append(BridgeCapability.from_definition(content.descriptor, content.ref, content.raw))
        return contents

    async def wake(self, server: str) -> ServerEndpointImpl:
        """Start a server if it's asleep and return its endpoint.

        Raises `ProtocolFault` if it's gone, or couldn't be started.
        """
        endpoint = await self._bridge.fleet.reach(server)
        if endpoint is None:
            message = f"server {server!r} is not there any more"
            raise ProtocolFault("not_connected", message, detail=FaultDetail(server=server, reason="not_found"))
        return endpoint

    async def open_item(self, ref: RemoteToolRef) -> ServerEndpointImpl:
        """Start the server of an item if it's asleep and return its endpoint for a request about the item.

        Checks the item after the server is up and has listed its items: it may have changed since an earlier run,
        during a permission prompt, or in a restart. Raises `ContentRefused` if the item is disabled, or an unlisted
        prompt, and `ProtocolFault` if the server is gone, or couldn't be started.
        """
        endpoint = await self.wake(ref.server)
        kinds: tuple[ItemKind, ...] = (ref.kind, "skill") if ref.name.startswith(_SKILL) else (ref.kind,)
        for kind in kinds:
            if kind in self._bridge.options.kinds and endpoint.known_items(kind) is None:
                with suppress(ProtocolFault):  # the status has the fault; approved items stay in use
                    await endpoint.list_items(kind)
        self._refuse_disabled(ref)
        if ref.kind == "prompt" and self._bridge.ledger.find(ref) is None:
            remedy = f"see: indus prompts list {ref.server}"
            raise UnlistedPrompt(f"server {ref.server!r} lists no prompt {ref.name!r}; {remedy}")
        return endpoint

    async def _observe(self, ref: RemoteToolRef, arguments: JsonObject, use: Awaitable[JsonObject]) -> JsonObject:
        """Await the use of a resource or prompt, reporting it to the call observer.

        An unlisted name comes from the caller, like arguments, so the observer sees `UNLISTED` instead.
        """
        observer = None if self._context is None else self._context.framework.observer
        if observer is None:
            return await use
        is_listed = self._bridge.ledger.find(ref) is not None or any(item.ref == ref for item in self._bridge.disabled)
        shown = ContentUse(ref if is_listed else replace(ref, name=UNLISTED))
        observed = observer.start(ToolCall("", qualify_tool_name(shown.ref), arguments), shown)
        outcome: ToolOutcome | None = None
        try:
            result = await use
            outcome = ToolOutcome("", ToolResult(to_content_blocks(result)))
            return result
        except (ContentRefused, ProtocolFault) as failure:
            outcome = ToolOutcome("", describe_failure(failure, ref.server))
            raise
        finally:
            observed.finish(outcome)

    def _refuse_disabled(self, ref: RemoteToolRef) -> None:
        """Raise for a disabled item, files of a disabled skill or template, and other spellings of their URIs."""
        mine = [item for item in self._bridge.disabled if item.ref.server == ref.server]
        disabled = next((item for item in mine if item.ref == ref), None)
        if disabled is None and mine and ref.kind != "prompt":
            disabled = self._find_holder(ref, mine)
        if disabled is not None:
            raise ContentRefused(str(project_content(refuse_disabled(disabled).content)))

    def _find_holder(self, ref: RemoteToolRef, disabled: Sequence[DisabledTool]) -> DisabledTool | None:
        """Find the disabled item that a URI belongs to, unless it belongs to an approved one rather."""
        live = self._bridge.ledger.live_capabilities_for_server
        is_live = self._bridge.ledger.find(ref) is not None
        held = [item for item in disabled if not is_live or item.ref.kind == "skill"]
        nearest = max(held, key=lambda item: _measure_match(item.ref, ref), default=None)
        approved = max((_measure_match(skill.ref, ref) for skill in live(ref.server, "skill")), default=0)
        if nearest is not None and _measure_match(nearest.ref, ref) > approved:
            return nearest
        if is_live or any(matches_template(ref.name, one.ref.name) for one in live(ref.server, "template")):
            return None
        templates = (item for item in held if item.ref.kind == "template")
        return next((item for item in templates if matches_template(ref.name, item.ref.name)), None)

    async def _request(
        self,
        ref: RemoteToolRef,
        method: str,
        params: JsonObject,
        arguments: JsonObject,
        on_progress: ProgressSink | None,
    ) -> JsonObject:
        """Send a request after the permission check, which sees it as a call to one of the server's tools."""
        results: list[JsonObject] = []
        faults: list[ProtocolFault | ContentRefused] = []

        async def send() -> JsonObject:
            endpoint = await self.open_item(ref)
            return await endpoint.request(method, params, on_progress=on_progress)

        async def run(_: JsonValue, ctx: ToolContext) -> ToolResult:
            try:
                results.append(await send_past_move(send))
            except (ProtocolFault, ContentRefused) as fault:
                faults.append(fault)
                return describe_failure(fault, ref.server)
            return ToolResult((TextContentBlock(f"{method}: done"),))

        if self._wrap is None or self._context is None:
            return await send_past_move(send)
        known = self._bridge.ledger.find(ref)
        card = build_content_card(ref, {} if known is None else known[1].raw, run)
        context = replace(self._context, budget=UNLIMITED, on_progress=on_progress)
        outcome = await self._wrap(card).run(arguments, context)
        if faults:
            raise faults[0]
        if not results or outcome.is_error:
            refusal = DeniedContent if outcome.details.get("code") == DeniedContent.code else ContentRefused
            raise refusal(str(project_content(outcome.content)))
        return results[0]


def build_content_card(
    ref: RemoteToolRef, raw: JsonObject | None = None, run: RunRemote | None = None
) -> BridgeCapability:
    """Build the tool that permission rules see in place of a resource or prompt: `github__read_resource(uri=…)`."""
    name = ref.name if ref.kind == "prompt" else READ_RESOURCE
    rows = (raw or {}).get("arguments") if ref.kind == "prompt" else [{"name": "uri"}]
    names = [row.get("name") for row in filter(is_json_object, rows)] if isinstance(rows, list) else []
    schema: JsonObject = {"type": "object", "properties": {str(one): {} for one in names}}
    shown = RemoteToolRef(ref.server, name, "prompt" if ref.kind == "prompt" else "resource")
    descriptor = ToolDescriptor(qualify_tool_name(shown), f"{ref.kind} of server {ref.server!r}", schema)
    return BridgeCapability.from_definition(descriptor, shown, raw or {}, run)


def _measure_match(item: RemoteToolRef, ref: RemoteToolRef) -> int:
    """Return how many characters of a URI match an item (in any spelling) or a skill's folder, 0 if none."""
    if item.kind not in {"resource", "template", "skill"}:
        return 0
    uri, own = (normalize_uri(one.name).casefold() for one in (ref, item))
    folder = own[: own.rfind("/") + 1]
    return len(own) if uri == own else len(folder) if item.kind == "skill" and uri.startswith(folder) else 0


def _is_app(uri: str, contents: JsonValue) -> bool:
    """Tell whether a client may show a resource as an app, going by scheme or type."""
    rows = filter(is_json_object, contents if isinstance(contents, list) else ())
    return uri[: len(_APP)].lower() == _APP or any(_APP_TYPE in str(row.get("mimeType")).lower() for row in rows)


def describe_failure(failure: ContentRefused | ProtocolFault, server: str) -> ToolResult:
    """Turn a failed use of a resource or prompt into a call result."""
    if isinstance(failure, ContentRefused):
        return ToolResult.error(str(failure), code=failure.code, server=server)
    rpc = failure.detail.rpc_code
    return ToolResult.error(
        str(failure), code="refused" if rpc is not None else failure.kind, server=server, rpcCode=rpc
    )


def to_content_blocks(result: JsonObject) -> list[ToolContentBlock]:
    """Turn resource contents or prompt messages into content blocks."""
    contents, messages = result.get("contents"), result.get("messages")
    rows = filter(is_json_object, contents if isinstance(contents, list) else ())
    blocks: list[ToolContentBlock] = [JsonContentBlock({"type": "resource", "resource": row}) for row in rows]
    for message in filter(is_json_object, messages if isinstance(messages, list) else ()):
        content = message.get("content")
        for block in content if isinstance(content, list) else [content]:
            text = block.get("text") if is_json_object(block) and block.get("type") == "text" else None
            blocks.append(TextContentBlock(f"{message.get('role')}: {text}") if text else JsonContentBlock(block))
    return blocks


def find_text(result: JsonObject) -> str:
    """Return the text of resource contents or prompt messages, for a user or a model."""
    contents, messages = result.get("contents"), result.get("messages")
    rows = filter(is_json_object, contents if isinstance(contents, list) else ())
    parts = [_describe_contents(row) for row in rows]
    for message in messages if isinstance(messages, list) else ():
        content = message.get("content") if is_json_object(message) else None
        for block in content if isinstance(content, list) else [content]:
            if is_json_object(block):
                resource = block.get("resource")
                text = block.get("text")
                own = text if isinstance(text, str) else f"({block.get('type')})"
                parts.append(_describe_contents(resource) if is_json_object(resource) else own)
    return "\n\n".join(part for part in parts if part)


def _describe_contents(row: JsonObject) -> str:
    text, blob = row.get("text"), row.get("blob")
    if isinstance(text, str):
        return text
    size = len(blob) * 3 // 4 if isinstance(blob, str) else 0
    return f"({row.get('mimeType') or 'binary'}, about {size:,} bytes)"
