"""The scoreboard's probes of the whole: the event loop beside every tool, and ended sessions."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias
from urllib.parse import quote

from bench.tools_board import MB, Finding, Item, seconds

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from bench.tools_board import Scene
    from indusagi.core.json import JsonObject

_LATE_S = 0.05
_KEPT = 4 * MB

Calls: TypeAlias = "Sequence[tuple[str, JsonObject]]"


def held_up(scene: Scene) -> Finding:
    """Give each tool much to do, in a fresh process, and look how late the event loop gets."""
    _stage(scene)
    late: dict[str, float] = {}
    for name in (*_WORK, "webfetch", "websearch"):
        late[name] = _late(scene, name)
        for _ in range(scene.tries - 1):
            # Once more only if it was late: others on the machine may have been the reason.
            if late[name] > _LATE_S:
                late[name] = min(late[name], _late(scene, name))
    worst = max(late, key=lambda name: late[name])
    over = [name for name, value in late.items() if value > _LATE_S]
    text = f"at most {seconds(late[worst])} ({worst})"
    if over:
        shown = sorted(over, key=lambda name: -late[name])
        text = "held up by " + ", ".join(f"{name}: {seconds(late[name])}" for name in shown)
    return Finding(not over, text, late)


def _late(scene: Scene, name: str) -> float:
    """Give the longest delay; whoever does not come back has held it up for all that time."""
    patience = scene.sizes.patience_s
    web = name in {"webfetch", "websearch"}
    folder = scene.tree() if name in {"grep", "find", "ls"} else None
    with scene.driver(folder, listen=web) as driver:
        calls = _web(scene, name, driver.entry) if web else _WORK[name]
        answers = driver.calls(calls, limit_s=patience).answers
    return max(patience if answer is None else answer.late_s for answer in answers)


def _stage(scene: Scene) -> None:
    folder, sizes = scene.folder, scene.sizes
    line = "a line of a file that is longer than anybody would like it to be\n"
    (folder / "large.log").write_text(line * (sizes.file_bytes // len(line)), encoding="ascii")
    (folder / "one-line.json").write_text(f'["{"x" * (sizes.file_bytes // 5)}"]', "ascii")
    body = "".join(f"    value_{n} = compute({n})\n" for n in range(sizes.edit_lines))
    (folder / "code.py").write_text(f"def f():\n{body}", encoding="ascii")
    (folder / "page.html").write_text(_page(sizes.anchors), encoding="utf-8")
    (folder / "hostile.html").write_text("<a href='x'>" * sizes.anchors, encoding="utf-8")


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
_ITEMS: list[JsonObject] = [
    {"id": str(n), "text": "something to do " * 20, "status": "pending"} for n in range(200)
]
_WORK: dict[str, Calls] = {
    "read": [
        ("read", {"path": "large.log", "offset": 700_000, "limit": 2000}),
        ("read", {"path": "large.log", "offset": -2000}),
        ("read", {"path": "one-line.json"}),
    ],
    "edit": [
        ("read", {"path": "code.py"}),
        ("edit", {"path": "code.py", "oldText": _MISS, "newText": "    pass\n"}),
        ("edit", {"path": "code.py", "oldText": "e", "newText": "ee", "replaceAll": True}),
    ],
    "write": [
        ("write", {"path": "new.py", "content": "value = [1, 2, 3]\n" * 100_000}),
        ("write", {"path": "new.json", "content": f"[{'1, ' * 700_000}1]"}),
    ],
    "bash": [
        ("bash", {"command": "head -c 100000000 /dev/zero | tr '\\0' x"}),
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
    "todo": [("todo_set", {"items": [*_ITEMS]}), ("todo_read", {})],
}


def dropped(scene: Scene) -> Finding:
    """Use sessions once and let go of them."""
    with scene.driver() as driver:
        kept = driver.sessions(scene.sizes.sessions)
    text = f"+{max(kept, 0) / MB:.1f} MB after {scene.sizes.sessions} sessions"
    return Finding(kept < _KEPT, text, {"bytes": kept})


ITEMS = (
    Item("loop", "the event loop, held up by any of the twelve tools", "< 50 ms", held_up),
    Item("todo-memory", "memory kept by the task lists of ended sessions", "< 4 MB", dropped),
)
