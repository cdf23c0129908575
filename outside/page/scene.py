"""What is behind the page: a home with servers, records of calls, a conversation, and a running gateway.

The servers: one with 500 tools that changes a definition, one that does not start, one that wants a sign-in, one of the
project without consent. The conversation is a session with a scripted model.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from contextlib import closing, contextmanager
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from tests.calls.helpers import make_record
from tests.support.broker import broker_processes
from tests.support.model_server import calls, model_server, says

from indusagi.core.time import now_ms
from induscode.calls.database import CallDatabase

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from tests.support.broker import BrokerProcess

CALLS = 10_000
_LIMIT_S = 60.0
_INDUS = str(Path(sys.executable).parent / "indus")
_MANY = str(Path(__file__).with_name("many_tools.py"))
_ITEMS = [
    {"id": "1", "text": "Read the file", "status": "done"},
    {"id": "2", "text": "Write it down", "status": "active"},
    {"id": "3", "text": "Tell the others", "status": "pending"},
]
_SCRIPT = (
    calls("read", path="hello.txt"),
    calls("todo_set", items=_ITEMS),
    calls("write", path="note.md", content="good morning"),
    says("The file says good morning. ", "I have noted it."),
)


class SceneFailed(Exception):
    """A part of it did not start."""


class Home:
    """An empty home directory with an empty project, and a command that serves the page of it."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.project = home / "project"
        self.calls = home / ".local/state/indus/calls.db"
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("XDG_", "INDUS_"))}
        self._environment = {**kept, "HOME": str(home), "PYTHON_KEYRING_BACKEND": "keyring.backends.null.Keyring"}
        self._environment["PATH"] = f"{home.parent}/bin:{os.environ['PATH']}"
        self.project.mkdir(parents=True)

    def _run(self, *words: str) -> subprocess.CompletedProcess[str]:
        environment = {**self._environment, "OPENAI_API_KEY": "none"}
        return subprocess.run(
            [_INDUS, *words], cwd=self.project, env=environment, capture_output=True, text=True, timeout=_LIMIT_S,
            check=False,
        )  # fmt: skip

    def write_calls(self, count: int = CALLS) -> None:
        """Write the records of so many calls within the last hour."""
        self.calls.parent.mkdir(parents=True, mode=0o700, exist_ok=True)
        now, chance = now_ms(), Random(count)
        tools = [("many", "tool_1"), ("many", "tool_2"), ("", "read"), ("", "grep")]
        with closing(CallDatabase(str(self.calls))) as database:
            for start in range(0, count, 1_000):
                database.append(
                    [
                        make_record(
                            at_ms=now - (count - number) * 3_000_000 // count,
                            duration_us=int(chance.lognormvariate(8, 0.6)),
                            via="gateway", client="claude-code 2.1",
                            server=server, tool=tool, tokens=int(chance.lognormvariate(4, 1)),
                            outcome="error" if chance.random() < 0.02 else "ok", run="01K", turn=number // 4,
                            trace=f"{number // 5:032x}",
                        ).to_row()
                        for number in range(start, min(start + 1_000, count))
                        for server, tool in chance.choices(tools, (8, 3, 5, 2))
                    ]
                )  # fmt: skip

    @contextmanager
    def serve(self, *words: str) -> Generator[tuple[str, subprocess.Popen[bytes]]]:
        """Run a command that serves the page; give the address with its key, and the process."""
        log = self.home / f"{words[0]}.txt"
        with log.open("wb") as said:
            process = subprocess.Popen(
                [_INDUS, *words],
                cwd=self.project, env=self._environment, stdin=subprocess.DEVNULL, stdout=said, stderr=said,
            )  # fmt: skip
        try:
            deadline = time.monotonic() + _LIMIT_S
            while "native tools" not in (text := log.read_text()):
                if process.poll() is not None or time.monotonic() > deadline:
                    raise SceneFailed(f"indus {words[0]} said: {text}")
                time.sleep(0.05)
            found = re.search(r"page: (\S+)", text)
            if found is None:
                raise SceneFailed(f"indus {words[0]} said: {text}")
            yield found[1], process
        finally:
            process.terminate()
            process.wait(30)


class Scene(Home):
    """A home directory with servers, records and a project in it."""

    def __init__(self, home: Path, sign_in_url: str) -> None:
        super().__init__(home)
        self.state = home / "state.txt"
        """Its text becomes the description of a tool."""
        (self.project / "hello.txt").write_text("good morning\n")
        own = {"ours": {"command": sys.executable, "args": [_MANY]}}
        (self.project / ".mcp.json").write_text(json.dumps({"mcpServers": own}))
        servers = {
            "many": {"command": sys.executable, "args": [_MANY, str(self.state)]},
            "broken": {"command": "there-is-no-such-program"},
            "locked": {"url": sign_in_url, "startup_timeout_sec": 60},
        }
        config = home / ".config/indus/mcp.json"
        config.parent.mkdir(parents=True)
        config.write_text(json.dumps({"servers": servers}))

    def hold_conversation(self) -> None:
        """Hold a conversation of four turns with a scripted model.

        Raises:
            SceneFailed: The session failed.
        """
        with model_server(*_SCRIPT) as model:
            words = ["-p", "Read hello.txt, and note what it says.", "--model", "any"]
            words += ["--base-url", f"{model.url}/v1"]
            done = self._run(*words, "--no-mcp", "--allow", "write")
        if done.returncode:
            raise SceneFailed(f"indus -p said: {done.stderr}")

    @contextmanager
    def serve_cluster(self) -> Generator[tuple[str, Sequence[BrokerProcess]]]:
        """Run a node of a cluster with three real brokers, and give the address of its page, and the brokers."""
        with broker_processes(self.home / "brokers") as brokers:
            urls = ",".join(broker.url for broker in brokers)
            deadline = time.monotonic() + _LIMIT_S
            # Brokers that were started just now may have no leader yet.
            while (done := self._run("cluster", "init", "--cluster", urls, "--replicas", "3")).returncode:
                if time.monotonic() > deadline:
                    raise SceneFailed(f"indus cluster init said: {done.stderr}")
            words = ("--http", "127.0.0.1:0", "--no-token", "--cluster", urls, "--node", "first")
            with self.serve("serve", *words) as (url, _):
                yield url, brokers
