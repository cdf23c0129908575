"""Worker processes: results, failures, limits and what the process can see."""

from __future__ import annotations

import io
import os
import resource
import sys
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.waiting import until

from indusagi.capabilities import worker
from indusagi.capabilities.files.lines import ReadFailure, format_path
from indusagi.capabilities.files.media import parse_page_range
from indusagi.capabilities.worker import (
    WorkerError,
    WorkerLimits,
    build_command,
    decode_message,
    encode_message,
    run_in_thread,
    run_in_worker,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

pytestmark = pytest.mark.anyio


@dataclass(frozen=True)
class Sample:
    """A dataclass that goes through a message."""

    text: str
    data: bytes = b""
    pair: tuple[int, int] = (1, 2)
    facts: dict[str, object] = field(default_factory=dict[str, object])


@pytest.fixture
def run_instead(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Replace the worker process by another program."""

    def replace(*argv: str) -> None:
        def command(*_: object) -> list[str]:
            return [*argv]

        monkeypatch.setattr(worker, "build_command", command)

    return replace


@pytest.mark.process
async def test_a_function_returns_the_same_in_a_worker_and_in_a_thread() -> None:
    in_worker = await run_in_worker(parse_page_range, "5-3", returns=(ReadFailure,), deadline_s=20)
    assert in_worker == parse_page_range("5-3") == await run_in_thread(parse_page_range, "5-3")
    assert await run_in_worker(parse_page_range, "3", deadline_s=20) == (3, 3)


@pytest.mark.process
async def test_an_exception_in_the_worker_is_an_error() -> None:
    with pytest.raises(WorkerError, match=r"^ended without a result$") as caught:
        await run_in_worker(parse_page_range, 3, deadline_s=20)  # pyright: ignore[reportArgumentType]
    assert caught.value.code == "failed"


@pytest.mark.process
async def test_a_dataclass_that_the_caller_does_not_expect_is_an_error() -> None:
    with pytest.raises(WorkerError, match="ended without a result"):
        await run_in_worker(parse_page_range, "5-3", deadline_s=20)


@pytest.mark.process
@pytest.mark.parametrize("code", ["pass", "print('[1')", "import os; os.abort()", "print('[1' * 9_000_000)"])
async def test_a_worker_that_dies_or_writes_garbage_is_an_error(code: str, run_instead: Callable[..., None]) -> None:
    run_instead(sys.executable, "-Ic", code)
    with pytest.raises(WorkerError, match="ended without a result") as caught:
        await run_in_worker(format_path, "x" * 200_000, deadline_s=20)
    assert caught.value.code == "failed"


@pytest.mark.process
async def test_a_worker_is_killed_at_the_deadline(run_instead: Callable[..., None]) -> None:
    run_instead("/bin/sleep", "60")
    with anyio.fail_after(60), pytest.raises(WorkerError, match=r"took longer than 0\.1 seconds") as caught:
        await run_in_worker(format_path, "x", deadline_s=0.1)
    assert caught.value.code == "timeout"


@pytest.mark.process
async def test_a_cancelled_caller_kills_the_worker(tmp_path: Path, run_instead: Callable[..., None]) -> None:
    pid_file = tmp_path / "pid"
    run_instead("/bin/sh", "-c", f"echo $$ > {pid_file}.new; mv {pid_file}.new {pid_file}; exec sleep 60")
    async with anyio.create_task_group() as tasks:

        async def call() -> None:
            await run_in_worker(format_path, "x", deadline_s=50)

        tasks.start_soon(call)
        await until(pid_file.exists)
        tasks.cancel_scope.cancel()
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid_file.read_text()), 0)


@pytest.mark.process
async def test_a_worker_that_cannot_be_started_is_an_error(run_instead: Callable[..., None]) -> None:
    run_instead("/no/such/python")
    with pytest.raises(WorkerError, match=r"^cannot be started: No such file or directory$") as caught:
        await run_in_worker(format_path, "x", deadline_s=20)
    assert caught.value.code == "spawn"


@pytest.mark.process
async def test_a_result_is_kept_up_to_a_limit(
    run_instead: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []

    def measure(pieces: Sequence[bytes], _types: object) -> None:
        sizes.append(len(b"".join(pieces)))

    monkeypatch.setattr(worker, "_MAX_RESULT_BYTES", 100_000)
    monkeypatch.setattr(worker, "decode_message", measure)
    run_instead(sys.executable, "-Ic", "import sys\nfor _ in range(64): sys.stdout.write('x' * 65536)")
    await run_in_worker(format_path, "x", deadline_s=20)
    assert 100_000 <= sizes[0] < 1_000_000


@pytest.mark.process
async def test_a_worker_inherits_no_secret(run_instead: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[bytes] = []

    def keep(pieces: Sequence[bytes], _types: object) -> None:
        names.extend(b"".join(pieces).split())

    monkeypatch.setenv("SOME_API_KEY", "secret")
    monkeypatch.setattr(worker, "decode_message", keep)
    run_instead(sys.executable, "-Ic", "import os; print(*os.environ)")
    await run_in_worker(format_path, "x", deadline_s=20)
    assert b"PATH" in names
    assert b"SOME_API_KEY" not in names


@pytest.mark.process
async def test_a_module_in_the_working_directory_is_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "missing_library.py").write_text("def f(): return 'of another party'", encoding="utf-8")
    monkeypatch.chdir(tmp_path)

    def f() -> str:
        return ""

    f.__module__, f.__qualname__ = "missing_library", "f"
    with pytest.raises(WorkerError, match="ended without a result"):
        await run_in_worker(f, library="missing_library", deadline_s=20)


def test_a_library_is_found_where_it_is_installed() -> None:
    isolated = build_command(format_path, "pytest", None)
    assert isolated[1] == "-I"
    assert isolated[7] in sys.path
    assert build_command(format_path, "no_such_library", None)[7] == ""


def test_limits_go_to_the_command_line() -> None:
    target = f"{format_path.__module__}:format_path"
    assert build_command(format_path, "", WorkerLimits(20, 1 << 30))[8:] == [target, "20", str(1 << 30)]
    assert build_command(format_path, "", None)[8:] == [target]


@pytest.mark.parametrize("refused", [False, True])
def test_the_worker_sets_its_limits_and_answers_one_request(refused: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[int] = []

    def setrlimit(_kind: int, limit: tuple[int, int]) -> None:
        limits.append(limit[0])
        if refused:
            raise ValueError("current limit exceeds maximum limit")

    reply = io.BytesIO()
    monkeypatch.setattr("resource.setrlimit", setrlimit)
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"".join(encode_message(("h\xe9",))))))
    monkeypatch.setattr(sys, "stdout", SimpleNamespace(buffer=reply))
    worker.main(f"{format_path.__module__}:format_path", "20", "1000")
    assert decode_message([reply.getvalue()]) == "h\xe9"
    assert limits == [1000, 20]


@pytest.mark.process
async def test_limits_hold_in_the_process() -> None:
    for kind, limit in ((resource.RLIMIT_CPU, 20), (resource.RLIMIT_AS, 1 << 31)):
        found = await run_in_worker(resource.getrlimit, kind, limits=WorkerLimits(20, 1 << 31), deadline_s=20)
        assert found == (limit, limit)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.binary() | st.builds(Sample, st.text(), st.binary()),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=5), inner, max_size=3)
        | st.tuples(inner, inner)
    ),
    max_leaves=8,
)


@given(VALUES)
def test_finding_e10_a_message_is_read_as_it_was_written(value: object) -> None:
    assert decode_message(encode_message(value)) == value


@pytest.mark.parametrize("text", ["\ud83d\ude00", "\ud800", "x" * 100_000, "é" * 100_000])
def test_surrogates_and_long_texts_survive_a_message(text: str) -> None:
    assert decode_message(encode_message([text])) == [text]


def test_an_incomplete_message_is_invalid() -> None:
    whole = b"".join(encode_message(Sample("a", b"x" * 10)))
    assert decode_message([whole]) == Sample("a", b"x" * 10)
    for end in range(len(whole)):
        with pytest.raises(ValueError, match=r"bytes instead of|column|invalid message"):
            decode_message([whole[:end]])


@pytest.mark.parametrize(
    "head",
    [
        b"1",
        b"[{}]",
        b"[{}, 1]",
        b"[" * 200_000,
        b"x",
        b"[{}, [3]]",
        b'[{"text": 0}, []]',
        b'[{"object": ["os:system", {"command": "true"}]}, []]',
    ],
)
def test_an_invalid_message_is_refused(head: bytes) -> None:
    with pytest.raises(ValueError, match=r"bytes instead of|column|invalid message|not enough values"):
        decode_message([len(head).to_bytes(8, "big") + head], {})


def test_only_expected_types_are_built() -> None:
    pieces = encode_message(Sample("a"))
    assert decode_message(pieces, {f"{__name__}:Sample": Sample}) == Sample("a")
    with pytest.raises(ValueError, match="invalid message"):
        decode_message(pieces, {})
