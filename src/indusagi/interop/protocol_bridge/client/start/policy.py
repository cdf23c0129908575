"""Start policy: how long a start may take, how many starts compute at once, and when to restart.

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
from collections import deque
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from indusagi.core.backoff import grow_pause
from indusagi.core.json import content_hash
from indusagi.core.records import record
from indusagi.core.secrets import holds_secret, is_secret_name
from indusagi.interop.protocol_bridge.client.start.causes import find_package_manager
from indusagi.interop.protocol_bridge.client.transient import RECOVERIES
from indusagi.interop.protocol_bridge.contract import LATER_START_S, ProtocolFault, ServerConfig, StdioServerConfig

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping

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
        manager = find_package_manager(config.command, config.args)
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
        """Run the block in its turn, or at once if it is or becomes `urgent`.

        Args:
            cpu_demand: Returns the CPU demand of the process tree, if known.
            urgent: Set when a caller waits for this start.
        """
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
        """Record a failure and return the restart delay, or `None` to wait for the next call."""
        rules = self.rules
        reason = None if fault is None else fault.detail.reason
        if reason is not None and RECOVERIES[reason] == "user":
            return None
        if reason == "moved":
            return 0.0  # not a failure: it starts elsewhere
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


# -- environment ------------------------------------------------------------------------------
#
# Each group of names has a use case. Variables that look like secrets aren't inherited (`core.secrets`), except proxy
# addresses: a token reaches a server only if its configuration names it.


_NAMES = frozenset(
    (
        # Every program: the search path, home, temporary files.
        *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "TERM", "TMPDIR", "TEMP", "TMP"),
        # Language and time zone.
        *("LANG", "LANGUAGE", "TZ"),
        # Companies whose proxy or inspecting firewall has a private certificate authority.
        *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"),
        *("NODE_EXTRA_CA_CERTS", "NODE_USE_SYSTEM_CA", "NODE_USE_ENV_PROXY", "GIT_SSL_CAINFO"),
        *("GIT_SSL_CAPATH", "PIP_CERT", "CARGO_HTTP_CAINFO", "DENO_CERT", "DENO_TLS_CA_STORE"),
        *("AWS_CA_BUNDLE", "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", "NIX_SSL_CERT_FILE"),
        *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "FTP_PROXY", "WS_PROXY"),
        # Several versions of a language, installed by a version manager.
        *("NVM_DIR", "NVM_BIN", "FNM_DIR", "FNM_MULTISHELL_PATH", "VOLTA_HOME", "PYENV_ROOT"),
        *("PYENV_VERSION", "ASDF_DIR", "ASDF_DATA_DIR", "MISE_DATA_DIR", "MISE_CONFIG_DIR"),
        *("RBENV_ROOT", "SDKMAN_DIR", "RUSTUP_HOME", "CARGO_HOME", "GOPATH", "GOROOT", "GOBIN"),
        *("GOPROXY", "GONOSUMDB", "GOPRIVATE", "GOFLAGS", "GOCACHE", "GOMODCACHE", "JAVA_HOME"),
        *("DOTNET_ROOT", "BUN_INSTALL", "DENO_DIR", "PNPM_HOME", "COREPACK_HOME", "NODE_PATH"),
        *("VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_DEFAULT_ENV", "JBANG_DIR", "NIX_PATH"),
        # A container engine other than the local default.
        *("DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_CONFIG", "DOCKER_CERT_PATH"),
        *("DOCKER_TLS_VERIFY", "CONTAINER_HOST", "PODMAN_USERNS"),
        # Servers that open windows (browsers, clipboards).
        *("DISPLAY", "WAYLAND_DISPLAY", "XAUTHORITY"),
        *("PLAYWRIGHT_BROWSERS_PATH", "PUPPETEER_EXECUTABLE_PATH", "CHROME_PATH"),
    )
)
"""In upper case, but matched in any case: proxy variables exist in both."""
_PREFIXES = (
    "LC_",  # like LANG
    "XDG_",  # other locations of configuration and caches
    "UV_",  # another package index or cache
    "PIP_",
    "PIPX_",
    "HOMEBREW_",
)
_NPM_SETTINGS = frozenset(
    (
        *("registry", "userconfig", "globalconfig", "cache", "prefix", "proxy", "https_proxy"),
        *("http_proxy", "noproxy", "ca", "cafile", "strict_ssl", "offline", "prefer_offline"),
        *("fetch_retries", "fetch_timeout", "maxsockets", "script_shell", "tmp", "yes"),
    )
)
"""npm reads every setting from the environment; those that hold credentials aren't inherited."""
_NPM = re.compile(r"npm_config_(\w+)", re.IGNORECASE)
_RELEVANT = re.compile(
    r"(NODE|NPM|PYTHON|PIP|UV|JAVA|JDK|GO|CARGO|RUST|DENO|BUN|DOCKER|PODMAN|DOTNET|RUBY|GEM|AWS|AZURE"
    r"|GCP|GOOGLE|KUBE\w*|GITHUB|GH|GITLAB|SLACK|NOTION|LINEAR|JIRA|ATLASSIAN|SENTRY|STRIPE|BRAVE"
    r"|TAVILY|EXA|FIRECRAWL|OPENAI|ANTHROPIC|HF|PG\w*|POSTGRES\w*|MYSQL|REDIS|MONGO\w*|DATABASE"
    r"|SSL|TLS|CA|PROXY|LD|DYLD)(_\w+)?|\w+_(API_KEY|TOKEN|PROXY|CA|CERT|CERTS|URL|HOST|DSN)"
)
"""Names that servers and their runtimes read."""


def is_inherited(name: str, value: str = "") -> bool:
    """Return whether a server inherits a variable that its configuration doesn't declare."""
    upper = name.upper()
    setting = _NPM.fullmatch(name)
    known = (
        upper in _NAMES or upper.startswith(_PREFIXES) or (setting is not None and setting[1].lower() in _NPM_SETTINGS)
    )
    if not known or (upper not in _NAMES and is_secret_name(name)):
        return False
    # Behind a proxy with a password, a server without it reaches nothing.
    return upper.endswith("_PROXY") or not holds_secret(value)


def child_environment(ours: Mapping[str, str], declared: Mapping[str, str]) -> dict[str, str]:
    """Build a server's environment from inherited and declared variables."""
    inherited = {name: value for name, value in ours.items() if is_inherited(name, value)}
    return {**inherited, **declared}


def find_withheld(ours: Mapping[str, str], declared: Mapping[str, str], output: str = "") -> list[str]:
    """Return the variables that a server didn't inherit and that look relevant to it.

    Variables mentioned in the server's `output` come first, as the most likely cause of a failure.
    """
    environment = child_environment(ours, declared)
    withheld = sorted(name for name in ours if name not in environment)
    mentioned = [name for name in withheld if re.search(rf"\b{re.escape(name)}\b", output)]
    likely = [name for name in withheld if _RELEVANT.fullmatch(name) and name not in mentioned]
    return [*(name for name in mentioned if len(name) > 1), *likely]
