from __future__ import annotations

import gc
import os
from typing import TYPE_CHECKING

import pytest
from tests.support.tools import box_of, call, context, tool

from indusagi.capabilities.context import Framework, PerContext, ReadState
from indusagi.capabilities.local import make_local_context
from indusagi.capabilities.local.fs import LocalFs
from indusagi.capabilities.local.shell import LocalShell
from indusagi.core.cancel import CancelToken
from indusagi.runtime.contract import ToolCall, ToolProgress

if TYPE_CHECKING:
    from pathlib import Path

    from indusagi.capabilities.context import ToolContext

pytestmark = pytest.mark.anyio


def test_local_context_has_an_absolute_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert make_local_context(".").cwd == os.path.abspath(tmp_path)
    assert make_local_context(tmp_path / "sub").cwd == str(tmp_path / "sub")


def test_ports_and_handles_can_be_injected(tmp_path: Path) -> None:
    fs, shell, state = LocalFs("/"), LocalShell("/"), ReadState()
    ctx = make_local_context(str(tmp_path), fs, shell, Framework(read_state=state))
    assert (ctx.fs, ctx.shell, ctx.framework.read_state) == (fs, shell, state)
    assert make_local_context(tmp_path).framework.read_state is not None


def test_context_of_a_call_keeps_the_identity(tmp_path: Path) -> None:
    ctx = context(tmp_path)
    token = CancelToken()
    derived = ctx.with_cancel(token)
    assert derived.context_id is ctx.context_id
    assert (derived.cancel, ctx.cancel is token) == (token, False)


def test_contexts_have_different_identities(tmp_path: Path) -> None:
    assert context(tmp_path).context_id != context(tmp_path).context_id


async def test_store_is_shared_within_a_toolbox_only(tmp_path: Path) -> None:
    stores: PerContext[list[str]] = PerContext(list)

    async def remember(arguments: object, ctx: ToolContext) -> str:
        stores.of(ctx).append("x")
        return str(len(stores.of(ctx)))

    one = box_of(context(tmp_path), tool(remember))
    other = box_of(context(tmp_path), tool(remember))
    outputs = [
        (await one.runner.run(ToolCall("1", "probe", {}), CancelToken())).output,
        (await call(one, "probe")).output,
        (await call(other, "probe")).output,
    ]
    assert outputs == ["1", "2", "1"]


def test_store_is_freed_with_the_last_context(tmp_path: Path) -> None:
    stores: PerContext[list[str]] = PerContext(list)
    ctx = context(tmp_path)
    stores.of(ctx)
    derived = ctx.with_cancel(CancelToken())
    del ctx
    gc.collect()
    assert len(stores) == 1
    del derived
    gc.collect()
    assert len(stores) == 0


async def test_progress_reaches_the_sink_of_the_call(tmp_path: Path) -> None:
    async def run(arguments: object, ctx: ToolContext) -> str:
        ctx.report(ToolProgress(1, 2, "half"))
        return "done"

    box = box_of(context(tmp_path), tool(run))
    heard: list[ToolProgress] = []
    followed = await box.runner.run(ToolCall("1", "probe", {}), on_progress=heard.append)
    alone = await box.runner.run(ToolCall("2", "probe", {}))
    assert (followed.output, alone.output, heard) == ("done", "done", [ToolProgress(1, 2, "half")])


async def test_closers_run_in_reverse_order(tmp_path: Path) -> None:
    ended: list[str] = []

    async def end(name: str) -> None:
        ended.append(name)

    async with context(tmp_path) as ctx:
        ctx.closing.add(lambda: end("first"))
        ctx.with_cancel(CancelToken()).closing.add(lambda: end("second"))
        assert ended == []
    assert ended == ["second", "first"]
    await ctx.aclose()
    assert ended == ["second", "first"]


async def test_failing_closer_does_not_stop_the_others(tmp_path: Path) -> None:
    ended: list[str] = []

    async def end() -> None:
        ended.append("closed")

    async def fail() -> None:
        raise OSError("stuck")

    ctx = context(tmp_path)
    ctx.closing.add(end)
    ctx.closing.add(fail)
    with pytest.raises(ExceptionGroup) as caught:
        await ctx.aclose()
    assert [str(exc) for exc in caught.value.exceptions] == ["stuck"]
    assert ended == ["closed"]
