"""Runs a server in the sandbox of its profile.

In bubblewrap, the server sees a private home in place of yours, with the programs it needs mounted into it. Landlock
is the fallback for `standard`. It can't mount anything, so the private home is elsewhere, and yours is unreadable.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from indusagi.capabilities.leftovers import make_owned_dir
from indusagi.capabilities.ports import SandboxMissing
from indusagi.capabilities.sandbox.backend import choose_mechanism, landlock_launcher
from indusagi.capabilities.sandbox.behaviour import SandboxPlaces
from indusagi.capabilities.sandbox.bubblewrap import (
    MASKS,
    NAMESPACES,
    PrivateDir,
    can_scope,
    cover_path,
    limit_devices,
    list_machine,
    list_system,
)
from indusagi.capabilities.sandbox.policy import Sandbox, resolve_layout
from indusagi.capabilities.sandbox.profile import server_home
from indusagi.capabilities.sandbox.trace import SOCKET_NAME as TRACE_NAME
from indusagi.capabilities.sandbox.trace import list_calls
from indusagi.capabilities.sandbox.usage import limit_command
from indusagi.core.app_dirs import is_within, make_private_dir, state_dir
from indusagi.core.secrets import find_credential_places

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from indusagi.capabilities.sandbox.policy import SandboxLayout
    from indusagi.capabilities.sandbox.profile import ServerProfile

SOCKET_NAME = ".egress.sock"
_TOOLCHAINS = (
    *(".nvm", ".fnm", ".volta", ".asdf", ".pyenv", ".rbenv"),
    *(".sdkman", ".rustup", ".bun", ".deno", ".dotnet", ".nix-profile"),
    *(".linuxbrew", ".npm-global", ".npm-packages", ".yarn", ".n", ".cargo/bin"),
    *("go/bin", "miniconda3", "anaconda3", "miniforge3", ".local/bin", ".local/lib"),
    *(
        ".local/share/fnm",
        ".local/share/mise",
        ".local/share/pnpm",
        ".local/share/uv/python",
        ".local/share/uv/tools",
        ".local/share/pipx",
    ),
    *(".local/pipx", ".cache/ms-playwright", ".cache/puppeteer"),
)
"""Programs and runtimes in a home, relative to it."""
_TOOLCHAIN_VARIABLES = (
    *("PYENV_ROOT", "NVM_DIR", "NVM_BIN", "FNM_DIR", "FNM_MULTISHELL_PATH", "VOLTA_HOME", "ASDF_DIR", "ASDF_DATA_DIR"),
    *("MISE_DATA_DIR", "RBENV_ROOT", "SDKMAN_DIR", "RUSTUP_HOME", "GOROOT", "JAVA_HOME", "DOTNET_ROOT", "BUN_INSTALL"),
    *("VIRTUAL_ENV", "CONDA_PREFIX", "PLAYWRIGHT_BROWSERS_PATH", "SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS"),
)
"""Variables that name a runtime, or certificates."""
_CODE = re.compile(r"\.(?:[cm]?[jt]sx?|py[zw]?|rb|pl|php|sh|jar|lua|exe)", re.IGNORECASE)
_PROJECT_FILES = ("package.json", "pyproject.toml", "setup.py", "deno.json", "Cargo.toml", "go.mod", ".git")
_WITHHELD = re.compile(
    r"DISPLAY|WAYLAND_DISPLAY|XAUTHORITY|XDG_\w+|DOCKER_\w+|CONTAINER_HOST|PODMAN_\w+|(?:npm_config|UV|PIP)_CACHE(?:_DIR)?"
    r"|UV_(?:PYTHON_INSTALL|TOOL)_\w*DIR|GOCACHE|GOMODCACHE|GNUPGHOME",
    re.IGNORECASE,
)
"""Variables that point to sockets, or to caches outside the server's home."""
_STRICT_NAMES = re.compile(
    r"PATH|HOME|USER|LOGNAME|LANG|LANGUAGE|LC_\w+|TZ|TERM|SSL_CERT_\w+|NODE_EXTRA_CA_CERTS|REQUESTS_CA_BUNDLE"
)


@dataclass(slots=True, kw_only=True)
class ServerSandbox:
    """A prepared sandbox: the command line that starts the server in it, and what to clean up."""

    argv: list[str]
    env: dict[str, str]
    mechanism: str
    private: PrivateDir
    masked: tuple[str, ...]
    folders: tuple[str, str]
    """Its home and its temporary directory, outside."""
    socket_path: str | None = None
    """Where the egress proxy has to listen, if the profile names hosts."""
    trace_path: str | None = None
    """Where its observer has to listen, if it has one."""
    confine: Callable[[], None] | None = None
    """Restricts the thread that starts the server."""

    def remove(self) -> None:
        """Remove its temporary files. Blocks."""
        MASKS.release(self.masked)
        self.private.remove()


def prepare_server(
    profile: ServerProfile,
    server: str,
    argv: Sequence[str],
    env: Mapping[str, str],
    declared: Mapping[str, str],
    cwd: str | None,
) -> ServerSandbox:
    """Prepare the sandbox of one start. Blocks.

    Args:
        profile: What the server may touch.
        server: Its name, which its home is named after.
        argv: Its command line.
        env: Its whole environment.
        declared: The part of it that its row declares.
        cwd: Its working directory; None for ours.

    Raises:
        SandboxMissing: No mechanism holds it to this profile.
        OSError: Its directories can't be created.
    """
    home, folder = os.path.realpath(os.path.expanduser("~")), os.path.realpath(cwd or os.getcwd())
    workspace = None if is_within(home, folder) else folder  # your home and `/` are no workspace
    paths = _ServerPaths(profile, home, workspace)
    paths.add_command(argv, env, declared, folder)
    layout = resolve_layout(
        Sandbox(
            network=profile.reaches_all, read_only=profile.is_strict or workspace is None, writable=tuple(paths.write)
        ),
        workspace or "/nonexistent",
    )
    mechanism, start = choose_mechanism(layout)
    if not mechanism or (mechanism == "landlock" and (profile.is_strict or not profile.reaches_all)):
        needs = "strict, and rules about hosts, need" if mechanism else "there's no"
        raise SandboxMissing(
            f"{needs} bubblewrap, which doesn't work here: install it (apt install bubblewrap), or set its"
            f' "sandbox" to {"standard" if mechanism else "off"}'
        )
    program = shutil.which(os.path.join(folder, argv[0]) if os.sep in argv[0] else argv[0], path=env.get("PATH"))
    if program is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), argv[0])
    private_home = server_home(server, profile.owner)
    make_private_dir(state_dir())
    make_private_dir(os.path.dirname(private_home))
    make_private_dir(private_home)
    private = PrivateDir(make_owned_dir())
    os.mkdir(private.tmp, 0o700)
    visible = _build_environment(profile, env, declared)
    if mechanism == "landlock":
        hidden = [*layout.hidden, home, *_list_other_homes(home)]
        write = [*paths.write, private.tmp, private_home, *([] if workspace is None else [workspace])]
        launcher = landlock_launcher(write=write, hidden=hidden, read=[*paths.read, private.root], network=True)
        visible |= {"HOME": private_home, "TMPDIR": private.tmp}
        limited = [*limit_command(profile.limits, has_namespace=False), *launcher]
        return ServerSandbox(
            argv=[*limited, program, *argv[1:]],
            env=visible,
            mechanism=mechanism,
            private=private,
            masked=(),
            folders=(private_home, private.tmp),
        )
    visible |= {"HOME": home, "TMPDIR": "/tmp"}
    masked = MASKS.acquire(layout.protected)
    command = [
        *start,
        *NAMESPACES,
        "--die-with-parent",
        *(() if profile.reaches_all else ("--unshare-net",)),
        *(list_system() if profile.is_strict else list_machine()),
        *("--bind", private.tmp, "/tmp"),
        *(word for path in _list_other_homes(home) for word in ("--tmpfs", path)),
        *("--bind", private_home, home),
        *limit_devices(start, profile.limits.memory),
        *paths.mount(layout, masked),
        *(
            word
            for path in (*_list_other_homes(home), *(["/"] if profile.is_strict else []))
            for word in ("--remount-ro", path)
        ),
        *("--chdir", folder if workspace is not None or not is_within(folder, home) else home, "--"),
        *limit_command(profile.limits, has_namespace=True),
    ]
    folders = (private_home, private.tmp)
    sandbox = ServerSandbox(
        argv=command, env=visible, mechanism=mechanism, private=private, masked=masked, folders=folders
    )
    if profile.needs_proxy:
        sandbox.socket_path = os.path.join(private.tmp, SOCKET_NAME)
        sandbox.argv += _run_inside("egress_run.py", SOCKET_NAME)
    if profile.observer is not None:
        sandbox.trace_path = os.path.join(private.tmp, TRACE_NAME)
        profile.observer.places = paths.describe()
        sandbox.argv += [*_run_inside("trace_run.py", TRACE_NAME), ",".join(map(str, list_calls()))]
    if profile.reaches_all and can_scope(tuple(start)):
        from indusagi.capabilities.sandbox.landlock_run import scope_thread  # noqa: PLC0415 — loads ctypes

        sandbox.confine = scope_thread
    sandbox.argv += argv
    return sandbox


def _run_inside(launcher: str, socket_name: str) -> list[str]:
    return [sys.executable, "-I", "-S", os.path.join(os.path.dirname(__file__), launcher), f"/tmp/{socket_name}"]


class _ServerPaths:
    """The paths a server needs: programs to read, and what its row names."""

    def __init__(self, profile: ServerProfile, home: str, workspace: str | None) -> None:
        self._profile = profile
        self._home = home
        self._workspace = workspace
        self.read: dict[str, None] = {}
        """Resolved, in order."""
        self.write: dict[str, None] = {}
        for text in profile.read:
            self._add(self.read, self._find(text))
        for text in profile.write:
            self._add(self.write, self._find(text))

    def _find(self, text: str) -> str:
        return os.path.join(self._workspace or self._home, os.path.expanduser(text))

    def describe(self) -> SandboxPlaces:
        """Describe the sandbox to its observer."""
        profile = self._profile
        read, write = (
            tuple((os.path.realpath(self._find(text)), text) for text in texts)
            for texts in (profile.read, profile.write)
        )
        named = {path for path, _ in (*read, *write)}
        package = tuple(path for path in (*self.read, *self.write) if path not in named)
        return SandboxPlaces(home=self._home, workspace=self._workspace, package=package, read=read, write=write)

    def _add(self, into: dict[str, None], path: str) -> None:
        """Add an existing path, unless it contains your whole home."""
        real = os.path.realpath(path)
        if os.path.exists(real) and not is_within(self._home, real):
            into[real] = None

    def add_command(
        self, argv: Sequence[str], env: Mapping[str, str], declared: Mapping[str, str], folder: str
    ) -> None:
        """Add the programs it needs, and the files and directories that its row names."""
        for name in _TOOLCHAINS:
            self._add(self.read, os.path.join(self._home, name))
        search = env.get("PATH", os.defpath)
        for entry in search.split(os.pathsep):
            if os.path.isabs(entry):
                self._add(self.read, os.path.dirname(entry) if os.path.basename(entry) == "shims" else entry)
        for name in _TOOLCHAIN_VARIABLES:
            if os.path.isabs(env.get(name, "")):
                self._add(self.read, env[name])
        runner = [sys.executable, os.path.realpath(sys.executable), __file__] if self._profile.needs_proxy else []
        program = shutil.which(argv[0], path=search)
        for path in (*runner, *([] if program is None else [program, os.path.realpath(program)])):
            parent = os.path.dirname(os.path.abspath(path))
            is_bin = os.path.basename(parent) in {"bin", "Scripts", "sandbox"}
            self._add(self.read, parent)
            if is_bin:
                self._add(self.read, os.path.dirname(parent))
        for text in (*argv[1:], *declared.values()):
            self._add_named(text, folder)

    def _add_named(self, text: str, folder: str) -> None:
        """Add the path that an argument or a variable of the row names, if it's one and holds no credentials."""
        value = os.path.expanduser(text.partition("=")[2] if text.startswith("-") else text)
        path = os.path.join(folder, value)
        if not value or "\0" in value or not os.path.lexists(path):
            return
        secrets = (os.path.realpath(one) for one in find_credential_places(os.environ, self._home))
        if is_within(os.path.realpath(path), *secrets):
            return  # only `read` and `write` of the profile can name these
        if _CODE.fullmatch(os.path.splitext(path)[1]):
            self._add(self.read, path)
            self._add(self.read, _find_project(os.path.realpath(path)))
        elif os.path.isdir(path) or os.path.isabs(value):
            self._add(self.read if self._profile.is_strict else self.write, path)

    def mount(self, layout: SandboxLayout, masked: Sequence[str]) -> Iterator[str]:
        """Yield bubblewrap's options for the paths; later ones win."""
        shown = dict.fromkeys(self.read, "--ro-bind") | dict.fromkeys(self.write, "--bind")
        if self._workspace is not None and self._workspace not in self.write:
            shown[self._workspace] = "--ro-bind" if self._profile.is_strict else "--bind"
        for path in sorted(shown):  # parents first
            if not is_within(path, "/usr", "/lib", "/bin") or shown[path] == "--bind":
                yield from (shown[path], path, path)
        for path in layout.held:
            yield from ("--bind", path, path)
        for path in layout.protected:
            yield from cover_path(path) if path in masked else ("--ro-bind-try", path, path)
        for path in layout.hidden:
            is_seen = is_within(path, *shown)
            is_covered = self._profile.is_strict or is_within(path, self._home, "/tmp", *_list_other_homes(self._home))
            if path not in shown and (is_seen or not is_covered):
                yield from cover_path(path)


def _find_project(script: str) -> str:
    """Return the directory of the package a script belongs to."""
    folder = start = os.path.dirname(script)
    for _ in range(4):
        if any(os.path.exists(os.path.join(folder, name)) for name in _PROJECT_FILES):
            return folder
        folder = os.path.dirname(folder)
    return start


def _list_other_homes(home: str) -> list[str]:
    """List the existing homes, and directories of homes, of other users."""
    return [path for path in ("/home", "/root", "/Users") if os.path.isdir(path) and path != home]


def _build_environment(profile: ServerProfile, env: Mapping[str, str], declared: Mapping[str, str]) -> dict[str, str]:
    def is_kept(name: str) -> bool:
        if name in declared or name in profile.env:
            return True
        return _STRICT_NAMES.fullmatch(name) is not None if profile.is_strict else _WITHHELD.fullmatch(name) is None

    # Package managers use what they have at once, instead of waiting for the network.
    offline = {} if profile.reaches_all or profile.needs_proxy else {"npm_config_offline": "true", "UV_OFFLINE": "1"}
    named = {name: os.environ[name] for name in profile.env if name in os.environ}
    return {name: value for name, value in {**named, **env}.items() if is_kept(name)} | offline
