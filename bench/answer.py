"""What one question costs beside the import of the library that asks it.

The model is a scripted server on the loopback that answers at once, and both MCP servers are known
from an earlier run: what is measured is the program.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.model_server import model_server, says

from bench.measure import calls, compare
from bench.process import compile_packages, console_script, python, starts, surroundings
from bench.row import CannotMeasure, Row

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.measure import Pair

_ECHO = Path(__file__).with_name("echo_server.py")
_ROUNDS = 11
_MOST_ANSWERS = 1_000
_IMPORT = "import pydantic_ai"
_EXPECTED = "hello\n"


def _ask(command: Sequence[str], folder: str, url: str) -> None:
    where = {"HOME": folder, "OPENAI_BASE_URL": f"{url}/v1", "OPENAI_API_KEY": "none"}
    done = subprocess.run(
        command,
        cwd=folder,
        env={**surroundings(), **where},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode or done.stdout != _EXPECTED:
        raise CannotMeasure(f"indus -p failed: {done.stderr.strip() or done.stdout!r}")


def _answer() -> Pair:
    compile_packages()
    with tempfile.TemporaryDirectory() as folder, model_server(*[says("hello")] * _MOST_ANSWERS) as model:
        rows = {name: {"command": sys.executable, "args": [str(_ECHO)]} for name in ("one", "two")}
        path = os.path.join(folder, "servers.json")
        Path(path).write_text(json.dumps({"mcpServers": rows}), encoding="utf-8")
        command = [*(console_script("indus"), "--mcp", path, "--model", "openai:scripted"), *("-p", "hi")]
        ask = partial(_ask, command, folder, model.url)
        ask()  # both servers are known now
        return compare(calls(ask), starts(python("-c", _IMPORT)), rounds=_ROUNDS)


ROWS = (Row("answer", "indus -p, two known servers, an instant model", f"python -c '{_IMPORT}'", _answer, budget=2),)
