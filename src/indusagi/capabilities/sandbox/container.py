"""Runs a server in a container of docker or podman. The command line has only words from here.

The container is read-only, without capabilities and without a network unless the row names it; it sees the paths and
variables that the row names, and is removed when the server ends.
"""

from __future__ import annotations

import os
import re
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from indusagi.capabilities.leftovers import make_owned_dir
from indusagi.capabilities.ports import SandboxMissing
from indusagi.capabilities.sandbox.bubblewrap import PrivateDir
from indusagi.capabilities.sandbox.server import ServerSandbox
from indusagi.core.app_dirs import create_private_file, find_trusted_program, is_within
from indusagi.core.ids import new_ulid
from indusagi.core.secrets import SOCKETS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from indusagi.capabilities.sandbox.profile import ServerProfile

_REMOVE_S = 20.0
_NOBODY = 65_534
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_TEMPORARY_BYTES = 1 << 30


@dataclass(slots=True, kw_only=True)
class ContainerSandbox(ServerSandbox):
    """A prepared container."""

    remove_command: tuple[str, ...]

    def remove(self) -> None:
        """Remove the container, if it's still there, and its temporary files. Blocks."""
        # The engine's client may have been killed, which leaves the container running.
        with suppress(OSError, subprocess.SubprocessError):
            subprocess.run(self.remove_command, env=self.env, capture_output=True, timeout=_REMOVE_S, check=False)
        ServerSandbox.remove(self)


def prepare_container(
    profile: ServerProfile, argv: Sequence[str], env: Mapping[str, str], declared: Mapping[str, str], cwd: str | None
) -> ContainerSandbox:
    """Prepare the container of one start; see `prepare_server`. Blocks."""
    container, folder = profile.container, os.path.realpath(cwd or os.getcwd())
    assert container is not None
    workspace = "/nonexistent" if is_within(os.path.realpath(os.path.expanduser("~")), folder) else folder
    engine = find_trusted_program(container.engine, os.environ.get("PATH", os.defpath), workspace)
    if profile.observer is not None:
        raise SandboxMissing("a container can't be observed: learn what it needs in a sandbox")
    if engine is None:
        raise SandboxMissing(f'there is no {container.engine}: install it, or change "container" of its "sandbox"')
    mounts = dict.fromkeys(_resolve(profile.read, folder), ",readonly") | dict.fromkeys(
        _resolve(profile.write, folder), ""
    )
    private = PrivateDir(make_owned_dir())
    os.mkdir(private.tmp, 0o700)
    try:
        variables = {name: os.environ[name] for name in profile.env if name in os.environ} | {**declared}
        variables_path = os.path.join(private.root, "variables")
        _write_variables(variables_path, {"HOME": "/tmp", **variables})
    except BaseException:
        private.remove()
        raise
    name, memory = f"indus-{new_ulid().lower()}", f"{profile.limits.memory}b"
    command = [
        *(engine, "run", "--rm", "-i", "--name", name, "--log-driver", "none"),
        *("--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges"),
        *_choose_user(container.engine, is_writer=bool(profile.write)),
        *("--memory", memory, "--memory-swap", memory, "--pids-limit", str(profile.limits.processes)),
        *(() if profile.reaches_all else ("--network", "none")),
        *("--tmpfs", f"/tmp:rw,nosuid,nodev,mode=1777,size={min(profile.limits.disk, _TEMPORARY_BYTES)}"),
        *("--env-file", variables_path),
        *(
            word
            for path, access in sorted(mounts.items())
            for word in ("--mount", f"type=bind,source={path},target={path}{access}")
        ),
        *(("--workdir", folder) if is_within(folder, *mounts) else ()),
        *("--entrypoint", argv[0], container.image, *argv[1:]),
    ]
    return ContainerSandbox(
        argv=command,
        # Variables of the row are for the container, not for the engine's client.
        env={variable: os.environ[variable] for variable in env if variable in os.environ},
        mechanism=container.engine,
        private=private,
        masked=(),
        folders=(private.root, private.tmp),
        remove_command=(engine, "rm", "--force", "--volumes", name),
    )


def _resolve(texts: Sequence[str], folder: str) -> Iterator[str]:
    """Yield the existing paths that a profile names, without links."""
    home = os.path.expanduser("~")
    for text in texts:
        path = os.path.realpath(os.path.join(folder, os.path.expanduser(text)))
        sockets = [os.path.realpath(one) for one in SOCKETS]
        if is_within(path, *sockets) or any(is_within(one, path) for one in (*sockets, os.path.realpath(home))):
            raise SandboxMissing(f"its sandbox names {text!r}, which has your home or sockets: name what's below it")
        if not path.isprintable() or any(mark in path for mark in ',"'):  # the engine reads --mount as CSV
            raise SandboxMissing(
                f"its sandbox names {text!r}, which a container can't mount: it has a comma or a quote"
            )
        if os.path.exists(path):
            yield path


def _write_variables(path: str, variables: Mapping[str, str]) -> None:
    """Write a file of variables, so that no other user sees their values in a command line."""
    for name, value in variables.items():
        if _NAME.fullmatch(name) is None or "\n" in value or "\r" in value:
            raise ValueError(
                f"a container can't get the variable {name!r}: its value has several lines, or its name marks"
            )
    with os.fdopen(create_private_file(path), "w", encoding="utf-8", errors="surrogateescape") as file:
        file.writelines(f"{name}={value}\n" for name, value in variables.items())


def _choose_user(engine: str, *, is_writer: bool) -> Sequence[str]:
    """Choose a user without rights: you, since mounted files are yours, or nobody if you're root."""
    user, group = os.getuid(), os.getgid()
    if user == 0:
        return () if is_writer else ("--user", f"{_NOBODY}:{_NOBODY}")
    return (*(("--userns", "keep-id") if engine == "podman" else ()), "--user", f"{user}:{group}")
