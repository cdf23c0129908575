"""What three reading sub-agents take beside one: the model delays each reply, and they wait for it at once.

The time is that between the first and the last request of the parent, without the start of the program.
"""

from __future__ import annotations

import subprocess
import tempfile
from functools import partial

from tests.support.model_server import ModelServer, Reply, model_server, says

from bench.measure import Pair, compare
from bench.process import compile_packages, console_script, surroundings
from bench.row import CannotMeasure, Row

_ROUNDS = 5
_DELAY_S = 1.0
_COMMAND = ("--no-mcp", "--model", "openai:scripted", "-p", "hi")


def _delegate(model: ModelServer, folder: str, agents: int, times: int) -> float:
    return sum(_delegate_once(model, folder, agents) for _ in range(times))


def _delegate_once(model: ModelServer, folder: str, agents: int) -> float:
    asked = [("task", {"objective": f"look {number}", "agent": "explore"}) for number in range(agents)]
    report = Reply(text=("seen",), delay_s=_DELAY_S)
    model.script[:] = (Reply(calls=asked), *[report] * agents, says("hello"))
    first = len(model.arrivals)
    where = {"HOME": folder, "OPENAI_BASE_URL": f"{model.url}/v1", "OPENAI_API_KEY": "none"}
    done = subprocess.run(
        [console_script("indus"), *_COMMAND],
        cwd=folder,
        env={**surroundings(), **where},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode or not done.stdout.endswith("hello\n") or model.script:
        raise CannotMeasure(f"indus -p failed: {done.stderr.strip() or done.stdout!r}")
    return model.arrivals[-1] - model.arrivals[first]


def _agents() -> Pair:
    compile_packages()
    with tempfile.TemporaryDirectory() as folder, model_server() as model:
        return compare(partial(_delegate, model, folder, 3), partial(_delegate, model, folder, 1), rounds=_ROUNDS)


ROWS = (Row("agents", "three reading sub-agents, a model that takes a second", "one of them", _agents, budget=1.3),)
