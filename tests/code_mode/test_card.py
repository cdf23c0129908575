"""`run_code` over real tools: what comes back, in which order calls run, and how a script fails."""

from __future__ import annotations

import os
import signal
from glob import glob
from pathlib import Path
from typing import TYPE_CHECKING, cast

import anyio
import pytest
from tests.support.code_mode import script_runs
from tests.support.tools import tool

from indusagi.core.cancel import CancelToken
from indusagi.runtime.contract import ToolCall, ToolOutcome, ToolProgress, ToolResult
from induscode.addons import Addon, Deny, InterceptedCall, Interceptor
from induscode.addons.chain import InterceptorChain, LoadedAddon
from induscode.code_mode.contract import CodeLimits
from induscode.deck.contract import Capability
from induscode.deck.provision import ToolDeck

if TYPE_CHECKING:
    from indusagi.capabilities.context import ToolContext
    from indusagi.core.json import JsonObject, JsonValue

pytestmark = pytest.mark.process


class CallLog:
    """An observer that keeps the id, the tool and the end of each call."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str, str]] = []

    def start(self, call: ToolCall, tool: object) -> LoggedCall:
        return LoggedCall(self, call)


class LoggedCall:
    def __init__(self, log: CallLog, call: ToolCall) -> None:
        self._log, self._call = log, call

    def finish(self, outcome: ToolOutcome | None) -> None:
        state = "cancelled" if outcome is None else str(outcome.details.get("code", "ok"))
        self._log.calls.append((self._call.id, self._call.name, state))


def kill_hosts() -> None:
    """Kill the interpreter processes of this process."""
    for children in glob("/proc/self/task/*/children"):
        for pid in Path(children).read_text(encoding="ascii").split():
            if b"monty_host" in Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(int(pid), signal.SIGKILL)


async def long_text(arguments: JsonObject, ctx: ToolContext) -> JsonValue:
    return "x" * 300_000


async def test_a_script_reads_whole_results_and_the_model_only_what_it_prints(tmp_path: Path) -> None:
    async with script_runs(tmp_path, more=[tool(long_text, name="long_text", read_only=True)]) as runs:
        direct = await runs.box.runner.run(ToolCall("1", "long_text", {}))
        assert len(str(direct.output)) < 60_000
        outcome = await runs.run("text = long_text()\nprint('read', len(text))\n{'length': len(text), 'list': [1, 2]}")
        assert outcome.output == 'read 300000\n{"length":300000,"list":[1,2]}'
        assert outcome.details == {"engine": "monty", "calls": [{"name": "long_text", "state": "ok"}]}
        # What the script gives to the model is cut as any result is.
        assert len(str((await runs.run("long_text()")).output)) < 60_000
        assert "printed nothing" in str((await runs.run("x = 1")).output)


async def test_a_denied_tool_raises_and_the_script_may_go_on(tmp_path: Path) -> None:
    log = CallLog()
    async with script_runs(tmp_path, observer=log) as runs:
        outcome = await runs.run(
            "try:\n    open_vault()\nexcept PermissionError as exc:\n    print(exc)\necho(text='on')"
        )
        assert "open-vault was not run: it is denied" in str(outcome.output)
        assert str(outcome.output).endswith("\non")
    assert runs.ran == [("echo", {"text": "on"})]
    # Recorded as the tools they are, with the id of the script in front of their own.
    assert log.calls == [("call_1/1", "open-vault", "denied"), ("call_1/2", "echo", "ok"), ("call_1", "run_code", "ok")]


async def test_reading_calls_run_at_once_and_changing_ones_alone(tmp_path: Path) -> None:
    met, waiting = anyio.Event(), 0
    running: list[str] = []

    async def meet(arguments: JsonObject, ctx: ToolContext) -> JsonValue:
        nonlocal waiting
        waiting += 1
        if waiting == 3:
            met.set()
        await met.wait()  # ends only if all three are here
        return waiting

    async def change_alone(arguments: JsonObject, ctx: ToolContext) -> JsonValue:
        assert running == []
        running.append("change")
        await anyio.lowlevel.checkpoint()
        running.remove("change")
        return arguments["n"]

    more: list[Capability] = [tool(meet, name="meet", read_only=True), tool(change_alone, name="alone")]
    async with script_runs(tmp_path, more=more) as runs:
        script = "import asyncio\nawait asyncio.gather(*[{} for n in range(3)])"
        assert (await runs.run(script.format("meet()"))).output == "[3,3,3]"
        assert (await runs.run(script.format("alone(n=n)"))).output == "[0,1,2]"


async def test_a_failure_says_where_and_what_was_done(tmp_path: Path) -> None:
    async with script_runs(tmp_path, limits=CodeLimits(calls=3)) as runs:
        outcome = await runs.run("echo(text='a')\nx = (1")
        assert (outcome.is_error, outcome.details["code"]) == (True, "syntax_error")
        assert str(outcome.output).endswith("Nothing ran.")
        assert runs.ran == []

        code = "def f(n):\n    return change(n=n) and 1 / n\n\nprint('first')\nf(1)\nf(0)"
        outcome = await runs.run(code)
        assert outcome.details["code"] == "script_failed"
        assert outcome.output == (
            "first\nline 6: f(0)\nline 2 in f: return change(n=n) and 1 / n\nZeroDivisionError: division by zero\n"
            "2 calls made before, not undone: change ok (2)."
        )

        outcome = await runs.run("echo(wrong=1)")
        assert "line 1: echo(wrong=1)\nValueError: echo was not run, the arguments do not fit" in str(outcome.output)
        assert "echo invalid_arguments" in str(outcome.output)

        outcome = await runs.run("for i in range(9): echo(text=str(i))")
        assert "RuntimeError: a script makes 3 calls at most" in str(outcome.output)
        assert "3 calls made before, not undone: echo ok (3)." in str(outcome.output)

        outcome = await runs.run("x = echo(text='a')\nawait echo(text='b')\nx + 'c'")
        assert "every call of a tool needs one" in str(outcome.output)
        outcome = await runs.run("echo(text={1, 2})")
        assert "TypeError: echo: the arguments are no JSON" in str(outcome.output)
        outcome = await runs.run("#" * 100_001)
        assert "Nothing ran: the script has 100,001 characters" in str(outcome.output)


async def test_interceptors_see_every_call_of_a_script(tmp_path: Path) -> None:
    seen: list[str] = []

    class Guard(Interceptor):
        async def before(self, call: InterceptedCall) -> Deny | None:
            seen.append(call.tool)
            return Deny("not on Fridays") if call.tool == "change" else None

    chain = InterceptorChain([LoadedAddon("guard", "test", Addon(interceptors=[Guard()]))])
    async with script_runs(tmp_path) as runs:
        cards = cast("dict[str, Capability]", runs.box.runner.cards)
        runs.box = ToolDeck(cards.values(), runs.box.context).map_capabilities(chain.wrap).into_tool_box()
        outcome = await runs.run("echo(text='a')\nchange()")
        assert "PermissionError: change was not run: the addon 'guard' denies it: not on Fridays" in str(outcome.output)
    assert seen == ["run_code", "echo", "change"]
    assert [name for name, _ in runs.ran] == ["echo"]


async def test_cancelling_a_script_cancels_its_calls_and_ends_its_interpreter(tmp_path: Path) -> None:
    token, started, ended = CancelToken(), anyio.Event(), anyio.Event()

    async def hang(arguments: JsonObject, ctx: ToolContext) -> JsonValue:
        started.set()
        try:
            await anyio.sleep_forever()
        finally:
            ended.set()

    outcomes: list[ToolOutcome] = []
    progress: list[ToolProgress] = []
    async with script_runs(tmp_path, more=[tool(hang, name="hang", read_only=True)]) as runs:
        async with anyio.create_task_group() as tasks:

            async def run() -> None:
                outcomes.append(await runs.run("echo(text='a')\nhang()", token, progress.append))

            tasks.start_soon(run)
            await started.wait()
            token.cancel("SIGINT")
        assert ended.is_set()
        assert outcomes[0].details["code"] == "cancelled"
    assert [(report.done, report.message) for report in progress] == [(1, "echo"), (2, "hang")]


async def test_an_interpreter_that_is_killed_is_an_error_and_the_next_script_runs(tmp_path: Path) -> None:
    async def kill_interpreter(arguments: JsonObject, ctx: ToolContext) -> JsonValue:
        await anyio.to_thread.run_sync(kill_hosts)
        await anyio.sleep_forever()

    more = [tool(kill_interpreter, name="kill_interpreter")]
    async with script_runs(tmp_path, more=more, limits=CodeLimits(wall_s=20)) as runs:
        outcome = await runs.run("echo(text='a')\nkill_interpreter()")
        assert outcome.details["code"] == "interpreter_ended"
        assert "echo ok" in str(outcome.output)
        assert (await runs.run("echo(text='b')")).output == "b"


async def test_a_result_that_is_too_large_for_the_interpreter_raises(tmp_path: Path) -> None:
    async with script_runs(
        tmp_path, more=[tool(long_text, name="long_text")], limits=CodeLimits(value_bytes=1_000)
    ) as runs:
        outcome = await runs.run("long_text()")
        assert "MemoryError: the result of long_text: 300,002 characters" in str(outcome.output)
        outcome = await runs.run("echo(text='x' * 2_000)")
        assert "MemoryError: the arguments of echo: " in str(outcome.output)
    assert runs.ran == []


async def test_the_word_await_outside_of_the_code_changes_no_call(tmp_path: Path) -> None:
    async with script_runs(tmp_path) as runs:
        for code in ("# no await here\n{}", "'we await it'\n{}", '"""\nawait\n"""\n{}'):
            assert (await runs.run(code.format("echo(text='a')"))).output == "a"
        assert (await runs.run("f\"{await echo(text='b')}\"")).output == "b"
        assert (await runs.run("[await echo(text=t) for t in 'cd']")).output == '["c","d"]'


async def test_a_value_that_was_not_awaited_is_an_error_that_says_so(tmp_path: Path) -> None:
    async with script_runs(tmp_path) as runs:
        for last in ("echo(text='b')", "[echo(text='b')]", "{'b': echo(text='b')}"):
            outcome = await runs.run(f"await echo(text='a')\n{last}")
            assert outcome.is_error
            assert "its value is no result but a call. In a script with `await`, every call" in str(outcome.output)
            assert "2 calls made before, not undone: echo ok (2)." in str(outcome.output)


async def test_values_that_json_cannot_carry_are_described(tmp_path: Path) -> None:
    async with script_runs(tmp_path) as runs:
        outcome = await runs.run("10 ** 5000")
        assert not outcome.is_error
        assert str(outcome.output).startswith("a value of the type int that cannot be shown: Exceeds the limit")
        assert (await runs.run("{1}")).output == "{1}"
        assert (await runs.run("''")).output == "The script printed nothing, and its value is an empty text."


async def test_a_failing_tool_raises_its_own_text(tmp_path: Path) -> None:
    async def fail(arguments: JsonObject, ctx: ToolContext) -> ToolResult:
        return ToolResult.error(str(arguments["text"]), code=str(arguments["code"]))

    async with script_runs(tmp_path, more=[tool(fail, name="fail")]) as runs:
        for code, error in (("timeout", "TimeoutError"), ("drift", "RuntimeError"), ("denied", "PermissionError")):
            outcome = await runs.run(f"fail(text='why {code}', code={code!r})")
            assert f"{error}: why {code}\n1 call made before, not undone: fail {code}." in str(outcome.output)
