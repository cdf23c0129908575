"""A directory with hostile names, and a closed bash that says which commands did what in it."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from outside.permission_fuzz.generate import CANARY, HOSTILE_FILES

_SECONDS = 2
_SCRIPT = r"""
ulimit -c 0 -f 65536
fresh() { rm -rf -- "$WORK"; cp -a -- "$SEED" "$WORK"; }
look() {
  (cd "$WORK" && find . -path ./.git -prune -o -type f -print0 | sort -z \
    | xargs -0 -r sha256sum --) 2>/dev/null | sha256sum
}
fresh; first=$(look)
while IFS= read -r -d '' number && IFS= read -r -d '' command; do
  cd -- "$WORK" || exit 1
  CANARY_MARK=$number timeout -k 1 "$SECONDS_EACH" bash -c "$command" </dev/null >/dev/null 2>&1
  cd /
  if [ "$(look)" = "$first" ]; then echo same; else echo other; fresh; fi >> "$LOGS/looks"
done
"""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a command did."""

    command: str
    ran_canary: bool
    wrote: bool
    """Whether a file of the directory is not as it was."""


class Playground:
    """A seed directory that is copied for every command, and a canary that leaves a mark."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.seed = folder / "seed"
        self.work = folder / "work"
        self.logs = folder / "logs"
        self.logs.mkdir()
        (self.seed / "bin").mkdir(parents=True)
        canary = self.seed / "bin" / CANARY
        mark = f'#!/bin/sh\necho "$CANARY_MARK" >> {self.logs}/canary\n'
        canary.write_text(mark, encoding="utf-8")
        canary.chmod(0o755)
        for name in HOSTILE_FILES:
            (self.seed / name).write_text(f"text of {name!r}\n", encoding="utf-8")
        (self.seed / "big").write_text("line\n" * 20_000, encoding="utf-8")
        (self.seed / "t").write_text("canary a\n", encoding="utf-8")
        (self.seed / "m").write_text("all:\n\ttrue\n", encoding="utf-8")
        (self.seed / "x.py").write_text("print(1)\n", encoding="utf-8")
        self._make_repository()

    def _make_repository(self) -> None:
        if shutil.which("git") is None:
            return
        settings = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
        for words in (["init", "-q"], ["add", "a.txt"], ["commit", "-qm", "x"]):
            subprocess.run(["git", *settings, *words], cwd=self.seed, env=self._environment(), check=True)
        (self.seed / "a.txt").write_text("changed\n", encoding="utf-8")

    def _environment(self) -> dict[str, str]:
        path = f"{self.work}/bin:/usr/local/bin:/usr/bin:/bin"
        return {"PATH": path, "HOME": str(self.work), "GIT_CONFIG_NOSYSTEM": "1", "LANG": "C"}

    def run(self, commands: Sequence[str]) -> list[Outcome]:
        """Run commands one after the other, each in a fresh copy of the directory."""
        for name in ("canary", "looks"):
            (self.logs / name).unlink(missing_ok=True)
        extra = {"WORK": str(self.work), "SEED": str(self.seed), "LOGS": str(self.logs), "SECONDS_EACH": str(_SECONDS)}
        given = "".join(f"{number}\0{text}\0" for number, text in enumerate(commands))
        subprocess.run(
            [*self._sandbox(), "bash", "-c", _SCRIPT],
            input=given.encode(),
            env={**self._environment(), **extra},
            cwd=self.folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=60 + (_SECONDS + 2) * len(commands),
            check=False,
        )
        looks = (self.logs / "looks").read_text(encoding="utf-8").split()
        assert len(looks) == len(commands), "bash has not run all of the commands"
        marks = self.logs / "canary"
        ran = set(marks.read_text(encoding="utf-8").split()) if marks.exists() else set[str]()
        return [
            Outcome(command, str(number) in ran, look != "same")
            for number, (command, look) in enumerate(zip(commands, looks, strict=True))
        ]

    def _sandbox(self) -> list[str]:
        """Hold the commands in by bubblewrap where it is there and works."""
        bwrap = shutil.which("bwrap")
        if bwrap is None:
            return []
        words = [bwrap, "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/run"]
        words += ["--bind", str(self.folder), str(self.folder), "--unshare-net", "--die-with-parent"]
        probe = subprocess.run([*words, "true"], capture_output=True, check=False)
        return words if probe.returncode == 0 else []
