"""Stdio client transport: frames are lines of JSON on the standard streams of a server process.

https://modelcontextprotocol.io/specification/2025-06-18/basic/transports#stdio. The process inherits the variables
allowed by `is_inherited`. Its output is split into lines in linear time, with a size limit. A ring buffer drains its
standard error, which neither blocks the process nor reaches the terminal. A process that stops reading its input is
given up after the idle limit of a call. `close` always ends the process tree and reaps the process; it ends a package
manager that hasn't started its server yet gently.
"""

from __future__ import annotations

import asyncio
import collections
import math
import os
import re
import signal
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Literal

from indusagi.capabilities.ports import SandboxMissing
from indusagi.core.process.child import ChildProcess
from indusagi.core.secrets import holds_secret, is_secret_name
from indusagi.core.time import TimedLine, now_ms
from indusagi.interop.protocol_bridge.client.sandbox import RunningSandbox
from indusagi.interop.protocol_bridge.client.start import StartAllowance, find_launcher, reveal_config
from indusagi.interop.protocol_bridge.contract import CLUSTER_PREFIX, FaultDetail, FaultReason, ProtocolFault
from indusagi.interop.protocol_bridge.rpc.transport import BaseTransport, decode_frame, encode_frame

if TYPE_CHECKING:
    from indusagi.core.json import JsonObject
    from indusagi.core.process.tree import Activity, CpuDemand
    from indusagi.interop.protocol_bridge.contract import ServerLimits, StdioServerConfig

_SETTLE_S = 0.05
"""How long to wait for the exit code and the last lines after the output ends."""
_SHOWN_LINES = 20
_TURN_FRAMES = 16
_TURN_BYTES = 32 * 1024
"""How much output of one server to handle per event loop iteration.

A server that floods its output fills a 64 KiB pipe between two iterations. Handling those hundreds of notifications
takes milliseconds, during which every other server would wait.
"""
_MAX_INVALID_LINES = 5
"""How many non-protocol lines of standard output to keep."""
_GENTLE_IDLE_S = 2.0
"""How long a package manager may pause while it cleans up at its end."""


async def start_server_process(
    config: StdioServerConfig, on_refused: Callable[[], None] = lambda: None
) -> StdioTransport:
    """Start a configured server process, or raise `ProtocolFault` with the reason.

    Calls `on_refused` after each host that its sandbox refuses for the first time.
    """
    config = await reveal_config(config)
    downloads = find_launcher(config) is not None
    transport = StdioTransport(config.id, config.limits, downloads=downloads)
    try:
        argv = [config.command, *config.args]
        env = child_environment(os.environ, config.env)
        if config.sandbox is None:
            await transport.child.start(argv, env, config.cwd, gentle=downloads)
        else:

            def report(line: str) -> None:
                transport.log_line(line)
                on_refused()

            sandbox = transport.sandbox = RunningSandbox(config.sandbox, config.id, report, transport.end_for_excess)
            await sandbox.start(transport.child, argv, env, config.env, config.cwd, gentle=downloads)
    except SandboxMissing as exc:
        detail = FaultDetail(server=config.id, reason="refused")
        raise ProtocolFault("spawn_failed", f"server {config.id!r}: {exc}", exc, detail=detail) from exc
    except (OSError, ValueError) as exc:
        reason: FaultReason | None = None
        if isinstance(exc, ValueError):
            message, reason = f"the command line cannot be used: {exc}", "malformed"
        elif config.cwd is not None and exc.filename == config.cwd:
            message, reason = f"its working directory {config.cwd!r}: {exc.strerror}", "not_found"
        elif isinstance(exc, FileNotFoundError) and config.command.startswith(CLUSTER_PREFIX):
            message = "it runs on another node of a cluster: only a gateway with --cluster reaches it"
            reason = "not_found"
        elif isinstance(exc, FileNotFoundError):
            message = f"the command {config.command!r} was not found: check its spelling and PATH"
            reason = "not_found"
        elif isinstance(exc, PermissionError):
            message = f"the command {config.command!r} may not be executed: {exc.strerror}"
            reason = "refused"
        else:
            message = f"the command {config.command!r} could not be started: {exc.strerror}"
        detail = FaultDetail(server=config.id, reason=reason)
        raise ProtocolFault("spawn_failed", f"server {config.id!r}: {message}", exc, detail=detail) from exc
    return transport


class StdioTransport(BaseTransport):
    """Transport over the standard streams of one process."""

    def __init__(self, server: str, limits: ServerLimits, *, downloads: bool = False) -> None:
        self.child = ChildProcess(self)
        self.sandbox: RunningSandbox | None = None
        super().__init__(self.child.writable)
        self._server = server
        self._limits = limits
        self._parts: list[bytes] = []
        """Beginning of an unfinished line."""
        self._parts_size = 0
        self._unread: collections.deque[bytes] = collections.deque()
        """Output not yet split into lines."""
        self._unread_from = 0
        """Start of the next line in the first chunk of it."""
        self._next_turn: asyncio.Handle | None = None
        self._outgoing: list[bytes] = []
        self._stderr: collections.deque[tuple[int, bytes]] = collections.deque(maxlen=limits.stderr_lines)
        self._stderr_rest = b""
        self._may_unpack = downloads
        """Whether a package manager may still be unpacking, because its server hasn't written anything."""
        self.bytes_received = 0
        """Bytes of standard output and error."""
        self._bytes_sent = 0
        self._output_at_close: tuple[tuple[str, ...], tuple[str, ...]] | None = None
        """Standard error and invalid lines at the time the process was asked to end."""
        self._invalid_lines: list[bytes] = []
        self._stall: asyncio.TimerHandle | None = None

    # -- sending ----------------------------------------------------------------------------

    def send(self, frame: JsonObject) -> None:
        """Write one line, batched with the others of this event loop iteration.

        Each write wakes the other process, which dominates the cost if there are many callers.
        """
        if not self._outgoing:
            asyncio.get_running_loop().call_soon(self._flush)
        self._outgoing.append(encode_frame(frame))

    def _flush(self) -> None:
        if self._outgoing:
            self._outgoing.append(b"")
            data = b"\n".join(self._outgoing)
            self._outgoing.clear()
            unwritten = self.child.write(data)
            self._bytes_sent += len(data)
            if self._stall is None and unwritten:
                self._watch_stall(asyncio.get_running_loop().time())

    def _watch_stall(self, since: float) -> None:
        """After the idle limit, check whether the process has read anything.

        A process that neither reads nor writes for that long is given up. One that writes may be busy with a call, and
        gets the total limit of a call.
        """
        loop = asyncio.get_running_loop()
        read, received = self._bytes_sent - self.child.unwritten, self.bytes_received

        def check() -> None:
            self._stall = None
            unwritten = self.child.unwritten
            if self._end is not None or not unwritten:
                return
            waited_s = loop.time() - since
            if self._bytes_sent - unwritten > read:
                self._watch_stall(loop.time())
            elif self.bytes_received == received or waited_s >= self._limits.call_hard_s:
                self._finish_process(f"did not read its standard input for {waited_s:.3g} s", "closed")
            else:
                self._watch_stall(since)

        self._stall = loop.call_later(self._limits.call_idle_s, check)

    # -- events of the process --------------------------------------------------------------

    def stdout_received(self, data: bytes) -> None:
        """Split standard output into lines, a limited number per event loop iteration."""
        self.bytes_received += len(data)
        self._unread.append(data)
        if self._next_turn is None:
            self._deliver_lines(_TURN_FRAMES, _TURN_BYTES)
            if self._unread:
                # Pause the pipe until everything read so far is delivered.
                self.child.pause_output()
                self._next_turn = asyncio.get_running_loop().call_soon(self._take_turn)

    def _take_turn(self) -> None:
        self._next_turn = None
        self._deliver_lines(_TURN_FRAMES, _TURN_BYTES)
        if self._unread:
            self._next_turn = asyncio.get_running_loop().call_soon(self._take_turn)
        else:
            self.child.resume_output()

    def _deliver_lines(self, frames: float, size: float) -> None:
        """Deliver lines up to a number of frames or bytes, or until everything read is delivered."""
        limit = self._limits.frame_bytes
        while self._unread and self._end is None and frames > 0 and size > 0:
            data, start = self._unread[0], self._unread_from
            newline = data.find(b"\n", start)
            if newline < 0:
                self._unread.popleft()
                self._unread_from = 0
                if start < len(data):
                    self._parts.append(data[start:])
                    self._parts_size += len(data) - start
                if self._parts_size > limit:
                    self._refuse_large_frame()
                continue
            line = data[start:newline]
            self._unread_from = newline + 1
            if self._parts:
                line = b"".join((*self._parts, line))
                self._parts.clear()
                self._parts_size = 0
            frames -= 1
            size -= len(line)
            if len(line) > limit:
                self._refuse_large_frame()
            elif line and not line.isspace():
                self._may_unpack = False
                self._on_frame(line)
        if self._end is not None:
            self._unread.clear()

    def _refuse_large_frame(self) -> None:
        self._parts.clear()
        self._finish_process(f"sent a message of more than {self._limits.frame_bytes:,} bytes", "frame_too_large")
        self.child.stop_reading()

    def stderr_received(self, data: bytes) -> None:
        """Keep the last lines of standard error."""
        self.bytes_received += len(data)
        *lines, rest = (self._stderr_rest + data).split(b"\n")
        cap = self._limits.stderr_line_bytes
        at_ms = now_ms()
        self._stderr.extend((at_ms, line[:cap]) for line in lines[-self._limits.stderr_lines :] if line.strip())
        self._stderr_rest = rest[:cap]

    def log_line(self, line: str) -> None:
        """Add a line of ours to the server's log."""
        self._stderr.append((now_ms(), line.encode()))

    def end_for_excess(self, message: str) -> None:
        """Declare the end of a process that was killed because it exceeded a limit."""
        self._finish_process(message, "exited")

    def state_changed(self) -> None:
        """Declare the end once everything is known, or after a moment if a stream stays open."""
        child = self.child
        is_ending = child.exited.is_set() or not child.output_open or not child.input_open
        if self._end is not None or not is_ending:
            return  # a server may close only its standard error
        if child.exited.is_set() and not child.output_open and not child.errors_open:
            self._declare_exit()
        else:
            asyncio.get_running_loop().call_later(_SETTLE_S, self._declare_exit)

    # -- observations -----------------------------------------------------------------------

    def keep_invalid_line(self, line: bytes) -> None:
        """Keep a non-protocol line of standard output, up to a limit."""
        if len(self._invalid_lines) < _MAX_INVALID_LINES:
            self._invalid_lines.append(line[: self._limits.stderr_line_bytes])

    def read_invalid_lines(self) -> tuple[str, ...]:
        """Return the first non-protocol lines of standard output, or else the unfinished last line."""
        if self._output_at_close is not None:
            return self._output_at_close[1]
        cap = self._limits.stderr_line_bytes
        return tuple(line[:cap].decode("utf-8", "replace") for line in self._invalid_lines or self._parts[:1])

    @property
    def logged_ms(self) -> int:
        """When the last line of standard error arrived, in milliseconds since 1970; 0 if there's none."""
        return self._stderr[-1][0] if self._stderr else 0

    def read_stderr(self) -> tuple[str, ...]:
        """Return the last lines of standard error, preceded by the cause if it's older."""
        if self._output_at_close is not None:
            return self._output_at_close[0]
        rest = [(now_ms(), self._stderr_rest)] if self._stderr_rest else []
        lines = [TimedLine(line.decode("utf-8", "replace"), at_ms) for at_ms, line in (*self._stderr, *rest)]
        tail = lines[-_SHOWN_LINES:]
        from indusagi.interop.protocol_bridge.client.causes import find_cause  # noqa: PLC0415 — its patterns compile on a fault only

        if len(lines) > _SHOWN_LINES and (cause := find_cause(lines)) != find_cause(tail):
            tail = [cause, *tail[1:]]
        return tuple(tail)

    async def activity(self) -> Activity | None:
        """Return the activity of the process tree, if the system reports it."""
        return await self.child.activity()

    async def cpu_demand(self) -> CpuDemand | None:
        """Return the CPU demand of the process tree, if known."""
        return await self.child.cpu_demand()

    # -- the end ----------------------------------------------------------------------------

    def _declare_exit(self) -> None:
        if self._end is not None:
            return
        # A process may answer and exit at once; the answer in the pipe counts.
        self.child.read_rest()
        self._deliver_lines(math.inf, math.inf)
        self._deliver_last_line()
        code = self.child.exit_code
        if code is None:
            self._finish_process("stopped reading" if self.child.output_open else "closed its output", "closed")
        elif code < 0:
            try:
                name = signal.Signals(-code).name
            except ValueError:
                name = f"signal {-code}"
            self._finish_process(f"was ended by {name}", "exited")
        else:
            self._finish_process(f"exited with code {code}", "exited")

    def _deliver_last_line(self) -> None:
        """Deliver a complete last message that lacks a newline."""
        line = b"".join(self._parts)
        with suppress(ValueError, RecursionError):
            if not isinstance(decode_frame(line), dict):
                return
            self._parts.clear()
            self.deliver(line)

    def _finish_process(self, message: str, reason: FaultReason) -> None:
        code = self.child.exit_code
        detail = FaultDetail(
            server=self._server,
            reason=reason,
            exit_code=code if code is not None and code >= 0 else None,
            signal=-code if code is not None and code < 0 else None,
            stderr=self.read_stderr(),
            stdout=self.read_invalid_lines(),
        )
        self.finish(message, detail)

    async def close(self) -> None:
        """End the process and its tree; safe to call twice and from any task.

        A cancelled caller still waits for the end.
        """
        self._flush()
        if self._output_at_close is None:
            self._output_at_close = self.read_stderr(), self.read_invalid_lines()
        if self._stall is not None:
            self._stall.cancel()
        try:
            if self._may_unpack:
                await self.child.end(max(self._limits.close_s, _GENTLE_IDLE_S), gentle=True)
            else:  # a process that ended the connection itself gets a quarter of the time
                await self.child.end(self._limits.close_s if self._end is None else self._limits.close_s / 4)
        finally:
            if self.sandbox is not None:
                await self.sandbox.aclose()


# -- the watch of a start ---------------------------------------------------------------------

_WINDOW_S = 5.0
"""When to sample the process tree before the deadline, and by how much to extend it."""
_SAMPLE_TIMEOUT_S = 2.0
"""Time limit for sampling the process list."""


class StartTimeout(TimeoutError):
    """A start took longer than its limit."""

    def __init__(self, waited_s: float, *, patient_next: bool) -> None:
        hint = "; the next start is given more time" if patient_next else ""
        super().__init__(f"no answer within {waited_s:g} s{hint}")
        self.waited_s = waited_s


class StartWatch:
    """Watches one start. `process` is set once it exists, and again for a second attempt."""

    def __init__(self, allowance: StartAllowance, report: Callable[[Literal["slow_start", "refused"]], None]) -> None:
        self.allowance = allowance
        self.is_slow = False
        """Whether the start takes longer than `allowance.slow_s`."""
        self.process: StdioTransport | None = None
        self.report = report

    @asynccontextmanager
    async def limit(self) -> AsyncGenerator[None]:
        """Limit the block to the allowance; raise `StartTimeout` if it takes longer."""
        loop = asyncio.get_running_loop()
        started_at = loop.time()
        timeout = asyncio.timeout(self.allowance.limit_s)
        try:
            async with timeout:
                # Owned by this block: cancelled and awaited below.
                watcher = loop.create_task(self._watch(timeout, started_at))
                try:
                    yield
                finally:
                    watcher.cancel()
                    await asyncio.wait({watcher})
        except TimeoutError:
            if not timeout.expired():
                raise  # a network timeout
            waited_s = round((timeout.when() or loop.time()) - started_at, 1)
            raise StartTimeout(waited_s, patient_next=self.allowance.patient_next) from None

    async def _watch(self, deadline: asyncio.Timeout, started_at: float) -> None:
        loop = asyncio.get_running_loop()
        slow_s, cap_at = self.allowance.slow_s, started_at + self.allowance.cap_s
        if slow_s < self.allowance.limit_s:
            await asyncio.sleep(slow_s)
            self.is_slow = True
            self.report("slow_start")
        window_s = min(_WINDOW_S, self.allowance.limit_s / 4)
        while (due := deadline.when()) is not None and due < cap_at:
            await asyncio.sleep(max(0.0, due - window_s - loop.time()))
            size_before, before = await self._sample()
            # A busy machine answers late: keep the time between the samples, and let the deadline wait for the result.
            second_at = max(due - window_s / 4, loop.time() + window_s / 2)
            deadline.reschedule(max(due, second_at + _SAMPLE_TIMEOUT_S))
            await asyncio.sleep(max(0.0, second_at - loop.time()))
            size, activity = await self._sample()
            if before is None or activity is None:
                is_active = before is not activity
            else:
                is_active = activity.shows_life_since(before)
            if size == size_before and not is_active:
                deadline.reschedule(due)
                return
            deadline.reschedule(min(cap_at, max(due, loop.time()) + window_s))

    async def _sample(self) -> tuple[int, Activity | None]:
        process = self.process
        if process is None:
            return 0, None
        activity = None
        with suppress(TimeoutError):
            async with asyncio.timeout(_SAMPLE_TIMEOUT_S):
                activity = await process.activity()
        return process.bytes_received, activity


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
