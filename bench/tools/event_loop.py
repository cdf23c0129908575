"""The scoreboard's probes of the whole: the event loop beside every tool, and ended sessions."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias
from urllib.parse import quote

from bench.tools.board import MB, Finding, Item, seconds

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from bench.tools.board import Scene
    from indusagi.core.json import JsonObject, JsonValue

_LATE_S = 0.05
_KEPT = 4 * MB
_LARGEST_CHANGE = 8 * 1024 * 1024 - 64 * 1024
"""Bytes of a file that is changed; a little more is refused."""
_LARGE_FOLDER = "a large folder"
_IN_THE_TREE = frozenset({"grep", "find", "ls"})
_WEB = frozenset({"webfetch", "websearch"})

Calls: TypeAlias = "Sequence[tuple[str, JsonObject]]"


def probe_delay(scene: Scene) -> Finding:
    """Give each tool much to do, in a fresh process, and look how late the event loop gets."""
    _stage(scene)
    work = _work(scene)
    late: dict[str, float] = {}
    for name in (*work, *sorted(_WEB)):
        late[name] = _late(scene, name, work)
        for _ in range(scene.tries - 1):
            # Once more only if it was late: others on the machine may have been the reason.
            if late[name] > _LATE_S:
                late[name] = min(late[name], _late(scene, name, work))
    shown = sorted(late, key=lambda name: -late[name])
    over = [name for name in shown if late[name] > _LATE_S]
    text = ", ".join(f"{name}: {seconds(late[name])}" for name in over or shown)
    return Finding(not over, f"blocked by {text}" if over else text, late)


def _late(scene: Scene, name: str, work: Mapping[str, Calls]) -> float:
    """Return the longest delay; a call that never returns counts for its whole time."""
    patience = scene.sizes.patience_s
    folder = scene.tree() if name in _IN_THE_TREE else None
    with scene.driver(folder, listen=name in _WEB) as driver:
        calls = _web(scene, name, driver.entry) if name in _WEB else work[name]
        answers = driver.calls(calls, limit_s=patience).answers
    return max(patience if answer is None else answer.late_s for answer in answers)


def _stage(scene: Scene) -> None:
    folder, sizes = scene.folder, scene.sizes
    line = "a line of a file that is longer than anybody would like it to be\n"
    (folder / "large.log").write_text(line * (sizes.file_bytes // len(line)), encoding="ascii")
    (folder / "one-line.json").write_text(f'["{"x" * (sizes.file_bytes // 5)}"]', "ascii")
    body = "".join(f"    value_{n} = compute({n})\n" for n in range(sizes.edit_lines))
    (folder / "code.py").write_text(f"def f():\n{body}", encoding="ascii")
    large = _large(scene)
    (folder / "large.c").write_text(large, encoding="utf-8")
    # Not of ASCII alone, so that the look of its quotation marks is compared as well.
    (folder / "quoted.c").write_text(large.replace('"', "\u201c"), encoding="utf-8")
    (folder / "latin.c").write_bytes(large.replace("\n", "\r\n").replace('"', "é").encode("latin-1"))
    (folder / "page.html").write_text(_page(sizes.anchors), encoding="utf-8")
    (folder / "hostile.html").write_text("<a href='x'>" * sizes.anchors, encoding="utf-8")
    (folder / _LARGE_FOLDER).mkdir()
    for n in range(10 * sizes.tree_folders):
        (folder / _LARGE_FOLDER / f"file{n}.txt").touch()


def _large(scene: Scene) -> str:
    """Make the text of a file that is as large as one that is changed may be."""
    line = '    call(%d, "value");\n'
    size = min(_LARGEST_CHANGE, scene.sizes.file_bytes // 10)
    # As Latin-1 it has a byte more on each line, and as UTF-8 up to four more.
    return "".join(line % n for n in range(1_000_000, 1_000_000 + size // (len(line) + 10)))


def _page(count: int) -> str:
    rows = (
        f"<h2>Part {n}</h2><p>Some <b>words</b> and <a href='/p/{n}'>a link</a>.</p>"
        f"<table><tr><td>{n}</td><td>cell</td></tr></table>"
        for n in range(4 * count)
    )
    return f"<html><body>{''.join(rows)}</body></html>"


def _web(scene: Scene, name: str, entry: int) -> Calls:
    if name == "websearch":
        return [("websearch", {"query": "an event loop"})]
    pages: list[Path] = [scene.folder / "page.html", scene.folder / "hostile.html"]
    base = f"http://127.0.0.1:{entry}/file?path="
    return [("webfetch", {"url": base + quote(str(page)), "maxBytes": 5_000_000}) for page in pages]


_MISS = "    value_7 = computed(7)\n    value_8 = computed(8)\n"
_ITEMS: list[JsonObject] = [{"id": str(n), "text": "something to do " * 20, "status": "pending"} for n in range(200)]


def _work(scene: Scene) -> dict[str, Calls]:
    output = scene.sizes.output_bytes
    return {
        "read": [
            ("read", {"path": "large.log", "offset": 700_000, "limit": 2000}),
            ("read", {"path": "large.log", "offset": -2000}),
            ("read", {"path": "one-line.json"}),
            ("read", {"path": "latin.c", "limit": 10}),
        ],
        "edit": [*_edits()],
        "write": [
            ("write", {"path": "new.py", "content": "value = [1, 2, 3]\n" * 100_000}),
            ("write", {"path": "new.json", "content": f"[{'1, ' * 700_000}1]"}),
            ("read", {"path": "large.c", "limit": 10}),
            ("write", {"path": "large.c", "content": _large(scene)[::-1]}),
        ],
        "bash": [
            ("bash", {"command": f"head -c {output} /dev/zero | tr '\\0' x"}),
            ("bash", {"command": "seq 1 2000000"}),
        ],
        "process": [
            ("process", {"action": "start", "command": "seq 1 3000000; sleep 300"}),
            ("process", {"action": "poll", "id": "job-1", "waitMs": 1000, "match": "3000000"}),
            ("process", {"action": "poll", "id": "job-1", "lines": 2000}),
            ("process", {"action": "list"}),
            ("process", {"action": "stop", "id": "job-1"}),
        ],
        "grep": [
            ("grep", {"pattern": "word1", "maxMatches": 5000}),
            ("grep", {"pattern": "word1", "mode": "files", "maxMatches": 5000}),
            ("grep", {"pattern": "no such word"}),
        ],
        "find": [("find", {"query": "*", "limit": 10_000}), ("find", {"query": "nothing"})],
        "ls": [("ls", {"depth": 3}), ("ls", {"path": "package1"})],
        _LARGE_FOLDER: [
            ("ls", {"path": _LARGE_FOLDER}),
            ("read", {"path": _LARGE_FOLDER}),
            ("find", {"query": "file7", "path": _LARGE_FOLDER}),
        ],
        "todo": [("todo_set", {"items": [*_ITEMS]}), ("todo_read", {})],
    }


def _edits() -> Iterator[tuple[str, JsonObject]]:
    """Miss and hit, in files as large as they may be; a part of each is read before."""
    yield "read", {"path": "code.py"}
    yield "edit", {"path": "code.py", "oldText": _MISS, "newText": "    pass\n"}
    yield "edit", {"path": "code.py", "oldText": "e", "newText": "ee", "replaceAll": True}
    for path in ("large.c", "quoted.c", "latin.c"):
        yield "read", {"path": path, "limit": 10}
        yield "edit", {"path": path, "oldText": _MISS, "newText": "    pass\n"}
        yield "edit", {"path": path, "oldText": "call(1000007,", "newText": "called(7,"}
    several: list[JsonValue] = [{"oldText": f"call(10000{n},", "newText": f"called({n},"} for n in range(10, 60)]
    yield "edit", {"path": "large.c", "edits": [*several]}


def probe_ended_sessions(scene: Scene) -> Finding:
    """Use sessions once and let go of them."""
    with scene.driver() as driver:
        kept = driver.sessions(scene.sizes.sessions)
    text = f"+{max(kept, 0) / MB:.1f} MB after {scene.sizes.sessions} sessions"
    return Finding(kept < _KEPT, text, {"bytes": kept})


ITEMS = (
    Item("loop", "the longest block of the event loop by each tool", "< 50 ms", probe_delay),
    Item("todo-memory", "memory kept by the task lists of ended sessions", "< 4 MB", probe_ended_sessions),
)
