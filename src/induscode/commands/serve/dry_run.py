"""`indus serve --dry-run`: what clients would be shown, view by view, from the ledger. No server is started."""

from __future__ import annotations

from typing import TYPE_CHECKING

from indusagi.core.records import record
from indusagi.core.text import format_count
from induscode.commands.serve.view_box import is_reading, select_tools
from induscode.commands.support.catalog import NATIVE, list_tools
from induscode.commands.support.output import print_notes, print_table
from induscode.commands.support.runner import run_until_signal
from induscode.deck.contract import Profile
from induscode.launch.options import PROFILES
from induscode.launch.settings import SERVE_VIEWS
from induscode.launch.views import View
from induscode.terminal import print_line, print_status

if TYPE_CHECKING:
    from collections.abc import Sequence

    from indusagi.core.cancel import CancelToken
    from indusagi.runtime.contract import ToolCall, ToolDescriptor, ToolOutcome
    from induscode.commands.serve.options import ServeOptions
    from induscode.commands.support.catalog import ListedTool
    from induscode.launch.invocation import Invocation


def show_views(invocation: Invocation, options: ServeOptions) -> int:
    """Print the tools of every view, or of the one that all clients get; return the exit code."""

    async def show(_: CancelToken) -> int:
        listing = await list_tools(invocation, check=False)
        print_notes(listing.notes)
        box = _ListedBox([tool for tool in listing.tools if _is_in_profile(tool, options.profile)])
        views = [options.view] if options.view is not None else [*invocation.settings.get(SERVE_VIEWS).values()]
        for view in views:
            _print_view(box, view)
        if options.view is None:
            _print_view(box, View(name=""))
        return 0

    return run_until_signal(show)


def _is_in_profile(tool: ListedTool, profile: str) -> bool:
    value = PROFILES[profile]
    return tool.source != NATIVE or (value is not None and str(Profile(value)) in tool.profiles and not tool.missing)


def _print_view(box: _ListedBox, view: View) -> None:
    selected = select_tools(box, view)
    whose = [f"client {name}" for name in view.clients] + [f"principal {name}" for name in view.principals]
    whose += [f"the token in {view.token_env}"] if view.token_env else []
    print_line(f"view {view.name!r}: {', '.join(whose) or '--view'}" if view.name else "every other client:")
    rows = [
        (
            shown.name,
            box.find_server(name) or NATIVE,
            name if name != shown.name else "",
            "reads" if is_reading(shown) else "",
            shown.description.partition("\n")[0][:80],
        )
        for name, shown in selected
    ]
    print_table(("NAME", "SERVER", "RENAMED FROM", "ONLY", "DESCRIPTION"), rows)
    print_line(format_count(len(rows), "tool"))
    print_line("")
    names = {name: shown.name for name, shown in selected}
    for name in {**view.rename, **view.describe}:
        wanted = view.rename.get(name, name)
        if name not in names:
            print_status(f"view {view.name!r}: it changes {name!r}, which it does not show")
        elif names[name] != wanted:
            print_status(f"view {view.name!r}: {name!r} keeps its name: another tool is called {wanted!r}")


@record
class _ListedBox:
    """The tools of a list, which cannot be called."""

    tools: Sequence[ListedTool]

    def descriptors(self) -> Sequence[ToolDescriptor]:
        return [tool.descriptor for tool in self.tools]

    async def run(self, call: ToolCall, *_: object, **__: object) -> ToolOutcome:
        raise NotImplementedError(call.name)

    def answers_unlisted(self, name: str) -> bool:
        return False

    def find_server(self, name: str) -> str | None:
        return next((tool.source for tool in self.tools if tool.name == name and tool.source != NATIVE), None)
