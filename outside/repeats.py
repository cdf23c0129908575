"""`make repeats`: run the whole suite many times, every other time under load, and print a table.

Each run has its own order and its own hypothesis examples, both by seed. A loaded run shares the machine with busy
loops and with a process that writes to the disk and syncs. Rows are kept in `.outside/repeats.jsonl`, with the commit:
a run that this commit has had already isn't repeated, so that twenty runs may be ended and resumed. `--anew` repeats
all. Exit code 1 if any run failed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from outside.install import ROOT

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

_KEPT = ROOT / ".outside"
_ROWS = _KEPT / "repeats.jsonl"
_PYTHON = ".".join(map(str, sys.version_info[:3]))
_BUSY = "while True: pass"
_WRITE = """
import os
while True:
    with open("load", "wb") as file:
        for _ in range(64):
            file.write(bytes(1 << 20))
        file.flush()
        os.fsync(file.fileno())
"""


@dataclass(frozen=True)
class Row:
    """What one run of the suite gave."""

    commit: str
    python: str
    seed: int
    load: str
    code: int
    passed: int
    failed: int
    skipped: int
    seconds: int
    failures: list[str]


@contextmanager
def put_load(loops: int) -> Generator[None]:
    """Keep the machine busy inside the block: `loops` busy loops, and one writer."""
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        for script in [*[_BUSY] * loops, *[_WRITE] * bool(loops)]:
            process = subprocess.Popen([sys.executable, "-I", "-S", "-c", script], cwd=folder)
            stack.callback(process.wait)
            stack.callback(process.kill)
        yield


def read_counts(output: str) -> dict[str, int]:
    """Read the counts of pytest's closing lines, added up: a run has one line per tier."""
    counts: dict[str, int] = {}
    for line in re.findall(r"^=*\s*(\d+ \w+.* in [\d.]+s.*)$", output, re.MULTILINE):
        for number, word in re.findall(r"(\d+) (passed|failed|skipped|errors?)", line):
            name = "failed" if word.startswith("error") else word
            counts[name] = counts.get(name, 0) + int(number)
    return counts


def read_commit() -> str:
    """Return the short name of the commit, with `+` if the tree differs from it."""

    def ask(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()

    return ask("rev-parse", "--short", "HEAD") + "+" * bool(ask("status", "--porcelain"))


def read_rows(commit: str) -> dict[tuple[int, str], Row]:
    """Read the whole runs of a commit with this Python, by seed and load. A changed tree has none."""
    lines = _ROWS.read_text("utf-8").splitlines() if _ROWS.exists() else []
    rows = [Row(**json.loads(line)) for line in lines]
    return {
        (row.seed, row.load): row
        for row in rows
        if (row.commit, row.python) == (commit, _PYTHON) and row.passed and not commit.endswith("+")
    }


def describe_load(loops: int) -> str:
    """Describe what runs next to the suite."""
    return f"{loops} loops, disk" if loops else "none"


def run_suite(seed: int, loops: int, commit: str) -> Row:
    """Run the suite once."""
    argv = ["make", "suite", f"SEED={seed}"]
    began = time.monotonic()
    with put_load(loops), open(_KEPT / f"repeat-{seed}.log", "w+", encoding="utf-8") as file:
        code = subprocess.run(argv, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT, check=False).returncode
        file.seek(0)
        output = file.read()
    counts = read_counts(output)
    return Row(
        commit=commit,
        python=_PYTHON,
        seed=seed,
        load=describe_load(loops),
        code=code,
        passed=counts.get("passed", 0),
        failed=counts.get("failed", 0),
        skipped=counts.get("skipped", 0),
        seconds=round(time.monotonic() - began),
        failures=re.findall(r"^(?:FAILED|ERROR) (\S+)", output, re.MULTILINE),
    )


def print_table(rows: Sequence[Row]) -> None:
    """Print the rows as Markdown."""
    print("| Run | Commit | Python | Seed | Load | Passed | Failed | Skipped | Time |")
    print("|---|---|---|---|---|---|---|---|---|")
    for number, row in enumerate(rows, 1):
        length = f"{row.seconds // 60}:{row.seconds % 60:02d}"
        cells = (number, row.commit, row.python, row.seed, row.load, row.passed, row.failed, row.skipped, length)
        print("| " + " | ".join(map(str, cells)) + " |")


def main(arguments: Sequence[str]) -> int:
    """Run the suite many times; return the exit code."""
    parser = argparse.ArgumentParser(prog="outside.repeats", description=__doc__)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--loaded", type=int, help="how many of them under load (default: half)")
    parser.add_argument("--seed", type=int, default=1, help="the seed of the first run")
    parser.add_argument("--loops", type=int, default=2 * (os.cpu_count() or 1), help="busy loops of a loaded run")
    parser.add_argument("--anew", action="store_true", help="repeat the runs that this commit has had already")
    options = parser.parse_args(arguments)
    loaded = options.count // 2 if options.loaded is None else options.loaded
    _KEPT.mkdir(exist_ok=True)
    commit = read_commit()
    former = {} if options.anew else read_rows(commit)
    rows: list[Row] = []
    for number in range(options.count):
        # Spread the loaded runs evenly over all.
        is_loaded = (number + 1) * loaded // options.count > number * loaded // options.count
        seed = options.seed + number
        loops = options.loops if is_loaded else 0
        known = former.get((seed, describe_load(loops)))
        row = known or run_suite(seed, loops, commit)
        rows.append(row)
        if known is None:
            with open(_ROWS, "a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(row)) + "\n")
        ending = f", exit code {row.code}" if row.code else ""
        ending += ", ran before" if known else ""
        counts = f"{row.passed} passed, {row.failed} failed"
        print(f"seed {seed}, load {row.load}: {counts} in {row.seconds} s{ending}", flush=True)
        for name in row.failures:
            print(f"  {name}", flush=True)
    print_table(rows)
    return int(any(row.code for row in rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
