"""Runs a server in the sandbox of its profile.

In bubblewrap, the server sees a private home in place of yours, with the programs it needs mounted into it. Landlock
is the fallback for `standard`. It can't mount anything, so the private home is elsewhere, and yours is unreadable.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shutil
import stat
import sys
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from tempfile import gettempdir
from typing import TYPE_CHECKING

from indusagi.capabilities.leftovers import make_owned_dir
from indusagi.capabilities.ports import SandboxMissing
from indusagi.capabilities.sandbox.backend import DEVICES, choose_mechanism, landlock_launcher
from indusagi.capabilities.sandbox.behaviour import SandboxPlaces
from indusagi.capabilities.sandbox.bubblewrap import (
    MASKS,
    NAMESPACES,
    PrivateDir,
    can_bind_handles,
    can_scope,
    cover_path,
    limit_devices,
    list_machine,
    list_system,
)
from indusagi.capabilities.sandbox.policy import Sandbox, list_folders, resolve_layout
from indusagi.capabilities.sandbox.profile import server_home
from indusagi.capabilities.sandbox.usage import limit_command
from indusagi.core.app_dirs import is_within, make_private_dir, parts_below, state_dir
from indusagi.core.secrets import find_credential_places

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

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
_LOCAL_HOST = re.compile(r"(?:localhost|127\.\d+\.\d+\.\d+|\[::1\]):\d+")
_MAX_LINKS = 40
_FOLDER = getattr(os, "O_PATH", 0) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LOCK_TRIES = 50
_LOCK_PAUSE_S = 0.01
_SERVICES = "/run"
_NO_SERVICES = ("nscd", "current-system", "booted-system", "opengl-driver", "wrappers")
"""What programs of the system need in `/run`, in addition to the way to resolve names."""


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
    home: PrivateHome | None = None
    handles: list[int] = field(default_factory=list[int])
    """Descriptors that its command line names."""
    socket_path: str | None = None
    """Where the egress proxy has to listen, if the profile names hosts."""
    trace_path: str | None = None
    """Where its observer has to listen, if it has one."""
    confine: Callable[[], None] | None = None
    """Restricts the thread that starts the server."""
    notes: tuple[str, ...] = ()
    """What the server doesn't get, for its log."""
    unwelcome: tuple[str, ...] = ()
    """Files it mustn't leave behind."""

    def remove(self) -> None:
        """Remove its temporary files. Blocks."""
        MASKS.release(self.masked)
        for path in self.unwelcome:
            with suppress(OSError):
                os.unlink(path)
        self.private.remove()
        if self.home is not None:
            self.home.release()
        _close_all(self.handles)


def _close_all(handles: list[int]) -> None:
    while handles:
        os.close(handles.pop())


class PrivateHome:
    """The private home of a server while it's in use, and the mount points made in it.

    Without the mount, one would look like an empty file or directory of yours. So the last user removes them.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._points: list[Sequence[str]] = []
        self._handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        self._lock(fcntl.LOCK_SH, _LOCK_TRIES)

    def _lock(self, kind: int, tries: int) -> bool:
        """Lock the home between processes. It fails if the server has locked it, which only harms itself."""
        for _ in range(tries):
            with suppress(OSError):
                fcntl.flock(self._handle, kind | fcntl.LOCK_NB)
                return True
            time.sleep(_LOCK_PAUSE_S)
        return False

    def make_mount_point(self, parts: Sequence[str], *, is_folder: bool) -> None:
        """Make a mount point, in place of a link or file that the server has put there.

        Raises:
            OSError: It can't be made.
        """
        self._points.append(parts)
        folder = os.dup(self._handle)
        try:
            for number, part in enumerate(parts, 1):
                kind = stat.S_IFDIR if is_folder or number < len(parts) else stat.S_IFREG
                with suppress(FileNotFoundError):
                    if stat.S_IFMT(os.stat(part, dir_fd=folder, follow_symlinks=False).st_mode) != kind:
                        os.unlink(part, dir_fd=folder)
                if kind == stat.S_IFREG:
                    flags = os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
                    os.close(os.open(part, flags, 0o600, dir_fd=folder))
                    continue
                with suppress(FileExistsError):
                    os.mkdir(part, 0o700, dir_fd=folder)
                inner = os.open(part, _FOLDER, dir_fd=folder)
                os.close(folder)
                folder = inner
        finally:
            os.close(folder)

    def release(self) -> None:
        """Give it up, and remove the mount points that are empty unless another process uses it."""
        if self._lock(fcntl.LOCK_EX, 1):
            for parts in self._points:
                with suppress(OSError):
                    _remove_empty(self._handle, parts)
        os.close(self._handle)


def _remove_empty(folder: int, parts: Sequence[str]) -> None:
    """Remove a path below a directory, and the directories on the way, unless it or they hold something."""
    part, *rest = parts
    if rest:
        inner = os.open(part, _FOLDER, dir_fd=folder)
        try:
            _remove_empty(inner, rest)
        finally:
            os.close(inner)
    found = os.stat(part, dir_fd=folder, follow_symlinks=False)
    if stat.S_ISDIR(found.st_mode):
        os.rmdir(part, dir_fd=folder)
    elif stat.S_ISREG(found.st_mode) and not found.st_size:
        os.unlink(part, dir_fd=folder)


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
    mechanism, start = choose_mechanism(layout.workspace)
    if not mechanism or (mechanism == "landlock" and (profile.is_strict or not profile.reaches_all)):
        needs = "strict, and rules about hosts, need" if mechanism else "there's no"
        raise SandboxMissing(
            f"{needs} bubblewrap, which doesn't work here: install it (apt install bubblewrap), or set its"
            f' "sandbox" to {"standard" if mechanism else "off"}'
        )
    program = shutil.which(os.path.join(folder, argv[0]) if os.sep in argv[0] else argv[0], path=env.get("PATH"))
    if program is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), argv[0])
    private_home = profile.home or server_home(server, profile.owner)
    if not profile.home:
        make_private_dir(state_dir())
    make_private_dir(os.path.dirname(private_home))
    make_private_dir(private_home)
    private = PrivateDir(make_owned_dir())
    with ExitStack() as undo:
        undo.callback(private.remove)
        os.mkdir(private.tmp, 0o700)
        sandbox = ServerSandbox(
            argv=[],
            env=_build_environment(profile, env, declared),
            mechanism=mechanism,
            private=private,
            masked=(),
            folders=(private_home, private.tmp),
            unwelcome=layout.unwelcome,
        )
        if mechanism == "landlock":
            hidden = [*layout.hidden, home, *_list_covers(home), "/tmp"]
            write = [*paths.write, private.tmp, private_home, *([] if workspace is None else [workspace])]
            launcher = landlock_launcher(
                write=write, hidden=hidden, read=[*paths.read, private.root], network=True, devices=DEVICES
            )
            sandbox.env |= {"HOME": private_home, "TMPDIR": private.tmp}
            limited = limit_command(profile.limits, has_namespace=False)
            sandbox.argv = [*limited, *launcher, program, *argv[1:]]
        else:
            sandbox.env |= {"HOME": home, "TMPDIR": "/tmp"}
            shown = paths.list_shown()
            protected = [path for path in layout.protected if shown.get(_find_root(path, shown)) == "--bind"]
            sandbox.masked = MASKS.acquire(protected)
            undo.callback(MASKS.release, sandbox.masked)
            sandbox.home = PrivateHome(private_home)
            undo.callback(sandbox.home.release)
            undo.callback(_close_all, sandbox.handles)
            paths.pin_with(start[0], sandbox.handles)
            services = () if profile.is_strict else _list_services()
            sandbox.argv = [
                *start,
                *NAMESPACES,
                "--die-with-parent",
                *("--cap-drop", "ALL"),  # of root, which keeps those over a namespace of its own
                *(() if profile.reaches_all else ("--unshare-net",)),
                *(list_system() if profile.is_strict else list_machine()),
                *("--bind", private.tmp, "/tmp"),
                *(word for path in services[:1] for word in ("--tmpfs", path)),
                *(word for path in services[1:] for word in ("--ro-bind-try", path, path)),
                *(word for path in _list_covers(home) for word in ("--tmpfs", path)),
                *("--bind", private_home, home),
                *limit_devices(start, profile.limits.memory),
                *paths.mount(shown, protected, layout.hidden, sandbox.masked, sandbox.home),
                *(
                    word
                    for path in (*_list_covers(home), *(["/"] if profile.is_strict else services[:1]))
                    for word in ("--remount-ro", path)
                ),
                *("--chdir", folder if workspace is not None or not is_within(folder, home) else home, "--"),
                *limit_command(profile.limits, has_namespace=True),
            ]
            _finish_command(sandbox, profile, paths, argv)
            sandbox.confine = _choose_confinement(profile, tuple(start))
        sandbox.notes = tuple(paths.notes)
        undo.pop_all()
    return sandbox


def _finish_command(sandbox: ServerSandbox, profile: ServerProfile, paths: _ServerPaths, argv: Sequence[str]) -> None:
    """Add the launcher that its profile needs inside, and the server's own command."""
    words = [""] * 4
    if profile.needs_proxy:
        sandbox.socket_path = os.path.join(sandbox.private.tmp, SOCKET_NAME)
        local = dict.fromkeys(host for host in profile.hosts or () if _LOCAL_HOST.fullmatch(host))
        words[:2] = f"/tmp/{SOCKET_NAME}", " ".join(local)
    if profile.observer is not None:
        from indusagi.capabilities.sandbox.trace import SOCKET_NAME as TRACE_NAME  # noqa: PLC0415 — only to observe
        from indusagi.capabilities.sandbox.trace import list_calls  # noqa: PLC0415

        sandbox.trace_path = os.path.join(sandbox.private.tmp, TRACE_NAME)
        profile.observer.places = paths.describe()
        words[2:] = f"/tmp/{TRACE_NAME}", ",".join(map(str, list_calls()))
    if any(words):
        launcher = os.path.join(os.path.dirname(__file__), "inside_run.py")
        sandbox.argv += [sys.executable, "-I", "-S", launcher, *words]
    sandbox.argv += argv


def _choose_confinement(profile: ServerProfile, start: tuple[str, ...]) -> Callable[[], None]:
    """Return what restricts the thread that starts `bwrap`, in addition to its namespaces."""
    from indusagi.capabilities.sandbox.landlock_run import leave_keyring, scope_thread  # noqa: PLC0415 — loads ctypes

    if profile.reaches_all:
        return scope_thread if can_scope(start) else leave_keyring
    if os.stat(start[0]).st_mode & stat.S_ISUID:  # it couldn't start with the filter
        return leave_keyring
    from indusagi.capabilities.sandbox.inside_run import filter_sockets  # noqa: PLC0415 — only without a network

    def confine() -> None:
        leave_keyring()
        filter_sockets()

    return confine


class _ServerPaths:
    """The paths a server needs: programs to read, and what its row names."""

    def __init__(self, profile: ServerProfile, home: str, workspace: str | None) -> None:
        self._profile = profile
        self._home = home
        self._workspace = workspace
        self.read: dict[str, None] = {}
        """Resolved, in order."""
        self.write: dict[str, None] = {}
        self.notes: list[str] = []
        self._bubblewrap = ""
        self._handles: list[int] = []
        for texts, into in ((profile.write, self.write), (profile.read, self.read)):
            for path in sorted(map(self._find, texts)):
                self._add(into, path)

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
        real = self._resolve(path)
        if real is not None and os.path.exists(real) and not is_within(self._home, real):
            into[real] = None

    def _resolve(self, path: str) -> str | None:
        """Resolve a path. None if a link leads it out of the workspace, or out of a place the server can write.

        The server, or whoever wrote the project, could have made that link, and so chosen what we mount.
        """
        roots = (*self.write, *(() if self._workspace is None else (self._workspace,)))
        todo, real, links, is_foreign = path.split("/")[::-1], "/", 0, False
        while todo:
            part = todo.pop()
            if part in {"", "."}:
                continue
            step = os.path.dirname(real) if part == ".." else os.path.join(real, part)
            if not os.path.islink(step):
                real = step
                continue
            links += 1
            if links > _MAX_LINKS:
                return None
            is_foreign |= is_within(step, *roots)
            target = os.readlink(step)
            real = "/" if os.path.isabs(target) else real
            todo += target.split("/")[::-1]
        if is_foreign and not is_within(real, *roots):
            self.notes.append(
                f"indus: the sandbox left out {path}: a link in a place the server can write leads it to {real}; to"
                f' allow that, add {real} to "read" or "write" of its "sandbox"'
            )
            return None
        return real

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
        programs = [] if program is None else [program, self._resolve(os.path.abspath(program)) or program]
        for path in (*runner, *programs):
            parent = os.path.dirname(os.path.abspath(path))
            is_bin = os.path.basename(parent) in {"bin", "Scripts", "sandbox"}
            self._add(self.read, parent)
            if is_bin:
                self._add(self.read, os.path.dirname(parent))
        places = find_credential_places(os.environ, self._home)
        secrets = [os.path.realpath(place) for place in places if os.path.exists(place)]
        for text in sorted((*argv[1:], *declared.values())):
            self._add_named(text, folder, secrets)
        git = os.path.join(folder, ".git")
        if self._workspace is not None and os.path.isdir(git) and not is_within(git, *self.write):
            # A new file in it can move hooks and settings elsewhere, and a row that works on a repository names it.
            self._add(self.read, git)

    def _add_named(self, text: str, folder: str, secrets: Sequence[str]) -> None:
        """Add the path that an argument or a variable of the row names, if it's one and holds no credentials."""
        value = os.path.expanduser(text.partition("=")[2] if text.startswith("-") else text)
        path = os.path.join(folder, value)
        if not value or "\0" in value or not os.path.lexists(path):
            return
        if is_within(os.path.realpath(path), *secrets):
            return  # only `read` and `write` of the profile can name these
        if _CODE.fullmatch(os.path.splitext(path)[1]):
            self._add(self.read, path)
            real = self._resolve(path)
            # In a workspace, the server could choose what counts as its project.
            if real is not None and (self._workspace is None or not is_within(real, self._workspace)):
                self._add(self.read, _find_project(real))
        elif os.path.isdir(path) or os.path.isabs(value):
            self._add(self.read if self._profile.is_strict else self.write, path)

    def list_shown(self) -> dict[str, str]:
        """Return the paths to mount, parents first, each with bubblewrap's option."""
        shown = dict.fromkeys(self.read, "--ro-bind") | dict.fromkeys(self.write, "--bind")
        if self._workspace is not None and self._workspace not in self.write:
            shown[self._workspace] = "--ro-bind" if self._profile.is_strict else "--bind"
        return {
            path: shown[path]
            for path in sorted(shown)
            if not is_within(path, "/usr", "/lib", "/bin") or shown[path] == "--bind"
        }

    def pin_with(self, bubblewrap: str, handles: list[int]) -> None:
        """Have `mount` name descriptors, added to `handles`, in place of paths that servers could replace."""
        self._bubblewrap, self._handles = bubblewrap, handles

    def _bind(self, option: str, source: str, target: str, private_home: PrivateHome) -> Sequence[str]:
        """Return bubblewrap's option for one mount.

        Raises:
            OSError: Another server has put a link in its place.
        """
        roots = (*self.write, private_home.path, *(() if self._workspace is None else (self._workspace,)))
        if not is_within(os.path.dirname(source), *roots) or not can_bind_handles(self._bubblewrap):
            return option, source, target
        try:
            handle = os.open(source, os.O_PATH | os.O_CLOEXEC)
        except FileNotFoundError:
            if option.endswith("-try"):
                return ()
            raise
        self._handles.append(handle)
        if os.readlink(f"/proc/self/fd/{handle}") != source:
            raise OSError(errno.ELOOP, "a link took its place", source)
        return f"{option.removesuffix('-try')}-fd", str(handle), target

    def mount(
        self,
        shown: Mapping[str, str],
        protected: Sequence[str],
        hidden: Sequence[str],
        masked: Sequence[str],
        private_home: PrivateHome,
    ) -> Iterator[str]:
        """Yield bubblewrap's options for the paths; later ones win."""
        covers = (self._home, "/tmp", *_list_covers(self._home), *_list_services()[:1])
        temporary = os.path.realpath(gettempdir())  # files of other servers, perhaps in the workspace
        covered = [
            path
            for path in (*hidden, *(() if any(is_within(one, temporary) for one in shown) else (temporary,)))
            if path not in shown
            and (is_within(path, *shown) or not (self._profile.is_strict or is_within(path, *covers)))
        ]
        # A server must not replace the way to a mount point, which bubblewrap would follow at the next start. It can't
        # rename mount points, so the directories on the way become some too.
        mounts = {path: (option, path, path) for path, option in shown.items()}
        for folder in list_folders((*shown, *protected, *covered), (self._home, *shown)):
            root = _find_root(folder, (self._home, *shown))
            if root == self._home:
                mounts[folder] = ("--bind", private_home.path + folder[len(root) :], folder)
            elif shown[root] == "--bind":
                mounts[folder] = ("--bind", folder, folder)
        for path in shown:
            if _find_root(os.path.dirname(path), (self._home, *shown)) == self._home:
                private_home.make_mount_point(parts_below(path, self._home), is_folder=os.path.isdir(path))
        read_only = {path for path, (option, _, _) in mounts.items() if option == "--ro-bind"}
        for path in sorted(mounts):  # parents first
            root = _find_root(os.path.dirname(path), mounts)
            is_there = root in read_only if root else not (self._profile.is_strict or is_within(path, "/dev", *covers))
            if path not in read_only or not is_there:  # each mount takes the start of the server some time
                yield from self._bind(*mounts[path], private_home)
        for path in protected:
            yield from cover_path(path) if path in masked else self._bind("--ro-bind-try", path, path, private_home)
        for path in covered:
            yield from cover_path(path)


def _find_root(path: str, roots: Iterable[str]) -> str:
    """Return the innermost of the directories a path lies in, or an empty string."""
    return max((root for root in roots if is_within(path, root)), key=len, default="")


def _find_project(script: str) -> str:
    """Return the directory of the package a script belongs to, with the packages installed beside it."""
    folder = start = os.path.dirname(script)
    before, modules, _ = script.partition(f"{os.sep}node_modules{os.sep}")
    if modules:
        return before + modules.rstrip(os.sep)
    for _ in range(4):
        if any(os.path.exists(os.path.join(folder, name)) for name in _PROJECT_FILES):
            return folder
        folder = os.path.dirname(folder)
    return start


def _list_covers(home: str) -> list[str]:
    """List the directories that are empty inside: homes of other users, and temporary files of others."""
    found = dict.fromkeys(("/home", "/root", "/Users", "/var/tmp", os.path.realpath(gettempdir())))
    return [path for path in found if os.path.isdir(path) and path != "/" and not is_within(path, "/tmp", "/dev", home)]


def _list_services() -> tuple[str, ...]:
    """List the directory with the sockets of services, if there's one, and what a server needs of it."""
    if not os.path.isdir(_SERVICES) or os.path.islink(_SERVICES):
        return ()
    resolver = os.path.dirname(os.path.realpath("/etc/resolv.conf"))
    needed = [resolver] if is_within(resolver, _SERVICES) and resolver != _SERVICES else []
    return (_SERVICES, *needed, *(os.path.join(_SERVICES, name) for name in _NO_SERVICES))


def _build_environment(profile: ServerProfile, env: Mapping[str, str], declared: Mapping[str, str]) -> dict[str, str]:
    def is_kept(name: str) -> bool:
        if name in declared or name in profile.env:
            return True
        return _STRICT_NAMES.fullmatch(name) is not None if profile.is_strict else _WITHHELD.fullmatch(name) is None

    # Package managers use what they have at once, instead of waiting for the network.
    is_online = profile.reaches_all or profile.hosts or profile.observer is not None
    offline = {} if is_online else {"npm_config_offline": "true", "UV_OFFLINE": "1"}
    named = {name: os.environ[name] for name in profile.env if name in os.environ}
    return {name: value for name, value in {**named, **env}.items() if is_kept(name)} | offline
