"""Input line completion (`@` for workspace paths, `/` for commands) and input history.

`complete` is a pure function, `WorkspaceFiles` lists paths, and `InputCompleter` connects both to prompt_toolkit.
Git-ignored files never show up; hidden files and credentials only when the typed path asks for them.
"""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from time import monotonic
from typing import TYPE_CHECKING

from anyio import to_thread
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.history import FileHistory, History, InMemoryHistory

from indusagi.capabilities.files.ignore import REPOSITORY, IgnoreRules
from indusagi.capabilities.files.policy import real_path, workspace_policy
from indusagi.core.app_dirs import is_within, make_private_dir, state_dir
from induscode.cli.terminal import escape_unprintable

if TYPE_CHECKING:
    from prompt_toolkit.document import Document

MAX_ENTRIES = 2_000
MAX_WALK_S = 0.05
_MAX_SHOWN = 50
_OPEN_MENTION = re.compile(r"""(?<![^\s(\[{<,;"'])@(?:"(?P<quoted>[^"\n]*)|(?P<bare>[^\s"]*))$""")
"""A mention starts a word, unlike the `@` of an e-mail address."""
_RESOURCE = re.compile(r"[\w.-]+:")
"""A server resource, `@server:uri`."""


# -- completion -------------------------------------------------------------------------------


def complete(
    text_before_cursor: str, files: Callable[[str], Sequence[str]], commands: Mapping[str, str]
) -> list[Completion]:
    """Complete the word before the cursor, best match first.

    `files` returns workspace paths that may match the typed text; directories end in a slash. `commands` maps slash
    commands to descriptions: `mcp`, and with a first argument `mcp restart`.
    """
    if text_before_cursor.startswith("/"):
        return _complete_command(text_before_cursor[1:], commands)
    match = _OPEN_MENTION.search(text_before_cursor)
    if match is None:
        return []
    is_quoted = match["quoted"] is not None
    query = match["quoted"] if is_quoted else match["bare"]
    if not is_quoted and _RESOURCE.match(query):
        return []
    scored = [(score, path) for path in files(query) if (score := score_path(query, path)) is not None]
    scored.sort(key=lambda row: (row[0], row[1].count("/"), len(row[1]), row[1]))
    return [
        Completion(_quote_path(path, is_quoted=is_quoted), -len(match[0]), escape_unprintable(path))
        for _, path in scored[:_MAX_SHOWN]
    ]


def _complete_command(typed: str, commands: Mapping[str, str]) -> list[Completion]:
    words = typed.count(" ")
    if "\n" in typed or words > 1:
        return []
    rows = [(name.removeprefix("/"), description) for name, description in commands.items()]
    return [
        Completion(f"/{name}", -len(typed) - 1, f"/{name}", description)
        for name, description in sorted(rows)
        if name.count(" ") == words and name.casefold().startswith(typed.casefold())
    ]


def _quote_path(path: str, *, is_quoted: bool) -> str:
    """Write a path as a mention, leaving directories open for the next part."""
    if not is_quoted and re.fullmatch(r"\S+", path):
        return f"@{path}"
    return f'@"{path}' if path.endswith("/") else f'@"{path}"'


def score_path(query: str, path: str) -> int | None:
    """Score how well a path matches the typed text (0 is best), or return `None` if it doesn't.

    Each part of the query has to match a part of the path, in order: as a prefix, a substring or a subsequence. The
    last part of the query may match any part of the path, ideally the last one.
    """
    if query.endswith("/") and path.casefold().startswith(query.casefold()):
        return 0
    wanted = [part for part in query.casefold().split("/") if part]
    parts = [part for part in path.casefold().split("/") if part]
    total, end = 0, len(parts)
    for distance, part in enumerate(reversed(wanted)):
        for index in range(end - 1, -1, -1):
            score = _score_part(part, parts[index])
            if score is not None:
                break
        else:
            return None
        total += score + (3 * (end - 1 - index) if distance == 0 else 0)
        end = index
    return total


def _score_part(wanted: str, part: str) -> int | None:
    if part.startswith(wanted):
        return 0
    if wanted in part:
        return 1
    letters = iter(part)
    return 2 if all(letter in letters for letter in wanted) else None


class WorkspaceFiles:
    """Lists workspace paths that match the typed text, limited to 2,000 entries and 50 ms.

    Reads directories breadth-first; call it in a thread. Doesn't follow symlinks to directories.
    """

    def __init__(self, cwd: str, *, clock: Callable[[], float] = monotonic) -> None:
        self._cwd = cwd
        self._clock = clock

    def __call__(self, query: str) -> Sequence[str]:
        """List paths for a query; if it names a directory, only paths below that."""
        folder, _, name = query.rpartition("/")
        root = real_path(self._cwd)
        start = os.path.join(root, folder)
        if query.startswith(("/", "~")) or not is_within(real_path(start), root):
            return ()
        if not folder or not os.path.isdir(start):
            folder = ""
        deadline = self._clock() + MAX_WALK_S
        paths: list[str] = []
        for path in _walk(root, folder, hidden=name.startswith(".")):
            if score_path(query, path) is not None:
                paths.append(path)
            if len(paths) >= MAX_ENTRIES or self._clock() > deadline:
                break
        return paths


def _walk(root: str, folder: str, *, hidden: bool) -> Iterator[str]:
    """Yield the paths below a directory, nearest first."""
    start = os.path.join(root, folder) if folder else root
    secrets = set(workspace_policy(root).protected.hidden_below(root))
    queue = deque([(f"{folder}/" if folder else "", start, IgnoreRules.load(start))])
    while queue:
        above, place, rules = queue.popleft()
        try:
            with os.scandir(place) as listing:
                entries = sorted(listing, key=lambda entry: entry.name)
        except OSError:  # removed in the meantime, or unreadable
            continue
        if place != start:
            rules = rules.below(os.path.basename(place), place, {entry.name for entry in entries})
        for entry in entries:
            is_dir = entry.is_dir(follow_symlinks=False)
            is_hidden = entry.name.startswith(".") and not (hidden and place == start)
            if is_hidden or entry.name == REPOSITORY or rules.ignores(entry.name, is_dir=is_dir):
                continue
            if entry.path in secrets and not hidden:
                continue
            yield f"{above}{entry.name}/" if is_dir else f"{above}{entry.name}"
            if is_dir and not entry.name.startswith("."):
                queue.append((f"{above}{entry.name}/", entry.path, rules))


class InputCompleter(Completer):
    """prompt_toolkit completer of the input line; `commands` returns the current commands as in `complete`."""

    def __init__(self, cwd: str, commands: Callable[[], Mapping[str, str]]) -> None:
        self._files = WorkspaceFiles(cwd)
        self._commands = commands

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterator[Completion]:
        """Yield the completions at the cursor."""
        yield from complete(document.text_before_cursor, self._files, self._commands())

    async def get_completions_async(
        self, document: Document, complete_event: CompleteEvent
    ) -> AsyncGenerator[Completion, None]:
        """Yield the completions at the cursor, found in a thread."""
        text, commands = document.text_before_cursor, self._commands()
        for item in await to_thread.run_sync(complete, text, self._files, commands, abandon_on_cancel=True):
            yield item


# -- history ----------------------------------------------------------------------------------


_MAX_HISTORY_BYTES = 1024 * 1024
_KEPT_HISTORY_BYTES = 256 * 1024


def open_history() -> History:
    """Open the history, in memory if the state directory is unusable."""
    try:
        path = os.path.join(make_private_dir(state_dir()), "history")
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError:
        return InMemoryHistory()
    try:
        size = os.fstat(handle).st_size
        if size > _MAX_HISTORY_BYTES:  # keep the newest entries, starting at an entry boundary
            tail = os.pread(handle, _KEPT_HISTORY_BYTES, size - _KEPT_HISTORY_BYTES)
            os.ftruncate(handle, 0)
            os.pwrite(handle, tail[tail.find(b"\n# ") + 1 :], 0)
    finally:
        os.close(handle)
    return FileHistory(path)
