"""`python -m outside.neighbours`: install the wheel into clean environments and use it there.

Four environments: the wheel alone, with the newest and with the lowest versions it allows; next to frameworks that
need the first SDK; next to the second SDK. Nothing that another package wants may change by installing `indus-deck`.
Ends with 0 if all went well, with 1 if something failed, with 2 if nothing could be installed.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from outside.install import ROOT
from outside.say import aligned, complain, markdown, say, write_between

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

UV = Path(sys.executable).parent / "uv"
CHECKS = ("version", "library", "add", "serve", "serve --http", "sdk")
_HEAD = ("environment", "versions", *CHECKS)
_WIDTHS = (11, 90, *(len(check) for check in CHECKS))
_SHOWN = ("mcp", "langchain-mcp-adapters", "google-adk", "httpcore2", "anyio")
_RUN_S = 600


_OWN: list[str] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["dependencies"]


@dataclass(frozen=True, slots=True)
class Environment:
    """What is installed next to the wheel."""

    neighbours: tuple[str, ...] = ()
    sdk: str = "none"
    resolution: str = "highest"


ENVIRONMENTS = {
    "alone": Environment(),
    "lowest": Environment(tuple(_OWN), resolution="lowest-direct"),
    "mcp 1": Environment(("mcp<2", "langchain-mcp-adapters", "google-adk"), "1"),
    "mcp 2": Environment(("mcp>=2",), "2"),
}


class CannotInstallError(Exception):
    """A command of the installer failed."""


def main() -> int:
    """Judge every environment and return the exit code."""
    failed, rows = 0, list[tuple[str, ...]]()
    say(aligned(_HEAD, _WIDTHS))
    with TemporaryDirectory() as folder:
        try:
            _run([UV, "build", "--quiet", "--wheel", "--out-dir", folder, ROOT])
            wheel = next(Path(folder).glob("*.whl"))
            for name, environment in ENVIRONMENTS.items():
                found, versions = _judge(environment, wheel, Path(folder) / name.replace(" ", "-"))
                shown = ", ".join(f"{package} {versions[package]}" for package in _SHOWN if package in versions)
                row = (name, shown, *("FAILED" if found.get(check, "not run") else "ok" for check in CHECKS))
                rows.append(row)
                say(aligned(row, _WIDTHS))
                problems = {check: problem for check, problem in found.items() if problem}
                failed += len(problems)
                for check, problem in problems.items():
                    complain(f"  {check}: {problem}")
        except CannotInstallError as exc:
            complain(f"outside.neighbours: {exc}")
            return 2
    write_between(ROOT / "docs/evidence/conformance.md", "neighbours", markdown(_HEAD, rows))
    say(f"{failed} failed" if failed else "all ok")
    return 1 if failed else 0


def _judge(environment: Environment, wheel: Path, folder: Path) -> tuple[dict[str, str], Mapping[str, str]]:
    before = _resolve(environment, *environment.neighbours) if environment.neighbours else {}
    after = _resolve(environment, *environment.neighbours, f"indus-deck @ {wheel.as_uri()}")
    python = folder / "bin/python"
    _run([UV, "venv", "--quiet", "--python", sys.executable, folder])
    pins = "\n".join(
        [*(f"{package}=={version}" for package, version in after.items()), f"indus-deck @ {wheel.as_uri()}"]
    )
    _run([UV, "pip", "install", "--quiet", "--python", python, "--requirements", "-"], pins)
    driver = ROOT / "outside/neighbours/driver.py"
    try:
        found: dict[str, str] = json.loads(_run([python, "-I", driver, environment.sdk]).splitlines()[-1])
    except (CannotInstallError, ValueError, IndexError) as exc:
        found = {"driver": str(exc)}
    changed = [
        f"{package} {version} became {after[package]}"
        for package, version in before.items()
        if after[package] != version
    ]
    return {**found, "changed": ", ".join(changed)}, after


def _resolve(environment: Environment, *wanted: str) -> dict[str, str]:
    how = ["--quiet", "--no-header", "--no-annotate", "--no-emit-index-url", "--resolution", environment.resolution]
    found = _run([UV, "pip", "compile", *how, "--python-version", "3.11", "-"], "\n".join(wanted))
    return dict(re.findall(r"^([\w.-]+)==(\S+)", found, re.MULTILINE))


def _run(command: Sequence[str | Path], text: str = "") -> str:
    # The system's certificates, as pip uses them: a company's own authority is only there.
    env = {"UV_SYSTEM_CERTS": "1", **os.environ}
    try:
        done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=_RUN_S, env=env, check=False)
    except (OSError, subprocess.TimeoutExpired) as exc:
        raise CannotInstallError(str(exc)) from exc
    if done.returncode:
        raise CannotInstallError(f"{Path(command[0]).name} failed: {(done.stderr or done.stdout).strip()[-2000:]}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
