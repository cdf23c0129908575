"""The process of a slot: it has loaded the libraries, and forks for each run of pytest.

A run begins with what is slow already done, and imports `src` and the tests anew, so that a changed file takes effect
wherever it is used. It reads a request per line of standard input, and writes a line when the run has ended. It imports
nothing of ours.
"""

from __future__ import annotations

import ast
import ctypes
import gc
import importlib
import json
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import pytest

from outside.mutants import recorder

if TYPE_CHECKING:
    from collections.abc import Generator

    from coverage import Coverage

_PR_SET_CHILD_SUBREAPER = 36
_IMPORT = "import of "
_ARGUMENTS = ("-q", "-p", "no:xdist", "-W", "ignore::pytest.PytestAssertRewriteWarning")


class Reporter:
    """Pytest plugin that runs the given tests in the given order, and writes a line for each."""

    def __init__(self, tests: list[str], reports: TextIO) -> None:
        self._order = {test: number for number, test in enumerate(tests)}
        self._reports = reports
        self._took_s: dict[str, float] = {}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Keep the given tests, in their order; all if none are given."""
        if self._order:
            items[:] = sorted(
                (item for item in items if item.nodeid in self._order), key=lambda item: self._order[item.nodeid]
            )

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Write which test begins, in case that it never ends."""
        self._write({"began": nodeid})

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Write the outcome of a test; a failed phase is an outcome of its own."""
        self._took_s[report.nodeid] = self._took_s.get(report.nodeid, 0.0) + report.duration
        if report.failed or report.when == "teardown":
            self._write(
                {
                    "test": report.nodeid,
                    "failed": report.failed,
                    "s": round(self._took_s[report.nodeid], 4),
                    "why": _explain(report),
                    "slow_kind": any(word in report.keywords for word in ("process", "realtime")),
                }
            )

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Write that a file cannot be collected."""
        if report.failed:
            self._write({"test": report.nodeid, "failed": True, "s": 0.0, "why": _explain(report)})

    def _write(self, row: dict[str, Any]) -> None:
        self._reports.write(json.dumps(row) + "\n")
        self._reports.flush()


def _explain(report: pytest.TestReport | pytest.CollectReport) -> str:
    if not report.failed:
        return ""
    crash = getattr(report.longrepr, "reprcrash", None)
    return report.longreprtext[-300:] if crash is None else f"{crash.message[:300]}\n"


class LineRecorder:
    """Pytest plugin that records the lines that each test runs, here and in what it starts."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._coverage: Coverage | None = None
        self._test = ""

    def pytest_collection(self) -> None:
        """Begin."""
        self._coverage = recorder.start_coverage()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_make_collect_report(self, collector: pytest.Collector) -> Generator[None, object, object]:
        """Record what a test file calls when it is imported for all its tests."""
        if isinstance(collector, pytest.Module) and self._coverage is not None:
            self._coverage.switch_context(f"{_IMPORT}{collector.nodeid}")
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Record for a test."""
        self._test = item.nodeid
        self._switch(self._test)
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[object]) -> Generator[None, object, object]:
        """Record what serves many tests for all tests of the file."""
        if fixturedef.scope == "function":
            return (yield)
        self._switch(self._test.partition("::")[0])
        try:
            return (yield)
        finally:
            self._switch(self._test)

    def _switch(self, context: str) -> None:
        Path(recorder.CURRENT).write_text(context, "utf-8")
        if self._coverage is not None:
            self._coverage.switch_context(context)

    def pytest_sessionfinish(self) -> None:
        """Write the tests of each line, and which libraries were loaded.

        After this, `tests/conftest.py` soon ends a process in which a test has failed.
        """
        lines: dict[str, dict[int, list[str]]] = {}
        if self._coverage is not None:
            self._coverage.stop()
            data = self._coverage.get_data()
            for file in data.measured_files():
                found = leave_out_imports(data.contexts_by_lineno(file), Path(file).read_bytes())
                lines[os.path.relpath(file, recorder.SOURCES)] = found
        loaded = sorted(name for name, module in sys.modules.items() if _is_library(module))
        Path(self._path).write_text(json.dumps({"lines": lines, "loaded": loaded}), "utf-8")


def leave_out_imports(contexts: dict[int, list[str]], source: bytes) -> dict[int, list[str]]:
    """Return the tests or files of each line, without the files that merely were the first to import the module."""
    inner: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            body = node.body[0] if isinstance(node.body, list) else node.body
            inner.update(range(body.lineno, (node.end_lineno or body.lineno) + 1))
    return {
        line: [name.removeprefix(_IMPORT) for name in names if line in inner or not name.startswith(_IMPORT)]
        for line, names in contexts.items()
    }


def _is_library(module: object) -> bool:
    return "site-packages" in str(getattr(module, "__file__", None) or "")


def run(request: dict[str, Any]) -> int:
    """Run pytest in this process."""
    os.setpgid(0, 0)
    with open(os.devnull, "rb") as nothing, open(request["log"], "wb") as log:
        os.dup2(nothing.fileno(), 0)
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    with open(request["reports"], "w", encoding="utf-8") as reports:
        plugins: list[object] = [Reporter(request["tests"], reports)]
        if request["record"]:
            plugins.append(LineRecorder(request["record"]))
        return int(pytest.main([*_ARGUMENTS, *request["arguments"], *request["files"]], plugins=plugins))


def wait(pid: int, limit_s: float) -> int | None:
    """Wait for a process, and for whatever lost its parent meanwhile; return the wait status, or None at the limit."""
    end = time.monotonic() + limit_s
    while True:
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == pid:
                    return ended[1]
        left = end - time.monotonic()
        if left <= 0:
            return None
        signal.sigtimedwait([signal.SIGCHLD], left)


def list_descendants() -> list[int]:
    """List the processes below this one."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended meanwhile
            parents[int(entry.parent.name)] = int(entry.read_text("utf-8", "replace").rpartition(")")[2].split()[1])
    below = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in below} - below:
        below |= more
    return sorted(below - {os.getpid()})


def end_descendants() -> None:
    """End what a run has left behind."""
    for _ in range(100):
        left = list_descendants()
        if not left:
            return
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        wait(-1, 0.05)


def main(preload: list[str]) -> None:
    """Serve requests until the end of standard input."""
    # Not in the runs: a terminal that a test opens would become that of the run, and end it when it hangs up.
    os.setsid()
    for name in preload:
        with suppress(BaseException):  # some need more than is installed
            importlib.import_module(name)
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    gc.collect()
    gc.freeze()
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    answers.write("ready\n")
    answers.flush()
    while line := sys.stdin.readline():
        request = json.loads(line)
        pid = os.fork()
        if not pid:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
            code = 70
            try:
                code = run(request)
            finally:
                os._exit(code)
        status = wait(pid, request["limit_s"])
        end_descendants()
        answers.write(json.dumps({"code": None if status is None else os.waitstatus_to_exitcode(status)}) + "\n")
        answers.flush()


if __name__ == "__main__":
    sys.path.insert(0, os.getcwd())
    main(Path(sys.argv[1]).read_text("utf-8").split())
