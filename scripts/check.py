"""Run checks and print how long each took.

`make test` runs them all, `make lint`, `types`, `arrows`, `suite` and `unit` run one. All stages run even if one
fails, so that a single run shows everything there is to fix. Types are checked next to the tests, which wait a lot.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
BIN = Path(".venv", "bin")
PYTEST = [str(BIN / "python"), "-m", "pytest", "-q"]
SPREAD = ["-n", "auto", "--dist", "worksteal"]
FEW = ["--hypothesis-profile", "few"]


@dataclass(frozen=True)
class Stage:
    """One check: what it looks at, and the commands that do it."""

    about: str
    commands: list[list[str]]


@dataclass(frozen=True)
class Result:
    """How a stage ended."""

    name: str
    seconds: float
    is_ok: bool


def build_stages(seed: str) -> dict[str, Stage]:
    """Build the table of stages. A seed shuffles the tests and draws new hypothesis examples."""
    shuffled = ["-p", "tests.support.order", "--order-seed", seed, "--hypothesis-seed", seed] if seed else []
    fresh = ["--hypothesis-profile", "fresh"] if seed else []
    realtime = sorted(
        str(path.relative_to(ROOT))
        for path in (ROOT / "tests").rglob("test_*.py")
        if "mark.realtime" in path.read_text(encoding="utf-8")
    )
    return {
        "lint": Stage("format and style", [_tool("ruff", "format", "--check"), _tool("ruff", "check")]),
        "arrows": Stage("which package may import which", [_tool("lint-imports", "--no-logo")]),
        "types": Stage("pyright in strict mode", [_tool("pyright")]),
        "suite": Stage(
            "every test that doesn't need real time", [[*PYTEST, *SPREAD, "-m", "not realtime", *shuffled, *fresh]]
        ),
        "realtime": Stage(
            "the few tests that do, with wide limits",
            [[*PYTEST, "-n", "2", "-m", "realtime", "--timeout", "300", *shuffled, *realtime]],
        ),
        "unit": Stage(
            "the tests that start no process", [[*PYTEST, *SPREAD, "-m", "not process and not realtime", *FEW]]
        ),
    }


def _tool(name: str, *arguments: str) -> list[str]:
    return [str(BIN / name), *arguments]


class Background:
    """A stage that runs next to the others; its output is printed when it's over."""

    def __init__(self, name: str, stage: Stage) -> None:
        self.name = name
        self._began = time.monotonic()
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 — `stop` closes it
        (command,) = stage.commands
        # A group of its own: the checker is a child of its launcher, and both have to go on Ctrl-C.
        self._process = subprocess.Popen(command, stdout=self._output, stderr=subprocess.STDOUT, start_new_session=True)
        self._seconds = 0.0
        self._watch = threading.Thread(target=self._wait)
        self._watch.start()

    def _wait(self) -> None:
        self._process.wait()
        self._seconds = time.monotonic() - self._began

    def finish(self) -> Result:
        """Wait for the end, and print the output."""
        self._watch.join()
        self._output.seek(0)
        print(f"\n== {self.name}", flush=True)
        sys.stdout.buffer.write(self._output.read())
        return Result(self.name, self._seconds, self._process.returncode == 0)

    def stop(self) -> None:
        """Kill what still runs."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._watch.join()
        self._output.close()


def run_stage(name: str, stage: Stage) -> Result:
    """Run the commands of a stage, up to the first that fails."""
    print(f"\n== {name}: {stage.about}", flush=True)
    began = time.monotonic()
    is_ok = all(subprocess.run(command, check=False).returncode == 0 for command in stage.commands)
    return Result(name, time.monotonic() - began, is_ok)


def run_all(stages: dict[str, Stage]) -> list[Result]:
    """Run every stage of `make test`."""
    results = [run_stage(name, stages[name]) for name in ("lint", "arrows")]
    print("\n== types: start in the background", flush=True)
    types = Background("types", stages["types"])
    try:
        results += [run_stage(name, stages[name]) for name in ("suite", "realtime")]
        results.append(types.finish())
    finally:
        types.stop()
    return results


def print_times(results: list[Result], seconds: float) -> None:
    """Print a row per stage, and the total."""
    print()
    for result in [*results, Result("in all", seconds, all(result.is_ok for result in results))]:
        print(f"{result.name:10} {'ok' if result.is_ok else 'FAILED':6} {_format_time(result.seconds):>12}")


def _format_time(seconds: float) -> str:
    return f"{int(seconds // 60)} min {int(seconds % 60):2} s" if seconds >= 60 else f"{seconds:.1f} s"


def main() -> int:
    """Run what the command line names; return the exit code."""
    parser = argparse.ArgumentParser(prog="check", description=__doc__)
    parser.add_argument("stages", nargs="*", help="the stages to run (default: all)")
    parser.add_argument("--seed", default="", help="shuffle the tests, and draw new hypothesis examples")
    options = parser.parse_args()
    os.chdir(ROOT)
    stages = build_stages(options.seed)
    began = time.monotonic()
    try:
        results = [run_stage(name, stages[name]) for name in options.stages] if options.stages else run_all(stages)
    except KeyboardInterrupt:
        return 130
    print_times(results, time.monotonic() - began)
    return 0 if all(result.is_ok for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
