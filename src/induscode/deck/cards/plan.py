"""The two cards of plan mode, and the files of approved plans.

The cards change nothing. They return a mark, and the session that receives it changes the mode: a model can ask to
enter or leave, but only the session decides.
"""

from __future__ import annotations

import os
import re

from indusagi.capabilities.context import ToolContext
from indusagi.capabilities.tool import ToolSpec, define_tool
from indusagi.core.app_dirs import create_private_file, make_private_dir, read_small_file
from indusagi.core.json import JsonObject
from indusagi.core.time import now_ms
from indusagi.runtime.contract import JsonContentBlock, JsonSchema, TextContentBlock, ToolResult
from induscode.deck.contract import Capability, CapabilityCard, DeckContext, Profile, capability_id

PLANS_DIRNAME = "plans"
SLUG_LENGTH = 48
_MAX_PLAN_BYTES = 1024 * 1024
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
_EMPTY: JsonSchema = {"type": "object", "properties": {}, "additionalProperties": False}
_PLAN: JsonSchema = {
    "type": "object",
    "properties": {"plan": {"type": "string", "description": "Markdown."}},
    "required": ["plan"],
    "additionalProperties": False,
}


def enter_plan_mode_card() -> CapabilityCard:
    """Return the row of the card that asks for plan mode."""
    description = (
        "Enter plan mode: look around and change nothing until a plan is approved. For work that is large or ambiguous."
    )
    spec = ToolSpec("enter_plan_mode", description, _EMPTY, _enter, title="Enter plan mode", read_only=True, terse=True)
    return _build_card(spec, "Look around before changing anything")


def exit_plan_mode_card() -> CapabilityCard:
    """Return the row of the card that presents a plan."""
    description = "Present your plan for approval; if approved, plan mode ends."
    spec = ToolSpec("exit_plan_mode", description, _PLAN, _exit, title="Exit plan mode", read_only=True, terse=True)
    return _build_card(spec, "Present a plan for approval")


def _build_card(spec: ToolSpec, summary: str) -> CapabilityCard:
    def build(_: DeckContext) -> Capability:
        return define_tool(spec)

    return CapabilityCard(capability_id(spec.name), spec.title or spec.name, summary, (Profile.ALL,), build)


async def _enter(arguments: JsonObject, ctx: ToolContext) -> ToolResult:
    mark: JsonObject = {"enterPlanMode": True, "applied": False}
    message = (
        "Plan mode was asked for. Explore and read only; change no file and run nothing that does. "
        "When you know what to do, present it with exit_plan_mode."
    )
    return ToolResult((JsonContentBlock(mark), TextContentBlock(message)), details=mark)


async def _exit(arguments: JsonObject, ctx: ToolContext) -> ToolResult:
    plan = str(arguments["plan"])
    if not plan.strip():
        return ToolResult.error("The plan is empty: write down what you mean to do.", code="invalid_arguments")
    mark: JsonObject = {"exitPlan": True, "plan": plan}
    return ToolResult((JsonContentBlock(mark),), details=mark)


# -- files ------------------------------------------------------------------------------------


def plan_slug(plan: str) -> str:
    """Build a plan's name from its first nonblank line."""
    for line in plan.splitlines():
        slug = re.sub(r"[^a-z0-9]+", "-", line.lower()).strip("-")[:SLUG_LENGTH].strip("-")
        if slug:
            return slug
        if line.strip():
            break
    return "plan"


def plan_file_path(session_dir: str | os.PathLike[str], slug: str) -> str:
    """Return the path of a plan's file."""
    return os.path.join(session_dir, PLANS_DIRNAME, f"{slug}.md")


def write_plan(session_dir: str | os.PathLike[str], plan: str) -> str:
    """Write a plan to a new file and return its path; raises `OSError` if it can't."""
    make_private_dir(os.path.join(session_dir, PLANS_DIRNAME))
    moment, number = "", now_ms()  # in base 36: later names sort later
    while number:
        number, digit = divmod(number, 36)
        moment = _DIGITS[digit] + moment
    stem = f"{moment or '0'}-{plan_slug(plan)}"
    for attempt in range(1, 1_000):
        path = plan_file_path(session_dir, stem if attempt == 1 else f"{stem}-{attempt}")
        try:
            handle = create_private_file(path)
        except FileExistsError:
            continue
        with os.fdopen(handle, "wb") as file:
            file.write(plan.encode("utf-8", "backslashreplace"))
        return path
    raise FileExistsError(f"too many plans of one millisecond: {stem}")


def read_plan(path: str | os.PathLike[str]) -> str | None:
    """Read a plan, or return `None` if the file is missing or unreadable."""
    try:
        return read_small_file(path, _MAX_PLAN_BYTES).decode("utf-8")
    except (OSError, ValueError):
        return None
