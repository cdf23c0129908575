"""Rules for starts of servers: how long one may take, how many compute at once, when to restart.

A command that has never been up with its configuration gets a minute, because it may have to download a program. After
that it gets ten seconds. Both limits grow while the process tree computes or moves data. A configured limit
(`startup_timeout_sec`) always wins. `Supervision` sets the rules for restarting failed servers; its functions are pure
and take the time as a parameter.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import shlex
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar

from indusagi.core.json import content_hash
from indusagi.core.records import record
from indusagi.core.secrets import find_literal_host, find_references
from indusagi.core.tasks import grow_pause
from indusagi.interop.protocol_bridge.contract import (
    LATER_START_S,
    RECOVERIES,
    FaultDetail,
    ProtocolFault,
    ServerConfig,
    StdioServerConfig,
)

C = TypeVar("C", bound=ServerConfig)

if TYPE_CHECKING:
    from indusagi.core.process.tree import CpuDemand


@record
class StartAllowance:
    """How long one start may take."""

    limit_s: float
    cap_s: float
    """Extended limit while the process tree is active; equal to `limit_s` for no extension."""
    slow_s: float
    """A start that takes longer is reported."""
    first: bool = False
    package_manager: str | None = None
    patient_next: bool = False
    """Whether the next start gets more time if this one takes too long."""


@record(kw_only=True)
class StartPolicy:
    """Limits for starts. Pure: whether a configuration has been up before is a parameter."""

    first_s: float = 60.0
    later_s: float = LATER_START_S
    cap_s: float = 120.0
    """For any active command."""
    package_manager_cap_s: float = 300.0
    slow_s: float = 1.0
    sign_in_s: float = 300.0
    """For a remote server whose start may prompt the user to sign in."""

    def allow(self, config: ServerConfig, *, seen_up: bool) -> StartAllowance:
        """Return how long a start of this configuration may take."""
        if not isinstance(config, StdioServerConfig):
            may_ask = config.auth is not None and config.auth.prompt is not None
            limit_s = self.sign_in_s if may_ask and config.limits.connect_s is None else config.limits.start_s
            return StartAllowance(limit_s, limit_s, self.slow_s)
        manager = find_launcher(config)
        name = None if manager is None else manager.name
        stated_s = config.limits.connect_s
        if stated_s is not None:
            return StartAllowance(stated_s, stated_s, self.slow_s, not seen_up, name)
        cap_s = self.cap_s if manager is None else self.package_manager_cap_s
        # A container engine works outside of the process tree.
        is_outside = manager is not None and manager.outside
        if seen_up:
            limit_s = min(self.first_s if is_outside else self.later_s, cap_s)
            return StartAllowance(limit_s, cap_s, self.slow_s, package_manager=name, patient_next=True)
        limit_s = cap_s if is_outside else min(self.first_s, cap_s)
        return StartAllowance(limit_s, cap_s, self.slow_s, first=True, package_manager=name)


def start_digest(config: StdioServerConfig) -> str:
    """Hash the parameters of a process; this is the key for everything learned from its starts."""
    return content_hash([config.command, [*config.args], {**config.env}, config.cwd])


class StartHistory:
    """Configurations that have been up before. In memory; a product fills it from its store."""

    def __init__(self) -> None:
        self._up: set[str] = set()

    def was_up(self, config: ServerConfig) -> bool:
        """Return whether a server has been up with this configuration."""
        return not isinstance(config, StdioServerConfig) or start_digest(config) in self._up

    def record_up(self, config: ServerConfig) -> None:
        """Record that it came up, so that its next start gets the short limit."""
        if isinstance(config, StdioServerConfig):
            self._up.add(start_digest(config))

    def record_timeout(self, config: ServerConfig) -> None:
        """Forget that it was up: its program may need another download."""
        if isinstance(config, StdioServerConfig):
            self._up.discard(start_digest(config))


PROCESS_HISTORY = StartHistory()
"""Default history, shared by the whole process."""


_SAMPLE_INTERVAL_S = 0.2
_BUSY = 0.25
"""Share of a core below which a process tree counts as waiting for something else."""
MAX_TURN_CPU_S = 10.0
"""CPU time after which a start no longer holds up others."""
_UNKNOWN_CPU_S = 2.0
"""How long a start counts as computing if its CPU demand is unknown."""


def default_turns() -> int:
    """Return how many starts may compute at once on this machine."""
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # pragma: no cover — macOS
        cores = os.cpu_count() or 1
    return max(2, 2 * cores)


class StartPacer:
    """Limits how many starts compute at once, in first-come order.

    A start computes while its processes use a core or wait for one, so other busy programs slow it down without making
    it look idle. A start that waits for something else makes room, and counts again when it resumes computing.
    """

    def __init__(self, turns: int | None = None) -> None:
        self._turns = turns or default_turns()
        self._computing: set[object] = set()
        self._queue: deque[tuple[object, asyncio.Future[None]]] = deque()

    @asynccontextmanager
    async def turn(
        self, cpu_demand: Callable[[], Awaitable[CpuDemand | None]], urgent: asyncio.Event
    ) -> AsyncGenerator[None]:
        """Run the block in its turn, or at once if it is or becomes `urgent`, because a caller waits for this start."""
        start, watching = object(), None
        try:
            await self._wait(start, urgent)
            # Owned by this block: cancelled and awaited below.
            watching = asyncio.get_running_loop().create_task(self._watch(start, cpu_demand))
            yield
        finally:
            self._count(start, is_computing=False)
            if watching is not None:
                watching.cancel()
                await asyncio.wait({watching})

    async def _wait(self, start: object, urgent: asyncio.Event) -> None:
        """Wait for room or urgency, then count the start as computing."""
        loop = asyncio.get_running_loop()
        admitted: asyncio.Future[None] = loop.create_future()
        place = (start, admitted)
        self._queue.append(place)
        self._admit()
        hurrying = loop.create_task(urgent.wait())
        try:
            await asyncio.wait({admitted, hurrying}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            hurrying.cancel()
            if place in self._queue:
                self._queue.remove(place)
        self._computing.add(start)

    def _admit(self) -> None:
        while self._queue and len(self._computing) < self._turns:
            start, admitted = self._queue.popleft()
            self._computing.add(start)
            admitted.set_result(None)

    def _count(self, start: object, *, is_computing: bool) -> None:
        if is_computing:
            self._computing.add(start)
        else:
            self._computing.discard(start)
            self._admit()

    async def _watch(self, start: object, cpu_demand: Callable[[], Awaitable[CpuDemand | None]]) -> None:
        """Track whether a start computes, until it has used its share."""
        now = asyncio.get_running_loop().time
        started_at, before = now(), None
        while before is None or before.used_s < MAX_TURN_CPU_S:
            sampled_at = now()
            await asyncio.sleep(_SAMPLE_INTERVAL_S)
            demand = await cpu_demand()
            if demand is None:
                is_computing = now() - started_at < _UNKNOWN_CPU_S
            else:
                is_busy = demand.grown_since(before) >= _BUSY * (now() - sampled_at)
                is_computing = is_busy or demand.is_runnable
            before = demand or before
            self._count(start, is_computing=is_computing)
        self._count(start, is_computing=False)


@record(kw_only=True)
class Supervision:
    """Restart rules: backoff with jitter, and a circuit breaker."""

    first_s: float = 1.0
    factor: float = 1.6
    jitter: float = 0.2
    longest_s: float = 60.0
    failures: int = 5
    """Failed starts within `window_s` before the circuit opens."""
    window_s: float = 60.0
    open_s: float = 60.0
    """How long the circuit stays open; doubles each time, up to `open_longest_s`."""
    open_longest_s: float = 600.0
    healthy_s: float = 120.0
    """Uptime after which a server's record is cleared."""


_SECRET_LONGEST_S = 15.0
"""Longest time between two looks for a secret that can't be read."""


@dataclass(slots=True)
class RestartRecord:
    """The failures of one server so far."""

    rules: Supervision
    starts: list[float] = field(default_factory=list[float])
    """Times of the failures within the window."""
    in_a_row: int = 0
    opened: int = 0
    """How many times the circuit has opened."""

    def forget(self) -> None:
        """Clear the record."""
        self.starts.clear()
        self.in_a_row = 0
        self.opened = 0

    def delay(self, fault: ProtocolFault | None, up_s: float, now: float) -> float | None:
        """Record a failure and return the restart delay, or `None` if only a change by the user can help."""
        rules = self.rules
        reason = None if fault is None else fault.detail.reason
        if reason is not None and RECOVERIES[reason] == "user":
            return None
        if reason == "moved":
            return 0.0  # not a failure: it starts elsewhere
        if reason == "secret":  # not the server's failure: it waits for the user to unlock or store one
            self.in_a_row += 1
            return grow_pause(rules.first_s, rules.factor, self.in_a_row - 1, _SECRET_LONGEST_S)
        if up_s >= rules.healthy_s:
            self.forget()
        self.starts = [time for time in self.starts if now - time < rules.window_s]
        self.starts.append(now)
        self.in_a_row += 1
        if len(self.starts) >= rules.failures:
            self.starts.clear()
            self.opened += 1
            wait_s = grow_pause(rules.open_s, 2.0, self.opened - 1, rules.open_longest_s)
        else:
            wait_s = grow_pause(rules.first_s, rules.factor, self.in_a_row - 1, rules.longest_s)
            wait_s *= 1 + random.uniform(-rules.jitter, rules.jitter)
        retry_after_s = fault.detail.retry_after_s if fault is not None else None
        return max(wait_s, retry_after_s or 0.0)


async def reveal_config(config: C) -> C:
    """Return a configuration with its references to secrets replaced; `ProtocolFault` if one can't be read.

    Only a start uses it: texts that are shown, logged, compared or stored have the references.
    """
    is_process = isinstance(config, StdioServerConfig)
    names = ("args", "env") if is_process else ("url", "headers", "proxy")
    values = {name: getattr(config, name) for name in names}
    if not any(find_references(values)):
        return config
    from indusagi.interop.auth.secrets import SecretFault, reveal_value  # noqa: PLC0415 — for such rows alone

    problem = "a secret has characters that its url can't hold: percent-encode it"
    try:
        revealed = replace(config, **await reveal_value(values))
        if isinstance(revealed, StdioServerConfig) or isinstance(config, StdioServerConfig):
            return revealed
        if find_literal_host(revealed.url) == find_literal_host(config.url):
            return revealed
    except SecretFault as exc:
        problem = str(exc)
    detail = FaultDetail(server=config.id, reason="secret")
    raise ProtocolFault(
        "spawn_failed" if is_process else "transport", f"server {config.id!r}: {problem}", detail=detail
    )


# -- package managers -------------------------------------------------------------------------
#
# Such a command takes minutes if its cache is cold, and killing it while it unpacks would damage a cache that other
# programs share. The search looks behind shells, interpreters and wrappers, too, whose options it doesn't know: a wrong
# result only changes a deadline.


_ALWAYS = frozenset({"npx", "pnpx", "bunx", "uvx", "dnx", "jbang", "nix-shell"})
_SUBCOMMANDS: Mapping[str, frozenset[str]] = {
    "npm": frozenset({"exec", "x", "init", "create", "run", "run-script", "start"}),
    "pnpm": frozenset({"dlx", "exec", "run", "create"}),
    "yarn": frozenset({"dlx", "exec", "run", "create"}),
    "bun": frozenset({"x", "run"}),
    "uv": frozenset({"run", "tool", "x"}),
    "pipx": frozenset({"run"}),
    "deno": frozenset({"run", "x", "task", "serve"}),
    "docker": frozenset({"run", "compose", "container"}),
    "podman": frozenset({"run", "compose", "container"}),
    "nerdctl": frozenset({"run", "compose", "container"}),
    "finch": frozenset({"run", "compose", "container"}),
    "go": frozenset({"run"}),
    "cargo": frozenset({"run", "install", "binstall"}),
    "dotnet": frozenset({"run", "tool", "dnx"}),
    "nix": frozenset({"run", "shell", "develop"}),
    "pixi": frozenset({"run", "exec", "x"}),
    "conda": frozenset({"run"}),
    "mamba": frozenset({"run"}),
    "micromamba": frozenset({"run"}),
    "poetry": frozenset({"run"}),
    "pdm": frozenset({"run"}),
    "hatch": frozenset({"run"}),
    "rye": frozenset({"run"}),
}
_CONTAINERS = frozenset({"docker", "podman", "nerdctl", "finch"})
_INTERPRETERS = re.compile(r"(ba|z|da|k|a|fi)?sh|busybox|cmd|powershell|pwsh|(python|pypy)[\d.]*|node|nodejs")
"""Programs whose next word is the command, a module or a script."""
_WRAPPERS = frozenset(
    (
        *("env", "nice", "ionice", "nohup", "time", "timeout", "stdbuf", "setsid", "sudo", "exec"),
        *("command", "xvfb-run", "dbus-run-session", "mise", "asdf", "rtx", "volta", "fnm", "nvm"),
        *("corepack", "direnv", "doppler", "op", "dotenv", "dotenvx", "infisical", "aws-vault"),
        *("flatpak-spawn", "wsl", "systemd-run", "proxychains4", "firejail", "bwrap", "tini"),
    )
)
"""Programs that run the command somewhere in their arguments."""
_EXTENSIONS = re.compile(r"\.(cmd|exe|bat|ps1|com)$", re.IGNORECASE)
_NO_PROGRAM = re.compile(r"-.*|/[a-zA-Z]|[A-Za-z_]\w*=.*", re.DOTALL)
"""An option, also of `cmd`, or an assignment."""
_SEPARATORS = frozenset({";", "&&", "||", "|", "&", "(", ")", "\n"})
_NODE_SCRIPTS: Mapping[str, str] = {"npx-cli.js": "npx", "npm-cli.js": "npm", "yarn.js": "yarn"}


@record
class PackageManager:
    """A command that may have to download its program first."""

    name: str
    """Its common name: `npx`, `uvx`, `docker`."""
    outside: bool = False
    """Whether another process (a container engine) does the download, so that the command's own tree may look idle."""


def find_package_manager(command: str, args: Sequence[str] = ()) -> PackageManager | None:
    """Return the package manager that a command line runs, if any."""
    words = [command, *(word for arg in args for word in _split_line(arg))]
    is_wrapped = is_over = False
    for index, word in enumerate(words):
        name = _program(word)
        if word in _SEPARATORS:
            is_wrapped = is_over = False
        elif is_over or _NO_PROGRAM.fullmatch(word):
            continue
        elif name in _ALWAYS:
            return PackageManager(name)
        elif name in _SUBCOMMANDS:
            # Options, possibly with values, may precede the subcommand. `yarn server` and `deno server.ts` run, too.
            rest = words[index + 1 :]
            if not _SUBCOMMANDS[name].isdisjoint(rest) or (name in {"yarn", "deno"} and rest):
                return PackageManager(name, name in _CONTAINERS)
            is_over = True
        elif name in _WRAPPERS:
            is_wrapped = True
        elif not _INTERPRETERS.fullmatch(name):
            is_over = not is_wrapped
    return None


def find_launcher(config: StdioServerConfig) -> PackageManager | None:
    """Return the package manager, or the engine of the container, that starts a server, if any."""
    container = None if config.sandbox is None else config.sandbox.container
    if container is not None:
        return PackageManager(container.engine, outside=True)
    return find_package_manager(config.command, config.args)


def _split_line(arg: str) -> Sequence[str]:
    """Split an argument that's a shell command line."""
    if not any(map(str.isspace, arg)):
        return [arg]
    try:
        lexer = shlex.shlex(arg, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        return list(lexer)
    except ValueError:  # an open quote
        return arg.split()


def _program(word: str) -> str:
    """Return a program's common name: lower case, without directory and extension."""
    name = re.split(r"[\\/]", word.rstrip("\\/"))[-1].lower()
    return _NODE_SCRIPTS.get(name) or _EXTENSIONS.sub("", name)
