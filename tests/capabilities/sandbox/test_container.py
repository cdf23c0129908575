"""Servers in containers: the exact command line of the engine, and what never gets into it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from indusagi.capabilities.ports import SandboxMissing
from indusagi.capabilities.sandbox.container import prepare_container
from indusagi.capabilities.sandbox.profile import ServerProfile, parse_profile
from indusagi.capabilities.sandbox.trace import SandboxObserver

if TYPE_CHECKING:
    from indusagi.capabilities.sandbox.container import ContainerSandbox

IMAGE = f"example/notes@sha256:{'0' * 64}"


@pytest.fixture(autouse=True)
def engine(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put stand-ins for the engines on the path; they do nothing."""
    folder = tmp_path_factory.mktemp("engines")
    for name in ("docker", "podman"):
        (folder / name).write_text("#!/bin/sh\n", "utf-8")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setattr("os.getuid", lambda: 1000)
    monkeypatch.setattr("os.getgid", lambda: 1001)
    return folder


def prepare(cwd: Path, argv: tuple[str, ...] = ("serve", "-v"), /, **row: Any) -> ContainerSandbox:
    profile = parse_profile({"container": "docker", "image": IMAGE, **row})
    assert profile is not None
    declared = {"TOKEN": "hunter2", "DOCKER_HOST": "tcp://evil.example"}
    return prepare_container(profile, argv, {"PATH": "/evil", "USER": "me", **declared}, declared, str(cwd))


def test_the_command_line_has_just_what_the_row_names(
    tmp_path: Path, engine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ZONE", "UTC")
    work = tmp_path / "work"
    (work / "out").mkdir(parents=True)
    rights = {
        "read": ["."],
        "write": ["out", "absent"],
        "env": ["ZONE", "UNSET"],
        "limits": {"memory": "1G", "processes": 99},
    }
    sandbox = prepare(work, **rights)
    try:
        name, variables = sandbox.argv[5], Path(sandbox.private.root, "variables")
        assert sandbox.argv == [
            *(str(engine / "docker"), "run", "--rm", "-i", "--name", name, "--log-driver", "none"),
            *("--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--user", "1000:1001"),
            *("--memory", "1073741824b", "--memory-swap", "1073741824b", "--pids-limit", "99", "--network", "none"),
            *("--tmpfs", "/tmp:rw,nosuid,nodev,mode=1777,size=1073741824", "--env-file", str(variables)),
            *("--mount", f"type=bind,source={work},target={work},readonly"),
            *("--mount", f"type=bind,source={work}/out,target={work}/out", "--workdir", str(work)),
            *("--entrypoint", "serve", IMAGE, "-v"),
        ]
        assert name.startswith("indus-")
        assert variables.read_text("utf-8") == "HOME=/tmp\nZONE=UTC\nTOKEN=hunter2\nDOCKER_HOST=tcp://evil.example\n"
        assert variables.stat().st_mode & 0o777 == 0o600
        assert "hunter2" not in str(sandbox.argv)
        assert sandbox.env == {"PATH": str(engine), **({"USER": os.environ["USER"]} if "USER" in os.environ else {})}
        assert sandbox.remove_command == (str(engine / "docker"), "rm", "--force", "--volumes", name)
    finally:
        sandbox.remove()
    assert not variables.exists()


def test_words_of_the_row_are_no_options_of_the_engine(tmp_path: Path) -> None:
    sandbox = prepare(tmp_path, ("--privileged", "-v", "/:/host"), network="any")
    sandbox.remove()
    assert sandbox.argv[-5:] == ["--entrypoint", "--privileged", IMAGE, "-v", "/:/host"]
    assert not {"--network", "--workdir", "--mount"} & {*sandbox.argv}


@pytest.mark.parametrize(
    ("user", "row", "words"),
    [
        (1000, {"container": "podman"}, ["--userns", "keep-id", "--user", "1000:1001"]),
        (0, {}, ["--user", "65534:65534"]),
        (0, {"write": ["."]}, []),
    ],
)
def test_it_runs_without_the_rights_of_root_where_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, user: int, row: dict[str, Any], words: list[str]
) -> None:
    monkeypatch.setattr("os.getuid", lambda: user)
    sandbox = prepare(tmp_path, **row)
    sandbox.remove()
    start = sandbox.argv.index("no-new-privileges") + 1
    assert sandbox.argv[start : sandbox.argv.index("--memory")] == words


@pytest.mark.parametrize(
    "path", ["/", "~", "/run", "/var/run/docker.sock", "/run/user/1000/bus", "a,readonly=false", 'a"b']
)
def test_homes_sockets_and_words_of_mounts_are_refused(tmp_path: Path, path: str) -> None:
    with pytest.raises(SandboxMissing, match="its sandbox names"):
        prepare(tmp_path, read=[path])


@pytest.mark.parametrize("declared", [{"A": "1\nHOME=/"}, {"A B": "1"}, {"#A": "1"}, {"": "1"}])
def test_a_variable_that_would_be_two_is_refused(tmp_path: Path, declared: dict[str, str]) -> None:
    profile = parse_profile({"container": "docker", "image": IMAGE})
    assert profile is not None
    with pytest.raises(ValueError, match="a container can't get the variable"):
        prepare_container(profile, ["serve"], declared, declared, str(tmp_path))


def test_the_engine_is_none_of_the_workspace_and_nothing_observes_it(engine: Path, tmp_path: Path) -> None:
    with pytest.raises(SandboxMissing, match="there is no docker"):
        prepare(engine)
    profile = parse_profile({"container": "docker", "image": IMAGE})
    assert profile is not None
    observed = ServerProfile(container=profile.container, observer=SandboxObserver())
    with pytest.raises(SandboxMissing, match="can't be observed"):
        prepare_container(observed, ["serve"], {}, {}, str(tmp_path))
