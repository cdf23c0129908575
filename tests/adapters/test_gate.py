"""The gate of an adapter decides about exactly what runs."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pytest

from indusagi.adapters.calls import AdapterCalls
from indusagi.capabilities import ToolSpec, define_tool, make_local_context
from indusagi.capabilities.arguments import coerce_to
from indusagi.capabilities.registry import ToolRegistry
from indusagi.capabilities.tool import DefinedTool
from indusagi.runtime import ToolCall
from induscode.addons import Addon, Deny, InterceptedCall, Interceptor, Replace
from induscode.addons.chain import InterceptorChain, LoadedAddon
from induscode.deck.catalog import capability_cards
from induscode.deck.contract import DeckContext, build_card, iter_layers
from induscode.deck.provision import DeckRunner, DeckToolBox, base_context
from induscode.permissions.check import Permissions, require_permission
from induscode.permissions.policy import ApprovalMode

if TYPE_CHECKING:
    from pathlib import Path

    from indusagi.adapters.calls import GateRequest
    from indusagi.capabilities import ToolContext
    from indusagi.core.json import JsonObject, JsonValue
    from induscode.deck.contract import Capability

pytestmark = pytest.mark.anyio

PARAMETERS: JsonObject = {
    "type": "object",
    "properties": {"path": {"type": "string"}, "line": {"type": "integer"}, "tags": {"type": "array", "items": {}}},
    "required": ["path"],
    "additionalProperties": False,
}


@dataclass
class Seen:
    """What the gate was shown, and what ran."""

    shown: list[JsonValue] = field(default_factory=list["JsonValue"])
    ran: list[JsonValue] = field(default_factory=list["JsonValue"])
    answer: bool = True

    async def run(self, arguments: JsonObject, ctx: ToolContext) -> str:
        self.ran.append(dict(arguments))
        return "done"

    def gate(self, request: GateRequest) -> bool:
        self.shown.append(request.arguments)
        return self.answer

    def tool(self) -> DefinedTool:
        prepare = coerce_to(PARAMETERS, {"file_path": "path", "filename": "path", "row": "line"})
        return define_tool(ToolSpec("look", "Look.", PARAMETERS, self.run, prepare=prepare))

    def calls(self, cwd: Path) -> AdapterCalls:
        registry = ToolRegistry()
        registry.register(self.tool())
        return AdapterCalls(registry.to_tool_box(make_local_context(str(cwd))), self.gate, None)


@pytest.mark.parametrize(
    "given",
    [
        {"file_path": "/etc/shadow"},
        {"filename": "/etc/shadow", "row": "7"},
        {"path": "a", "line": "12"},
        {"path": "a", "line": 3.0},
        {"path": "a", "line": None},
        {"path": "a", "tags": '["x", {"y": 1}]'},
    ],
)
async def test_finding_f7_gate_sees_the_arguments_that_run(given: JsonObject, tmp_path: Path) -> None:
    seen = Seen()
    await seen.calls(tmp_path).run(ToolCall("1", "look", given))
    assert seen.shown == seen.ran
    assert "path" in seen.shown[0]  # type: ignore[operator]


async def test_finding_f7_denied_path_stays_denied_under_another_name(tmp_path: Path) -> None:
    seen = Seen()

    def deny_shadow(request: GateRequest) -> bool:
        return isinstance(request.arguments, dict) and request.arguments.get("path") != "/etc/shadow"

    registry = ToolRegistry()
    registry.register(seen.tool())
    calls = AdapterCalls(registry.to_tool_box(make_local_context(str(tmp_path))), deny_shadow, None)
    for name in ("path", "file_path", "filename"):
        assert (await calls.run(ToolCall("1", "look", {name: "/etc/shadow"}))).details["code"] == "denied"
    assert seen.ran == []


async def test_finding_f7_arguments_that_do_not_fit_are_refused_unasked(tmp_path: Path) -> None:
    seen = Seen()
    outcome = await seen.calls(tmp_path).run(ToolCall("1", "look", {"file_path": 1, "path": "a"}))
    assert outcome.details["code"] == "invalid_arguments"
    assert seen.shown == seen.ran == []


async def test_finding_f7_what_a_gate_changes_does_not_run(tmp_path: Path) -> None:
    seen = Seen()

    def change(request: GateRequest) -> bool:
        arguments: Any = request.arguments
        arguments["path"] = "/elsewhere"
        arguments["tags"].append("x")
        return True

    registry = ToolRegistry()
    registry.register(seen.tool())
    calls = AdapterCalls(registry.to_tool_box(make_local_context(str(tmp_path))), change, None)
    given: Any = {"path": "a", "tags": []}
    await calls.run(ToolCall("1", "look", given))
    assert seen.ran == [{"path": "a", "tags": []}]
    assert given == {"path": "a", "tags": []}


# -- every card -----------------------------------------------------------------------------------


def find_tool(card: Capability) -> DefinedTool:
    for layer in iter_layers(card):
        for tool in (layer, *vars(layer).values()):
            if isinstance(tool, DefinedTool):
                return tool
    raise AssertionError(card)


def list_aliases() -> list[tuple[str, str, str]]:
    found: list[tuple[str, str, str]] = []
    for row in capability_cards():
        prepare = find_tool(build_card(row, DeckContext("/"))).spec.prepare
        aliases: dict[str, str] = (
            {} if prepare is None else inspect.getclosurevars(prepare).nonlocals.get("aliases", {})
        )
        found += [(str(row.id), alias, name) for alias, name in aliases.items()]
    return found


@pytest.mark.parametrize(("card_name", "alias", "name"), list_aliases())
async def test_finding_f7_every_alias_is_resolved_before_gate_addon_and_permissions(
    card_name: str, alias: str, name: str, tmp_path: Path
) -> None:
    seen = Seen()
    (row,) = [one for one in capability_cards() if one.id == card_name]
    card = build_card(row, DeckContext(str(tmp_path)))
    tool = find_tool(card)
    tool.spec = replace(tool.spec, run=seen.run)
    schema: Any = tool.spec.parameters
    given = {key: make_value(schema["properties"][key]) for key in schema.get("required", ())}
    given.pop(name, None)
    given[alias] = make_value(schema["properties"][name])
    addon, ctx = Watching(), base_context(DeckContext(str(tmp_path)))
    loaded = LoadedAddon("x", "a test", Addon(interceptors=[addon]), required=False)
    checked = require_permission(card, Permissions(approval=ApprovalMode.ALL))
    box = DeckToolBox(DeckRunner({card.name: InterceptorChain([loaded], None).wrap(checked)}, ctx))
    async with ctx:
        outcome = await AdapterCalls(box, seen.gate, None).run(ToolCall("1", card.name, given))
    assert seen.ran, outcome.output
    assert seen.shown == seen.ran == addon.seen
    assert name in seen.ran[0]  # type: ignore[operator]
    assert alias not in seen.ran[0]  # type: ignore[operator]


def make_value(schema: Any) -> Any:
    if "enum" in schema:
        return schema["enum"][0]
    if schema["type"] == "array":
        return [make_value(schema["items"])]
    if schema["type"] == "object":
        return {key: make_value(schema["properties"][key]) for key in schema.get("required", ())}
    return {"string": "a", "integer": 1, "boolean": True, "number": 1}[schema["type"]]


def test_cards_have_aliases() -> None:
    assert len(list_aliases()) > 10


# -- addons -----------------------------------------------------------------------------------------


@dataclass
class Watching(Interceptor):
    """Notes the arguments, and may replace or deny them."""

    replacement: JsonObject | None = None
    denied: str = ""
    seen: list[JsonValue] = field(default_factory=list["JsonValue"])

    async def before(self, call: InterceptedCall, /) -> Any:
        self.seen.append(call.arguments)
        if self.denied and isinstance(call.arguments, dict) and call.arguments.get("path") == self.denied:
            return Deny("not there")
        return None if self.replacement is None else Replace(self.replacement)


def box_with(seen: Seen, cwd: Path, *addons: Interceptor) -> DeckToolBox:
    loaded = LoadedAddon("x", "a test", Addon(interceptors=addons), required=False)
    card = InterceptorChain([loaded], None).wrap(seen.tool())
    return DeckToolBox(DeckRunner({"look": card}, base_context(DeckContext(str(cwd)))))


async def test_finding_f7_addon_sees_the_arguments_that_run(tmp_path: Path) -> None:
    seen, addon = Seen(), Watching(denied="/etc/shadow")
    box = box_with(seen, tmp_path, addon)
    await box.runner.run(ToolCall("1", "look", {"file_path": "a", "row": "7"}))
    outcome = await box.runner.run(ToolCall("2", "look", {"filename": "/etc/shadow"}))
    assert outcome.is_error
    assert addon.seen == [{"path": "a", "line": 7}, {"path": "/etc/shadow"}]
    assert seen.ran == [{"path": "a", "line": 7}]


async def test_finding_f7_second_addon_sees_what_the_first_made_as_it_runs(tmp_path: Path) -> None:
    seen, first, second = Seen(), Watching({"file_path": "/etc/shadow"}), Watching(denied="/etc/shadow")
    outcome = await box_with(seen, tmp_path, first, second).runner.run(ToolCall("1", "look", {"path": "a"}))
    assert outcome.is_error
    assert second.seen == [{"path": "/etc/shadow"}]
    assert seen.ran == []


@pytest.mark.parametrize("answer", [True, False])
async def test_finding_f7_gate_decides_again_when_an_addon_changed_the_arguments(answer: bool, tmp_path: Path) -> None:
    seen, addon = Seen(), Watching({"file_path": "b"})

    def gate(request: GateRequest) -> bool:
        seen.shown.append(request.arguments)
        return request.arguments == {"path": "a"} or answer

    calls = AdapterCalls(box_with(seen, tmp_path, addon), gate, None)
    outcome = await calls.run(ToolCall("1", "look", {"path": "a"}))
    assert seen.shown == [{"path": "a"}, {"path": "b"}]
    assert seen.ran == ([{"path": "b"}] if answer else [])
    assert outcome.is_error is not answer


async def test_finding_f7_addon_may_still_correct_arguments_that_do_not_fit(tmp_path: Path) -> None:
    seen, addon = Seen(), Watching({"path": "a"})
    outcome = await box_with(seen, tmp_path, addon).runner.run(ToolCall("1", "look", {"nothing": 1}))
    assert not outcome.is_error
    assert addon.seen == [{"nothing": 1}]
    assert seen.ran == [{"path": "a"}]
