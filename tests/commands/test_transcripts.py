"""What commands write, whole: a story of commands for each file of `transcripts`, without what differs by run.

`INDUS_APPROVE=1` writes the files anew; read the difference then.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from contextlib import closing
from pathlib import Path

import pytest
from tests.calls.helpers import calls_file, make_record
from tests.commands.helpers import HONEST, SLOW_S, configured, project_file, row, user_file
from tests.support import scripts
from tests.support.broker import broker_process
from tests.support.forked import CONSTANTS
from tests.support.servers import SERVERS

from induscode.calls.database import CallDatabase
from induscode.commands.program import run
from induscode.conversations.transcript import Transcript
from induscode.deck.stores import FileCheckpoints

TRANSCRIPTS = Path(__file__).parent / "transcripts"
AT_MS = 1_700_000_000_000
SCRUBBED = (
    (r"\bN[A-Z2-7]{55}\b", "NAME"),
    (r'"(took_ms|used)": [\d.]+', r'"\1": N'),
    (r"\b\d+ B used", "N B used"),
    (r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?Z?", "TIME"),
    (r"\b[0-9A-HJKMNP-TV-Z]{26}\b", "ULID"),
    (r"\b[0-9a-f]{12,64}\b", "DIGEST"),
    (r"\b\d+(\.\d+)? (ms|s|min)\b", "TOOK"),
    (r'"(pid|answer_s|took_s|at_ms|duration_us|age_s|startup_s)": [\d.]+', r'"\1": N'),
    (r'"latencyMs": \d+', '"latencyMs": N'),
    (r"\ball \d+ rows", "all N rows"),
    (r"(?m)^ *\d+ +(?=TIME)", "N  "),
    (r"the program \\?\"python[^\"]*\"", "the program PYTHON"),
    (r"(?m)^ *note: set in this shell .*\n", ""),
    (r"  +", "  "),
)


class Story:
    """Commands that are run one after the other, and what they wrote."""

    def __init__(self, cwd: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.cwd = cwd
        self.lines: list[str] = []
        self.secrets: dict[str, str] = {}
        self._capsys = capsys

    def run(self, line: str) -> None:
        """Run a command in this process."""
        code = run(shlex.split(line))
        found = self._capsys.readouterr()
        self.lines += [f"$ indus {line}", found.out, found.err, f"[{code}]\n"]

    def run_process(self, line: str) -> None:
        """Run a command as a process: it starts servers."""
        done = scripts.run(*shlex.split(line), cwd=self.cwd)
        self.lines += [f"$ indus {line}", done.stdout, done.stderr, f"[{done.returncode}]\n"]

    def check(self, name: str) -> None:
        text = "\n".join(part.strip("\n") for part in self.lines if part.strip())
        for path, word in (
            *self.secrets.items(),
            (str(self.cwd), "CWD"), (os.environ["HOME"], "HOME"), (str(SERVERS), "SERVERS"), (sys.executable, "PYTHON"),
            (str(Path(sys.prefix)), "ENVIRONMENT"),
        ):  # fmt: skip
            text = text.replace(path, word)
        # A clone whose path has a space is quoted in command lines.
        text = re.sub(r"'((PYTHON|SERVERS|CWD|HOME)[\w./-]*)'(?=\s)", r"\1", text)
        for pattern, word in SCRUBBED:
            text = re.sub(pattern, word, text)
        found = "\n".join(line.rstrip() for line in text.splitlines()) + "\n"
        path = TRANSCRIPTS / f"{name}.txt"
        if os.environ.get("INDUS_APPROVE"):
            path.write_text(found, "utf-8")
        assert found.splitlines() == path.read_text("utf-8").splitlines()


@pytest.fixture
def story(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Story:
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    # However slow the machine is, nothing is said about it.
    monkeypatch.setitem(CONSTANTS, SLOW_S, 600.0)
    for name in ("broker", "report"):
        monkeypatch.setattr(f"induscode.cluster.{name}.SLOW_S", 600.0)
    return Story(folder, capsys)


@pytest.mark.process
def test_servers_are_configured(story: Story) -> None:
    for line in (
        "mcp list",
        f"mcp add one --sandbox off -- {shlex.join(HONEST)}",
        f"mcp add one -- {shlex.join(HONEST)}",
        "mcp add -t http two http://127.0.0.1:9/mcp --header 'Authorization: Bearer ${TOKEN}'",
        f"mcp add three -s project --sandbox off -e MODE=fast -e TOKEN=secret -- {shlex.join(HONEST)}",
        """mcp add-json four '{"command": "run-it", "args": ["x"], "env": {"KEY": "${KEY}"}}'""",
        "mcp add-json five '[]'",
        "mcp list",
        "mcp get one",
        "mcp get two",
        "mcp get four --json",
        "mcp get nothing",
        "mcp disable one",
        "mcp disable one",
        "mcp remove two",
        "mcp remove two",
        "mcp remove three",
        "mcp list",
        "mcp enable one",
    ):
        story.run_process(line)
    story.check("configure")


@pytest.mark.process
def test_servers_of_a_project_are_trusted(story: Story) -> None:
    configured(project_file(story.cwd), {"ours": row(), "held": row(env={"KEY": "${NOT_SET}"})})
    for line in (
        "mcp list", "mcp get ours", "mcp trust ours", "mcp trust --yes ours", "mcp list", "mcp trust --yes nothing",
        "mcp untrust ours", "mcp untrust ours", "mcp list",
    ):  # fmt: skip
        story.run_process(line)
    story.run_process("mcp list --json")
    story.check("trust")


@pytest.mark.process
def test_servers_are_examined(story: Story) -> None:
    configured(
        user_file(),
        {
            "good": row(),
            "gone": {"command": "/nowhere/run"},
            "bad": {"command": "sh", "args": ["-c", "echo broken >&2; exit 3"]},
        },
    )
    for line in ("mcp doctor", "mcp doctor good", "mcp doctor good --json", "mcp doctor nothing", "mcp logs bad",
                 "mcp logs good", "mcp logs nothing"):  # fmt: skip
        story.run_process(line)
    story.check("doctor")


@pytest.mark.process
def test_tools_are_listed_shown_and_called(story: Story) -> None:
    configured(user_file(), {"one": row()})
    (story.cwd / "hello.txt").write_text("good morning\n", "utf-8")
    for line in (
        "tools list --no-mcp", "tools list", "tools list --json --no-mcp --tools ls", "tools show ls",
        "tools show one__echo", "tools show nothing", "tools search list files --no-mcp", "call read path=hello.txt",
        "call read path=gone.txt", "call nothing", "call one__echo text=hi", "call read path", "calls --failed",
        "calls --by tool", "calls 99",
    ):  # fmt: skip
        story.run_process(line)
    story.check("tools")


@pytest.mark.process
def test_tools_are_locked_compared_and_approved(story: Story) -> None:
    configured(project_file(story.cwd), {"one": row()})
    for line in (
        "mcp trust --yes one", "mcp diff", "mcp lock", "mcp lock --check", "mcp approve one", "mcp approve nothing",
        "ledger verify", "ledger show one__echo", "ledger show nothing", "ledger at now", "ledger turn 1",
    ):  # fmt: skip
        story.run_process(line)
    lock = next(story.cwd.rglob("*lock*"))
    text = lock.read_text("utf-8")
    lock.write_text(text.replace("Echo", "Change"), "utf-8")
    story.run_process("mcp lock --check")
    story.run_process("mcp diff")
    lock.write_text("{", "utf-8")
    story.run_process("mcp lock --check")
    story.check("lock")


def test_calls_are_listed_and_counted(story: Story) -> None:
    with closing(CallDatabase(str(calls_file()))) as database:
        rows = [
            make_record(at_ms=AT_MS + number, tool=f"t{number % 2}", server="" if number == 3 else "s", kind="tool",
                        client="editor" if number else "", tokens=1_000 * number, duration_us=1_500 * number,
                        outcome="error" if number == 2 else "ok", code="gone" if number == 2 else "", attempt=number,
                        via="stdio", conversation="c1", run="r1", turn=number, argument_bytes=10, result_bytes=2_000)
            for number in range(4)
        ]  # fmt: skip
        database.append([one.to_row() for one in rows])
    for line in (
        "calls", "calls --slow", "calls --failed", "calls --by tool", "calls --by server",
        "calls --by client --limit 1", "calls --server 's*' --tool t1", "calls --client nobody", "calls 1", "calls 3",
        "calls 3 --json", "calls --json", "calls --export jsonl --limit 2", "calls --export csv", "calls --since 10min",
        "calls --since odd", "calls --by tool --json",
    ):  # fmt: skip
        story.run(line)
    story.check("calls")


def test_conversations_are_rewound(story: Story) -> None:
    name = "01" + "A" * 24
    directory = Path(os.environ["HOME"]) / ".local/state/indus/conversations" / name
    transcript = Transcript(str(directory), str(story.cwd))
    file = story.cwd / "made.txt"
    with closing(transcript):
        for number in (1, 2):
            transcript.mark("turn", node=f"n{number}", run="01K", turn=number, deck="d")
            transcript.add_message({"parts": [{"part_kind": "user-prompt", "content": f"Make it {number}"}]})
            transcript.add_message({"parts": [{"part_kind": "text", "content": f"Made {number}"}]})
    with closing(FileCheckpoints(directory / "checkpoints")) as checkpoints:
        checkpoints.begin("n2")
        checkpoints.record(str(file), None)
    file.write_text("made", "utf-8")
    for line in ("rewind", "rewind --to 9", "rewind --to 2 --dry-run", "rewind --to 2 --yes", "rewind"):
        story.run(line)
    story.check("rewind")


@pytest.mark.process
def test_settings_models_search_and_addons_are_shown(story: Story) -> None:
    settings = user_file().parents[1] / "indus" / "settings.json"
    settings.parent.mkdir(parents=True, exist_ok=True)
    settings.write_text(json.dumps({"serve": {"views": {"small": {"tools": ["ls"]}}}, "odd": 1}), "utf-8")
    addon = story.cwd / ".indusvx" / "addons" / "mine.py"
    addon.parent.mkdir(parents=True)
    addon.write_text('"""Mine."""\n', "utf-8")
    for line in (
        "settings", "settings path", "settings check", "settings odd",
        "addons", "addons list --json", "addons trust mine", "addons trust --yes mine", "addons", "addons doctor",
        "addons untrust mine", "addons untrust nothing", "search status", "connectors list",
        "resources list", "prompts list", "serve --dry-run --no-mcp", "mcp auth", "cluster status",
    ):  # fmt: skip
        story.run_process(line)
    story.check("settings")


def test_servers_are_imported_from_other_programs(story: Story) -> None:
    home = Path(os.environ["HOME"])
    (home / ".cursor").mkdir(parents=True)
    document = {"mcpServers": {"a": {"command": "x", "env": {"K": "v"}}, "b": {"url": "http://127.0.0.1:9"}, "c": 1}}
    (home / ".cursor" / "mcp.json").write_text(json.dumps(document), "utf-8")
    for line in ("mcp import --from cursor --dry-run", "mcp import --dry-run --json", "mcp import --from cursor",
                 "mcp import --from cursor", "mcp import --from nothing"):  # fmt: skip
        story.run(line)
    story.check("import")


@pytest.mark.process
def test_a_cluster_is_prepared_and_configured(story: Story, tmp_path: Path) -> None:
    servers, rules = story.cwd / "servers.json", story.cwd / "rules.json"
    servers.write_text(json.dumps({"mcpServers": {"two": row(env={"TOKEN": "a-secret"}), "one": {"url": "http://x"}}}))
    rules.write_text(json.dumps({"deny": ["one__* @bob"], "ask": ["bash"]}))
    with broker_process(tmp_path / "broker") as broker:
        story.secrets[broker.url] = "BROKER"
        story.secrets[broker.url.removeprefix("nats://")] = "HOST"
        settings = user_file().parents[1] / "indus" / "settings.json"
        settings.parent.mkdir(parents=True, exist_ok=True)
        settings.write_text(json.dumps({"cluster": {"brokers": [broker.url]}}))
        for line in (
            "cluster status", "cluster init", "cluster init", "cluster status", "cluster placements",
            "cluster placements --json", "cluster drain gone", "cluster config show",
            "cluster config push servers.json", "cluster config push servers.json --yes",
            "cluster config push servers.json --yes", "cluster config rules rules.json", "cluster config show",
            "cluster config show --json", "cluster config remove one", "cluster config remove one",
            "cluster config rules --remove", "cluster config show", "cluster verify", "cluster verify --json",
            "cluster rotate-key", "cluster status --json",
        ):  # fmt: skip
            story.run(line)
    story.check("cluster")
