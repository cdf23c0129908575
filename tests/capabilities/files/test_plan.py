"""Edit plans, made in a thread or in a worker."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from indusagi.capabilities import worker
from indusagi.capabilities.files import plan as module
from indusagi.capabilities.files.codec import digest_bytes
from indusagi.capabilities.files.plan import LIGHT_CHARACTERS, EditPlan, EditRequest, plan_edit, plan_edit_sync
from indusagi.capabilities.files.replace import MAX_FILE_BYTES, EditRefusal, Replacement, ShownLines
from indusagi.capabilities.worker import decode_message, encode_message

if TYPE_CHECKING:
    from collections.abc import Sequence

TEXT = "def f():\n    return 1\n\n\ndef g():\n    return 1\n"


def request(
    *edits: Replacement,
    content: str | None = None,
    path: str = "/w/a.c",
    digest: str | None = None,
    must_be_read: bool = False,
) -> EditRequest:
    return EditRequest(
        path="a.c", resolved=path, cwd="/w", must_be_read=must_be_read, digest=digest, edits=edits, content=content
    )


LF = TEXT.encode()
LATIN = TEXT.replace("return", "zurück").encode("latin-1")


def run_instead(monkeypatch: pytest.MonkeyPatch, *argv: str) -> None:
    """Start another program instead of the worker."""

    def instead(*_: object) -> list[str]:
        return [*argv]

    monkeypatch.setattr(worker, "build_command", instead)


REQUESTS: Sequence[tuple[str, EditRequest, bytes | None]] = [
    ("hit", request(Replacement("def g", "def h")), LF),
    ("miss", request(Replacement("def gg(): pass", "x")), LF),
    ("ambiguous", request(Replacement("return 1", "return 2")), LF),
    ("all", request(Replacement("return 1", "return 2", every=True)), LF),
    ("several", request(Replacement("def f", "def e"), Replacement("def g", "def h")), LF),
    ("indentation", request(Replacement("  return 1\n\n", "  return 2\n\n")), LF),
    ("CRLF", request(Replacement("def g", "def h")), LF.replace(b"\n", b"\r\n")),
    ("Latin-1", request(Replacement("def g", "def ü")), LATIN),
    ("what Latin-1 has not", request(Replacement("def g", "def €")), LATIN),
    ("UTF-16", request(Replacement("def g", "def h")), b"\xff\xfe" + TEXT.encode("utf-16-le")),
    ("half a pair", request(Replacement("def g", "\ud800")), LF),
    ("no text", request(Replacement("a", "b")), b"\x00a"),
    ("nothing there", request(Replacement("a", "b")), None),
    ("a new file", request(Replacement("", "b\n"), Replacement("b", "c")), None),
    ("two new files", request(Replacement("", "b\n"), Replacement("", "c")), None),
    ("a new file with a slip", request(Replacement("", "..."), content=None), None),
    ("empty in an old edit_request", request(Replacement("", "b\n")), LF),
    ("not read", request(Replacement("def g", "def h"), must_be_read=True), LF),
    (
        "read in part",
        replace(
            request(Replacement("def f", "def e"), must_be_read=True),
            shown=ShownLines(digest_bytes(LF), 5, whole=False),
        ),
        LF,
    ),
    ("read", request(Replacement("def g", "def h"), must_be_read=True, digest=digest_bytes(LF)), LF),
    ("changed since", request(Replacement("def g", "def h"), must_be_read=True, digest="0"), LF),
    ("changed too much", request(Replacement("return 1", "x"), must_be_read=True, digest="0"), LF),
    ("changed, no text", request(Replacement("a", "x"), must_be_read=True, digest="0"), b"\x00"),
    ("overwritten", request(content="other\n"), LF),
    ("written empty", request(content=""), LF),
    ("written alike", request(content=TEXT), LF),
    ("written unread", request(content="other\n", must_be_read=True), LF),
    ("written first", request(content="first\n"), None),
    ("broken", request(Replacement("def g():", "def g("), path="/w/a.py"), LF),
    ("outside", request(Replacement("def g", "def h"), path="/elsewhere/a"), LF),
    ("a name of bytes", request(Replacement("def g", "def h"), path="/w/\udcff"), LF),
    ("left out", request(content="# ... rest of the code unchanged ...\n"), LF),
]


@pytest.mark.parametrize(("edit_request", "before"), [row[1:] for row in REQUESTS], ids=[r[0] for r in REQUESTS])
def test_requests_and_results_survive_the_message_to_a_worker(edit_request: EditRequest, before: bytes | None) -> None:
    assert decode_message(encode_message((edit_request, before))) == (edit_request, before)
    result = plan_edit_sync(edit_request, before)
    assert decode_message(encode_message(result)) == result


@pytest.mark.process
@pytest.mark.parametrize("name", ["CRLF", "miss", "read in part", "half a pair", "a name of bytes", "written first"])
async def test_a_worker_plans_the_same_as_a_thread(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    edit_request, before = next(row[1:] for row in REQUESTS if row[0] == name)
    expected = await plan_edit(edit_request, before)

    def is_heavy(*_: object) -> bool:
        return False

    monkeypatch.setattr(EditRequest, "is_light", is_heavy)
    assert await plan_edit(edit_request, before) == expected


@pytest.mark.parametrize(
    ("edit_request", "size", "light"),
    [
        (request(Replacement("a", "b")), LIGHT_CHARACTERS - 1, True),
        (request(Replacement("a", "b")), LIGHT_CHARACTERS + 1, False),
        (request(Replacement("a", "b" * LIGHT_CHARACTERS)), 1, False),
        (request(Replacement("a" * (LIGHT_CHARACTERS + 1), "b")), 1, False),
        (request(Replacement("a", "b" * 100, every=True)), LIGHT_CHARACTERS // 200, True),
        (request(Replacement("a", "b" * 100, every=True)), LIGHT_CHARACTERS // 50, False),
        (request(content="x" * LIGHT_CHARACTERS), 0, True),
        (request(content="x" * (LIGHT_CHARACTERS + 1)), 0, False),
        (request(Replacement("a", "b"), path="/w/a.py"), 10_000, True),
        (request(Replacement("a", "b"), path="/w/a.py"), 20_000, False),
        (request(Replacement("a", "b"), path="/w/a.json"), 20_000, True),
    ],
)
def test_a_heavy_edit_is_known_by_its_size(edit_request: EditRequest, size: int, light: bool) -> None:
    """A call that keeps the GIL blocks the event loop too."""
    assert edit_request.is_light(b"a" * size) is light
    assert edit_request.is_light(None) or not light


@pytest.mark.process
async def test_a_heavy_edit_is_planned_in_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    edit_request = request(Replacement("no such", "x"))
    found = await plan_edit(edit_request, b"line\n" * LIGHT_CHARACTERS)
    assert isinstance(found, EditRefusal)
    assert found.code == "no_match"
    run_instead(monkeypatch, "/bin/true")
    found = await plan_edit(edit_request, b"line\n" * LIGHT_CHARACTERS)
    assert found == EditRefusal("failed", "the process that plans the edit ended without a result; use a command")
    found = await plan_edit(edit_request, b"line\n")
    assert isinstance(found, EditRefusal)
    assert found.code == "no_match"


@pytest.mark.process
async def test_a_large_file_is_edited_in_a_worker() -> None:
    large = bytes(range(32, 127)) * (MAX_FILE_BYTES // 95)
    found = await plan_edit(request(Replacement(" ", "", every=True)), large)
    assert isinstance(found, EditPlan)
    assert found.after == large.replace(b" ", b"")


async def test_content_past_the_limit_starts_no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    run_instead(monkeypatch, "/nowhere")
    found = await plan_edit(request(content="x" * (MAX_FILE_BYTES + 1)), None)
    assert isinstance(found, EditRefusal)
    assert found.code == "too_large"


def test_the_limit_counts_bytes() -> None:
    found = plan_edit_sync(request(content="€" * (MAX_FILE_BYTES // 2)), None)
    assert isinstance(found, EditRefusal)
    assert found.code == "too_large"


@pytest.mark.process
@pytest.mark.parametrize(("program", "code"), [("/bin/sleep", "timeout"), ("/no", "spawn")])
async def test_a_worker_without_a_result_refuses_the_edit(
    program: str, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "DEADLINE_S", 0.2 if code == "timeout" else 20)
    run_instead(monkeypatch, program, "60")
    found = await plan_edit(request(content="x" * 2 * LIGHT_CHARACTERS), None)
    assert isinstance(found, EditRefusal)
    assert found.code == code


def test_the_digest_tells_whether_the_file_was_read() -> None:
    edit_request = request(Replacement("a", "b"), must_be_read=True, digest=digest_bytes(b"a"))
    assert isinstance(plan_edit_sync(edit_request, b"a"), EditPlan)
    changed = plan_edit_sync(edit_request, b"b")
    assert isinstance(changed, EditRefusal)
    assert changed.code == "stale"
