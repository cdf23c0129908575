"""Every console block of README and the pages in `docs`, run as it stands on the page.

The commands of a block run one after the other in a project with a fixture server, a scripted model and stand-ins for
`npx` and `git`. What the page shows below a command is compared in shape: numbers, times, paths and addresses are
masked, `…` stands for anything, and of a table the heads and the number of cells count. A line that installs us is
checked instead: its extras and packages exist. A block that can't run here says why in a comment above its fence:
`<!-- not run: network -->`. The test names how many there are of each kind.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

import pytest
from tests.commands.helpers import HONEST, PYTHON, configured, typed, user_file
from tests.support.forked import start_command
from tests.support.model_server import model_server, says
from tests.support.scripts import ROOT, command, run
from tests.support.servers import SERVERS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

BLOCK = re.compile(r"^(?:<!-- not run: ([^\n]*?) -->\n\n?)?( *)```console\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)
NOT_RUN = {
    "network": 5,
    "minutes": 13,
    "brokers": 4,
    "authorization server": 4,
    "browser": 3,
    "model server": 1,
    "without the extra": 1,
    "root": 1,
    "a call that waits": 1,
    "an attack": 1,
    "a server of your own": 1,
    "calls of your own": 1,
}
"""How many blocks can't run here, by their reason."""
LINES_NOT_RUN = {"indus": "needs a terminal: tests/frontends", "export": "a variable of the shell"}
"""Lines of blocks that run, by their first word when nothing follows it."""
PROGRAMS = re.compile(r"([A-Z_]+=\S+ )?(indus|git|echo|tail) ")
"""Programs that a page may have run here; a block with another one needs a comment above it."""
UNTIL_SIGNAL = re.compile(r"indus (serve .*--http\b(?!.*--(install|print-config|dry-run))|ui\b|top\b|mcp list --watch)")
"""Commands that go on until Ctrl-C."""
EXIT_CODES = {
    "indus mcp diff gallery": 1,
    "indus permissions test write path=notes.md content=hello": 1,
    "indus mcp add tracker -- tracker-server --stdio": 1,
}
"""Commands whose exit code is part of their answer."""
ASKS = ("indus mcp trust", "indus rewind --to 3", "indus addons trust", "indus mcp approve")
"""Commands that ask on a terminal. The answer is yes."""
MASKS = (
    (r"https?://\S+", "URL"),
    (r"(~|/)[\w./~+-]*/[\w./~+-]*", "PATH"),
    (r"\d{4}-\d\d-\d\dT[\d:.]+Z", "TIME"),
    (r"\d[\d,]*(\.\d+)*", "N"),
    (r"^Sandbox: (standard|off): .*", "Sandbox: PROFILE"),  # this machine may have none
)


class Block(NamedTuple):
    """One console block of a page."""

    page: str
    number: int
    reason: str
    """Why it isn't run; empty if it is."""
    text: str

    @property
    def id(self) -> str:
        return f"{self.page}-{self.number}"

    def commands(self) -> Iterator[tuple[str, list[str]]]:
        """Yield each command without its comment, and the lines that are shown below it."""
        parts = re.split(r"^\$ ", self.text, flags=re.MULTILINE)[1:]
        for part in parts:
            line, *shown = part.rstrip().split("\n")
            yield re.sub(r"\s+# .*", "", line), [one for one in shown if one]


def read_blocks() -> list[Block]:
    pages = [path for path in sorted((ROOT / "docs").rglob("*.md")) if "decisions" not in path.parts]
    return [
        Block(page.relative_to(ROOT).with_suffix("").as_posix().removeprefix("docs/"), number, match[1] or "", match[3])
        for page in [ROOT / "README.md", *pages]
        for number, match in enumerate(BLOCK.finditer(page.read_text(encoding="utf-8")), 1)
    ]


BLOCKS = read_blocks()


def test_finding_a16_blocks_that_are_not_run_say_why() -> None:
    assert Counter(block.reason for block in BLOCKS if block.reason) == Counter(NOT_RUN)


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Make a project, a home with a server, programs on the path, and a model."""
    project = tmp_path / "project"
    monkeypatch.setenv("PWD", str(project))
    gallery = "examples/demo/gallery_server.py"
    for name, text in {
        gallery: (ROOT / gallery).read_text(encoding="utf-8"),
        "src/a.py": "# TODO\n",
        "a.py": "x = 1\n",
        "README.md": "# A project\nTODO\n",
        "notes.txt": "The release manager is Ada.\n",
        "count.py": "print(1 + 1)\n",
    }.items():
        path = project / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    for name in ("honest.py", "peer.py"):  # a sandbox shows what's next to a program
        shutil.copy(SERVERS / name, bin_folder)
    programs = {
        "npx": shlex.join([*PYTHON, str(bin_folder / "honest.py")]),
        "git": "echo diff",
        "indus": f'{shlex.quote(command())} "$@"',
    }
    for name, line in programs.items():
        (bin_folder / name).write_text(f"#!/bin/sh\nexec {line}\n", encoding="utf-8")
        (bin_folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{bin_folder}:{os.environ['PATH']}")
    # For `indus try`: a sandbox shows the runtimes that variables name, wherever this clone and its interpreter lie.
    monkeypatch.setenv("VIRTUAL_ENV", sys.prefix)
    monkeypatch.setenv("PYENV_ROOT", sys.base_prefix)
    servers = {"github": {"command": PYTHON[0], "args": [*PYTHON[1:], str(SERVERS / "issues.py")]}}
    configured(user_file(), servers)
    configured(project / "servers.json", servers)
    (user_file().parents[2] / ".codex").mkdir()
    settings = user_file().parent.parent / "indus" / "settings.json"
    settings.parent.mkdir(parents=True, exist_ok=True)
    settings.write_text(json.dumps({"serve": {"views": {"editor": {"servers": ["github"]}}}}), encoding="utf-8")
    with model_server(*[says("done")] * 8) as model:
        monkeypatch.setenv("OPENAI_BASE_URL", f"{model.url}/v1")
        monkeypatch.setenv("OPENAI_API_KEY", "key")
        yield project


def prepare_calls(project: Path) -> None:
    run("call", "github__create_issue", "title=hi", cwd=project)
    run("call", "read", "path=nothing", cwd=project)


def prepare_deck(project: Path) -> None:
    configured(project / ".indusvx" / "mcp.json", json.loads(user_file().read_text())["servers"])
    user_file().unlink()
    for _ in range(3):
        run("-p", "hello", cwd=project)


def prepare_conversation(project: Path) -> None:
    for number in range(3):
        run("-p", "hello", *["--continue"] * (number > 0), cwd=project)


def prepare_addon(project: Path) -> None:
    folder = project / ".indusvx" / "addons"
    folder.mkdir(parents=True)
    page = (ROOT / "docs/guides/addons.md").read_text(encoding="utf-8")
    (folder / "no_force.py").write_text(page.split("```python\n")[1].split("```")[0], encoding="utf-8")


def prepare_trusted_deck(project: Path) -> None:
    prepare_deck(project)
    typed("y\n", "mcp", "trust", cwd=project)


def prepare_client(project: Path) -> None:
    rows = {"mcpServers": {"notes": {"command": HONEST[0], "args": HONEST[1:]}}}
    (user_file().parents[2] / ".claude.json").write_text(json.dumps(rows), encoding="utf-8")


def prepare_document(project: Path) -> None:
    page = (ROOT / "docs/guides/connectors.md").read_text(encoding="utf-8")
    (project / "openapi.json").write_text(page.split("```json\n")[1].split("```")[0], encoding="utf-8")


def prepare_gallery(project: Path) -> None:
    run("mcp", "add", "gallery", "--", PYTHON[0], str(project / "examples/demo/gallery_server.py"), cwd=project)
    run("call", "gallery__show", cwd=project)


def prepare_list(project: Path) -> None:
    run("tools", cwd=project)


PREPARED = {
    "getting-started-3": prepare_client,
    "getting-started-5": prepare_gallery,
    "getting-started-6": prepare_gallery,
    "getting-started-9": prepare_calls,
    "getting-started-10": prepare_gallery,
    "guides/addons-1": prepare_addon,
    "guides/approve-changes-1": prepare_trusted_deck,
    "guides/calls-1": prepare_calls,
    "guides/connectors-1": prepare_document,
    "guides/ledger-1": prepare_deck,
    "guides/many-tools-1": prepare_list,
    "guides/rewind-1": prepare_conversation,
    "guides/trust-a-project-1": prepare_deck,
}
"""What has happened before the block."""


def mask(line: str) -> str:
    for pattern, word in MASKS:
        line = re.sub(pattern, word, line)
    return line.rstrip()


def to_pattern(shown: str) -> str:
    """Make a pattern of a line of a page; `…` stands for anything."""
    return re.escape(mask(shown)).replace("…", ".*")


def has_shape(shown: list[str], written: list[str]) -> bool:
    """Return whether what a command wrote has the shape of what the page shows."""
    if shown and re.fullmatch(r"[A-Z0-9]+(  +[A-Z0-9]+)+", shown[0]):
        cells = len(shown[0].split())
        return shown[0].split() == written[0].split() and all(
            len(re.split("  +", one.strip())) <= cells for one in written[1:]
        )
    patterns = [to_pattern(one) for one in shown]
    masked = [mask(one) for one in written]
    return len(patterns) == len(masked) and all(map(re.fullmatch, patterns, masked))


def run_line(line: str, cwd: Path, shown: list[str]) -> tuple[int, str, str]:
    """Run one command line; one that goes on until Ctrl-C gets it once it has written what is shown."""
    words = [os.path.expandvars(word) for word in shlex.split(line)]
    if UNTIL_SIGNAL.match(line):
        flags = ["--no-browser"] if words[1] == "ui" and "--no-browser" not in words else []
        argv = [command(), *(word.replace("8080", "0") for word in words[1:]), *flags]
        argv = [*argv[:3], "127.0.0.1:0", *argv[3:]] if words[-1] == "--http" else argv
        with start_command(
            argv, environ=dict(os.environ), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            cwd=cwd, encoding="utf-8",
        ) as process:  # fmt: skip
            assert process.stdout is not None
            written = [process.stdout.readline()]
            while shown and not re.fullmatch(to_pattern(shown[-1]), mask(written[-1].strip())) and written[-1]:
                written.append(process.stdout.readline())
            process.send_signal(signal.SIGINT)
            process.stdout.read()
            code = process.wait(60)
        # Ctrl-C ends Python by the signal itself, unless a handler is in place.
        return (0 if code in {130, -signal.SIGINT} else code), "".join(written[-len(shown) :]), ""
    if line.startswith(ASKS):
        done = typed("y\n" * 9, *words[1:], cwd=cwd)
    elif words[0] == "indus" and not {"|", ">", ">>"} & {*words}:
        done = run(*words[1:], cwd=cwd)
    else:
        assert all(PROGRAMS.match(f"{part.strip()} ") for part in re.split(r"[|;&]+", line)), f"not run here: {line}"
        shell = ["bash", "-o", "pipefail", "-c", line]
        done = subprocess.run(
            shell, cwd=cwd, capture_output=True, text=True, timeout=60, check=False, stdin=subprocess.DEVNULL
        )
    return done.returncode, done.stdout, done.stderr


def check_install(line: str) -> None:
    """Check a line that installs us: its extras exist, and `make adapters` tests the other packages."""
    import tomllib  # noqa: PLC0415 — for these lines

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for names in re.findall(r"indus-deck\[([\w,]+)\]", line):
        assert {*names.split(",")} <= {*project["optional-dependencies"]}, line
    frameworks = (ROOT / "outside/adapters/frameworks.txt").read_text(encoding="utf-8")
    for name in shlex.split(line)[2:]:
        package = name.partition("[")[0]
        assert package in {"indus-deck", "."} or f"\n{package}==" in frameworks, line


@pytest.mark.process
@pytest.mark.parametrize("block", [block for block in BLOCKS if not block.reason], ids=lambda block: block.id)
def test_finding_a16_console_block_runs_as_it_stands(block: Block, scene: Path) -> None:
    if block.id in PREPARED:
        PREPARED[block.id](scene)
    for line, shown in block.commands():
        if line in LINES_NOT_RUN or line.split()[0] in {"export"}:
            continue
        if line.startswith("pip install"):
            check_install(line)
            continue
        code, out, err = run_line(line, scene, shown)
        is_refused = bool(shown) and shown[0].startswith("indus: ") and not UNTIL_SIGNAL.match(line)
        assert (code == EXIT_CODES.get(line, 0)) != is_refused, (line, code, out, err)
        if shown:
            written = [one for one in (out or err).splitlines() if one.strip()]
            assert has_shape(shown, written), (line, shown, written)
