"""Which tests run which lines, and how long they take: recorded once for a tree, and kept in `.outside`.

If only test files have changed since, only they are recorded anew.
"""

from __future__ import annotations

import gzip
import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from time import monotonic
from typing import TYPE_CHECKING, Any

from outside.install import HOME, ROOT
from outside.say import say

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from outside.mutants.slots import Run, Slot

_FILES_AT_ONCE = 6
_FINISHED = (0, 1, 5)
"""Exit codes of pytest after which every test of the files has an outcome: passed, failed, there are none."""
_SAVED_EVERY_S = 60.0
"""What is recorded is kept this often, so that a run that is ended goes on where it was."""
_LEFT_OUT = ("tests/architecture", "tests/docs", "tests/typing")
"""Tests that read the sources rather than run them."""


@dataclass(slots=True)
class Baseline:
    """What the tests do on the unchanged tree. Sets of tests are bit masks over `tests`."""

    tests: list[str] = field(default_factory=list[str])
    took_s: list[float] = field(default_factory=list[float])
    slow_kinds: set[int] = field(default_factory=set[int])
    """The tests that start processes or need real time."""
    failed: list[str] = field(default_factory=list[str])
    lines: dict[str, dict[int, int]] = field(default_factory=dict[str, dict[int, int]])
    libraries: set[str] = field(default_factory=set[str])
    files: dict[str, str] = field(default_factory=dict[str, str])
    """The hash that each recorded test file had."""
    gone: int = 0
    """The tests of files that have changed since."""

    def forget_changed(self, files: dict[str, str]) -> list[str]:
        """Forget the tests of files that have another hash now; return the files to be recorded."""
        changed = {file for file, former in self.files.items() if files.get(file) != former}
        for number, test in enumerate(self.tests):
            if test.partition("::")[0] in changed:
                self.gone |= 1 << number
        for file in changed:
            del self.files[file]
        return [file for file in files if file not in self.files]

    def add_run(self, run: Run, lines: dict[str, dict[str, list[str]]]) -> None:
        """Add the tests of some files, and the tests or files that ran each line."""
        numbers: dict[str, int] = {}
        for outcome in run.outcomes:
            if outcome.failed:
                self.failed.append(outcome.test)
            if outcome.test not in numbers and "::" in outcome.test:
                numbers[outcome.test] = len(self.tests)
                self.tests.append(outcome.test)
                self.took_s.append(outcome.took_s)
                if outcome.is_slow_kind:
                    self.slow_kinds.add(numbers[outcome.test])
        masks = {test: 1 << number for test, number in numbers.items()}
        for test, mask in [*masks.items()]:
            file = test.partition("::")[0]
            masks[file] = masks.get(file, 0) | mask
        for path, contexts_by_line in lines.items():
            known = self.lines.setdefault(path, {})
            for line, contexts in contexts_by_line.items():
                for context in contexts:
                    known[int(line)] = known.get(int(line), 0) | masks.get(context, 0)

    def find_tests(self, path: str, first: int, last: int) -> int:
        """Return the tests that run one of the lines of a file, relative to `src`."""
        known, found = self.lines.get(path, {}), 0
        for line in range(first, last + 1):
            found |= known.get(line, 0)
        return found & ~self.gone

    def find_all_tests(self, path: str) -> int:
        """Return the tests that run any line of a file."""
        return self.find_tests(path, 1, max(self.lines.get(path, {}), default=0))

    def list_numbers(self, mask: int) -> list[int]:
        """List the tests of a set."""
        digits = bin(mask)[:1:-1]
        return [number for number, digit in enumerate(digits) if digit == "1"]

    def dump(self) -> bytes:
        """Return the baseline as bytes; equal sets are written once."""
        sets: dict[int, int] = {}
        rows = {
            path: {line: sets.setdefault(mask, len(sets)) for line, mask in known.items()}
            for path, known in self.lines.items()
        }
        document = {
            "tests": self.tests,
            "took_s": self.took_s,
            "slow_kinds": sorted(self.slow_kinds),
            "failed": self.failed,
            "libraries": sorted(self.libraries),
            "files": self.files,
            "gone": hex(self.gone),
            "sets": [hex(mask) for mask in sets],
            "lines": rows,
        }
        return gzip.compress(json.dumps(document).encode(), 3)

    @classmethod
    def load(cls, data: bytes) -> Baseline:
        """Read what `dump` has written."""
        document: dict[str, Any] = json.loads(gzip.decompress(data))
        sets = [int(mask, 16) for mask in document["sets"]]
        lines: dict[str, dict[int, int]] = {
            path: {int(line): sets[number] for line, number in known.items()}
            for path, known in document["lines"].items()
        }
        return cls(
            document["tests"],
            document["took_s"],
            set(document["slow_kinds"]),
            document["failed"],
            lines,
            set(document["libraries"]),
            document["files"],
            int(document["gone"], 16),
        )


def hash_tree() -> str:
    """Return the hash of what all tests share: the sources, and what helps the tests."""
    digest = hashlib.sha256((ROOT / "pyproject.toml").read_bytes())
    helpers = [path for path in (ROOT / "tests").rglob("*.py") if not path.name.startswith("test_")]
    for path in sorted([*(ROOT / "src").rglob("*"), *helpers]):
        if path.is_file() and "__pycache__" not in path.parts:
            digest.update(f"{path.relative_to(ROOT)}\n".encode() + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]


def hash_tests() -> dict[str, str]:
    """Return the hash of each test file."""
    files = {str(path.relative_to(ROOT)): path for path in sorted((ROOT / "tests").rglob("test_*.py"))}
    return {
        name: hashlib.sha256(path.read_bytes()).hexdigest()[:16]
        for name, path in files.items()
        if not name.startswith(_LEFT_OUT)
    }


def find_baseline() -> tuple[Path, Baseline]:
    """Return where the baseline of this tree is kept, and what is there."""
    path = HOME / "mutants" / f"{hash_tree()}.json.gz"
    return path, Baseline.load(path.read_bytes()) if path.exists() else Baseline()


def record_tests(
    baseline: Baseline, files: Sequence[str], slots: Sequence[Slot], save: Callable[[], object] = lambda: None
) -> None:
    """Run the tests of files, and record the lines that each of them runs; `save` is called now and then."""
    lock, hashes = Lock(), hash_tests()
    saved = monotonic()
    batches: SimpleQueue[Sequence[str]] = SimpleQueue()
    for start in range(0, len(files), _FILES_AT_ONCE):  # the tests of a folder share what they import
        batches.put(files[start : start + _FILES_AT_ONCE])

    def work(slot: Slot) -> None:
        nonlocal saved
        while True:
            try:
                files = batches.get_nowait()
            except Empty:
                return
            recorded = _record(slot, files)
            with lock:
                for one in recorded:
                    baseline.add_run(one.run, one.lines)
                    baseline.libraries |= one.loaded
                    baseline.files |= {file: hashes[file] for file in one.files}
                if monotonic() - saved > _SAVED_EVERY_S:
                    save()
                    saved = monotonic()
                say(f"  {len(baseline.tests):,} tests recorded, {batches.qsize()} batches left")

    threads = [Thread(target=work, args=(slot,)) for slot in slots]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    save()


@dataclass(frozen=True, slots=True)
class _Recorded:
    """What one run has recorded."""

    files: Sequence[str]
    run: Run
    lines: dict[str, dict[str, list[str]]]
    loaded: set[str]


def _record(slot: Slot, files: Sequence[str]) -> list[_Recorded]:
    """Record the tests of files: each file alone if a run ends early, so that one loses nothing of the others."""
    slot.set_recording(on=True)
    path = slot.folder / ".venv/record/tests"
    run = slot.run(files=files, arguments=(), record=path)
    document: dict[str, Any] | None = json.loads(path.read_text("utf-8")) if path.exists() else None
    children = [json.loads(record.read_text("utf-8")) for record in slot.list_records() if record.stat().st_size]
    slot.set_recording(on=False)
    if run.code in _FINISHED and document is not None:  # the watch of the tests ends a process as a failed test does
        return [_Recorded(files, run, merge_lines(document["lines"], children), set(document["loaded"]))]
    if len(files) > 1:
        return [one for file in files for one in _record(slot, [file])]
    say(f"  NOT recorded: {files[0]} (exit code {run.code}); its tests notice nothing")
    return []


def merge_lines(
    lines: dict[str, dict[str, list[str]]], children: Iterable[dict[str, Any]]
) -> dict[str, dict[str, list[str]]]:
    """Add what started processes have recorded."""
    for child in children:
        for path, numbers in child["lines"].items():
            known = lines.setdefault(path, {})
            for number in numbers:
                known.setdefault(str(number), []).append(child["test"])
    return lines
