"""Safe defaults, through a toolbox with all native tools."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.support.sandboxes import skip_without
from tests.support.tools import box_of, call, context

from indusagi.capabilities.tools import native_tools
from indusagi.core.text import clean_text

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from indusagi.capabilities.registry import RegistryToolBox
    from indusagi.core.json import JsonObject

pytestmark = pytest.mark.anyio

DIRTY = "a\x1b[2J\u202e\U000e0041b.txt"
"""A name with an escape sequence, a direction override and an invisible character."""
CALLS: list[tuple[str, JsonObject]] = [
    ("read", {"path": "{}"}),
    ("ls", {"path": "{}"}),
    ("grep", {"pattern": "x", "path": "{}"}),
    ("find", {"query": "*", "path": "{}"}),
    ("write", {"path": "{}", "content": "y"}),
    ("edit", {"path": "{}", "oldText": "x", "newText": "y"}),
    ("bash", {"command": "true", "cwd": "{}"}),
]


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """Make a workspace with something beside it."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/secret.txt").write_text("x\n", encoding="utf-8")
    (tmp_path / "work").mkdir()
    (tmp_path / "work-evil").mkdir()
    (tmp_path / "work/link").symlink_to(tmp_path / "outside")
    return tmp_path / "work"


@pytest.fixture
async def box(work: Path) -> AsyncIterator[RegistryToolBox]:
    async with context(work) as ctx:
        yield box_of(ctx, *native_tools())


@pytest.mark.parametrize("name", [tool.spec.name for tool in native_tools()])
async def test_no_tool_runs_with_an_argument_it_does_not_know(box: RegistryToolBox, work: Path, name: str) -> None:
    usual = dict(CALLS).get(name, {})
    given = {key: str(value).format("new.txt") for key, value in usual.items() if key != "cwd"}
    outcome = await call(box, name, {**given, "dangerouslyDisableSandbox": True})
    assert outcome.details["code"] == "invalid_arguments"
    assert "'dangerouslyDisableSandbox' is not accepted" in str(outcome.output)
    assert not (work / "new.txt").exists()


@pytest.mark.process
async def test_default_3_command_inherits_no_secrets(box: RegistryToolBox, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["A_KEY", "GITHUB_TOKEN", "MY_SECRET", "DB_PASSWORD", "AWS_CREDENTIALS"]
    for name in [*names, "HARMLESS"]:
        monkeypatch.setenv(name, "value of it")
    seen = (await call(box, "bash", {"command": "env"})).output
    assert "HARMLESS=value of it" in str(seen)
    assert [name for name in names if name in str(seen)] == []


@pytest.mark.process
async def test_default_5_long_result_is_kept_in_a_private_file(box: RegistryToolBox) -> None:
    outcome = await call(box, "bash", {"command": "yes | head -n 200000"})
    assert len(str(outcome.output)) < 64 * 1024
    kept = str(outcome.details["path"])
    assert os.stat(kept).st_size == 400_000
    assert stat.S_IMODE(os.stat(kept).st_mode) & 0o077 == 0


@pytest.mark.parametrize(("tool", "arguments"), CALLS[:-1], ids=[name for name, _ in CALLS[:-1]])
async def test_default_6_file_names_are_cleaned(
    box: RegistryToolBox, work: Path, tool: str, arguments: JsonObject
) -> None:
    (work / DIRTY).write_text("x\n", encoding="utf-8")
    path = DIRTY if tool in {"read", "write", "edit"} else "."
    await call(box, "read", {"path": DIRTY})
    outcome = await call(box, tool, _at(arguments, path))
    assert not outcome.is_error, outcome.output
    assert tool == "read" or "b.txt" in str(outcome.output)
    assert clean_text(str(outcome.output))[1] == 0


@pytest.mark.parametrize("path", ["{}/outside", "../work-evil", "link", "link/secret.txt", "/"])
@pytest.mark.parametrize(("tool", "arguments"), CALLS, ids=[name for name, _ in CALLS])
async def test_default_10_paths_outside_the_workspace_are_refused(
    box: RegistryToolBox, work: Path, tool: str, arguments: JsonObject, path: str
) -> None:
    outcome = await call(box, tool, _at(arguments, path.format(work.parent)))
    assert outcome.is_error, outcome.output
    assert outcome.details["code"] == "denied"
    assert (work.parent / "outside/secret.txt").read_text(encoding="utf-8") == "x\n"


@pytest.mark.parametrize("path", [".git/config", ".git/hooks/pre-commit", ".indusvx/mcp.json"])
@pytest.mark.parametrize("tool", ["write", "edit"])
async def test_default_10_protected_paths_are_not_written(
    box: RegistryToolBox, work: Path, tool: str, path: str
) -> None:
    (work / path).parent.mkdir(parents=True)
    (work / path).write_text("x", encoding="utf-8")
    await call(box, "read", {"path": path})
    outcome = await call(box, tool, _at(dict(CALLS)[tool], path))
    assert outcome.details["code"] == "denied"
    assert (work / path).read_text(encoding="utf-8") == "x"


@pytest.mark.parametrize(("tool", "arguments"), CALLS, ids=[name for name, _ in CALLS])
async def test_default_10_pipes_are_not_opened(
    box: RegistryToolBox, work: Path, tool: str, arguments: JsonObject
) -> None:
    os.mkfifo(work / "pipe")
    outcome = await call(box, tool, _at(arguments, "pipe"))
    if tool == "ls":  # which only says what it is
        assert outcome.output == "pipe (special)"
    else:
        assert outcome.is_error, outcome.output


async def test_default_11_command_is_confined_to_its_workspace(
    box: RegistryToolBox, work: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    skip_without("bubblewrap")
    keys = Path.home() / ".ssh"
    keys.mkdir(parents=True)
    (keys / "id").write_text("key", encoding="utf-8")
    (work / ".git").mkdir()
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    command = (
        f"touch inside; touch {elsewhere}/file; touch /usr/file; cat ~/.ssh/id; mkdir .git/hooks;"
        "touch .git/hooks/x; read line || echo no line; ls -d /proc/[0-9]* | wc -l"
    )
    outcome = await call(box, "bash", {"command": command})
    assert (work / "inside").exists()
    assert os.listdir(elsewhere) == []
    assert "file" not in os.listdir("/usr")
    assert not (work / ".git/hooks/x").exists()
    assert "key" not in str(outcome.output).split()
    assert "no line" in str(outcome.output)
    assert int(str(outcome.output).split()[-1]) < 20


@pytest.mark.parametrize(
    "host", ["0x7f.1", "2130706433", "0177.0.0.1", "127。0。0。1", "[64:ff9b::7f00:1]", "169.254.169.254"]
)
async def test_default_12_private_addresses_are_refused(box: RegistryToolBox, host: str) -> None:
    outcome = await call(box, "webfetch", {"url": f"http://{host}/"})
    assert outcome.details["code"] == "denied", outcome.output


def _at(arguments: JsonObject, path: str) -> JsonObject:
    """Put a path where the arguments have a gap for one."""
    return {key: path if value == "{}" else value for key, value in arguments.items()}
