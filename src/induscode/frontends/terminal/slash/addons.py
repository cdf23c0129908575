"""`/addons`: the addons of the session in their order, and what was skipped and why."""

from __future__ import annotations

from typing import TYPE_CHECKING

from anyio import to_thread

from indusagi.core.text import format_count
from induscode.addons.discovery import discover_addons
from induscode.addons.loader import describe_refusal
from induscode.frontends.terminal.slash import SlashCommand, SlashError

if TYPE_CHECKING:
    from induscode.frontends.terminal.slash import SlashHost


async def _show_addons(host: SlashHost, rest: str) -> None:
    if rest:
        raise SlashError("it takes no arguments")
    conversation = host.conversation
    addons, invocation = conversation.session.addons, conversation.invocation
    rows: list[tuple[str, ...]] = []
    for loaded in addons.loaded:
        cards, hooks = len(loaded.addon.cards), len(loaded.addon.interceptors)
        parts = f"{format_count(cards, 'card')}, {format_count(hooks, 'interceptor')}"
        state = "skipped since it failed" if loaded.name in addons.skipped else "loaded"
        rows.append((loaded.name, loaded.source, f"{state}, required" if loaded.required else state, parts))
    known = {loaded.name for loaded in addons.loaded}
    if not invocation.no_addons and not invocation.no_tools:
        found = await to_thread.run_sync(discover_addons, invocation.cwd)
        for source in (*found.installed, *found.project):
            if source.name not in known:
                known.add(source.name)
                refusal = describe_refusal(source)
                # One with consent that is not loaded came later, or could not be loaded: a note below says so.
                state = "loads with the next session" if refusal is None else refusal.message
                rows.append((source.name, source.source, state, "-"))
    rows += [
        (name, "-", f"required and missing: {why}", "-") for name, why in addons.missing.items() if name not in known
    ]
    if rows:
        host.print_table(("NAME", "SOURCE", "STATE", "ADDS"), rows)
    elif invocation.no_addons:
        host.screen.show("no addons: --no-addons is given")
    else:
        host.screen.show("there are no addons: docs/addons.md shows how one is written")
    for note in addons.notes:
        host.screen.show(str(note))


ADDONS = SlashCommand(name="addons", describe="addons in their order, and which are skipped", run=_show_addons)
