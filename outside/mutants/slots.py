"""A slot: a copy of the repository with an environment of its own, in which one run of tests goes on at a time.

Every interpreter that a test starts there takes `src` from the copy, however it is started: the environment has a
`.pth` file that puts the copy before the libraries of the real one.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outside.install import ROOT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from outside.mutants.places import Mutant

_LEFT_OUT = shutil.ignore_patterns("__pycache__", ".git", ".venv", ".outside", ".bench", ".*_cache", ".hypothesis")
_FIRST_LIBRARIES = ("pytest", "hypothesis", "anyio", "coverage")
_RUN_S = 1_800.0
_newer = count(1)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a test did."""

    test: str
    failed: bool
    took_s: float
    why: str = ""
    is_slow_kind: bool = False
    """Whether it starts processes or needs real time."""


@dataclass(slots=True)
class Run:
    """What a run of pytest did."""

    code: int | None
    """The exit code; None if it was ended at its limit."""
    outcomes: list[Outcome] = field(default_factory=list[Outcome])
    unfinished: str = ""
    """The test that had begun and had no outcome."""

    @property
    def failures(self) -> list[Outcome]:
        """The tests that failed; also the one during which the process ended."""
        failed = [outcome for outcome in self.outcomes if outcome.failed]
        if self.unfinished and not failed:
            why = "hangs" if self.code is None else f"ended the process with {self.code}"
            failed.append(Outcome(self.unfinished, failed=True, took_s=0.0, why=why, is_slow_kind=True))
        return failed


class Slot:
    """A copy of the repository, and the process that runs its tests."""

    def __init__(self, folder: Path, libraries: Sequence[str] = ()) -> None:
        self.folder = folder
        self._work = folder.with_name(f"{folder.name}.work")
        self._work.mkdir(exist_ok=True)
        if not folder.exists():
            shutil.copytree(ROOT, folder, ignore=_LEFT_OUT, symlinks=True)
            _make_environment(folder)
        preload = self._work / "libraries"
        preload.write_text("\n".join([*_FIRST_LIBRARIES, *libraries]), "utf-8")
        environ = {name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"}
        environ["PATH"] = f"{folder / '.venv/bin'}{os.pathsep}{environ.get('PATH', os.defpath)}"
        self._mother = subprocess.Popen(
            [folder / ".venv/bin/python", "-m", "outside.mutants.mother", preload],
            cwd=folder,
            env=environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._numbers = count()
        self._read()

    def _read(self) -> str:
        assert self._mother.stdout is not None
        line = self._mother.stdout.readline()
        if not line:
            raise RuntimeError(f"the process of {self.folder} has ended")
        return line

    def run(
        self,
        tests: Sequence[str] = (),
        *,
        files: Sequence[str] = (),
        arguments: Sequence[str] = ("-x",),
        record: Path | None = None,
        limit_s: float = _RUN_S,
    ) -> Run:
        """Run tests in this order, or all tests of files."""
        reports, log = self._work / f"{next(self._numbers)}.reports", self._work / "log"
        request: dict[str, Any] = {
            "tests": list(tests),
            "files": list(files) or sorted({test.partition("::")[0] for test in tests}),
            "arguments": list(arguments),
            "record": None if record is None else str(record),
            "reports": str(reports),
            "log": str(log),
            "limit_s": limit_s,
        }
        assert self._mother.stdin is not None
        self._mother.stdin.write(json.dumps(request) + "\n")
        self._mother.stdin.flush()
        code = json.loads(self._read())["code"]
        rows = [json.loads(line) for line in reports.read_text("utf-8").splitlines()] if reports.exists() else []
        reports.unlink(missing_ok=True)
        return read_run(code, rows)

    def list_records(self) -> list[Path]:
        """List what the started processes have recorded."""
        return sorted((self.folder / ".venv/record").glob("*.json"))

    def set_recording(self, *, on: bool) -> None:
        """Let every process that is started record its lines, or none."""
        shutil.rmtree(self.folder / ".venv/record", ignore_errors=True)
        if on:
            (self.folder / ".venv/record").mkdir()

    def change(self, mutant: Mutant | None, path: str) -> None:
        """Put a mutant into the copy, or take it back."""
        source = (ROOT / path).read_bytes()
        target = self.folder / path
        target.write_bytes(source if mutant is None else mutant.apply(source))
        # The interpreter tells compiled files apart by the second: each version gets one of its own.
        moment = 1_000_000_000 + os.getpid() % 100_000 * 10_000 + next(_newer)
        os.utime(target, (moment, moment))

    def close(self) -> None:
        """End the process."""
        assert self._mother.stdin is not None
        assert self._mother.stdout is not None
        self._mother.stdin.close()
        self._mother.wait()
        self._mother.stdout.close()


def read_run(code: int | None, rows: Sequence[dict[str, Any]]) -> Run:
    """Read the reports of a run."""
    run, begun = Run(code), ""
    for row in rows:
        if "began" in row:
            begun = row["began"]
            continue
        outcome = Outcome(row["test"], row["failed"], row["s"], row["why"], row.get("slow_kind", False))
        run.outcomes.append(outcome)
        begun = "" if outcome.test == begun else begun
    run.unfinished = begun
    return run


def _make_environment(folder: Path) -> None:
    """Make the environment of a copy: ours, with the sources of the copy first."""
    environment, ours = folder / ".venv", Path(sys.prefix)
    base = Path(sys.base_prefix, "bin", f"python{sys.version_info[0]}.{sys.version_info[1]}")
    subprocess.run([base, "-m", "venv", "--without-pip", "--symlinks", environment], check=True)
    libraries = Path(sysconfig.get_path("purelib", vars={"base": str(environment)}))
    real = sysconfig.get_path("purelib")
    lines = [str(folder / "src"), f"import site; site.addsitedir({real!r})", "import mutants_recorder"]
    (libraries / "mutants.pth").write_text("\n".join(lines) + "\n", "utf-8")
    shutil.copy(Path(__file__).with_name("recorder.py"), libraries / "mutants_recorder.py")
    if (ours / "bubblewrap").is_dir():
        (environment / "bubblewrap").symlink_to(ours / "bubblewrap")
    for command in (ours / "bin").iterdir():
        target = environment / "bin" / command.name
        if target.exists() or not command.is_file():
            continue
        content = command.read_bytes()
        interpreter = f"#!{ours}/bin/python".encode()
        if content.startswith(interpreter):
            target.write_bytes(content.replace(interpreter, f"#!{environment}/bin/python".encode(), 1))
            target.chmod(0o755)
        else:
            target.symlink_to(command.resolve())
