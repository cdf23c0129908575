"""The sandbox around one server process: started with it, and removed after its end."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from anyio import CancelScope, to_thread

from indusagi.capabilities.sandbox.behaviour import RefusedUse, find_blocked_path
from indusagi.capabilities.sandbox.bubblewrap import is_bubblewrap_helper
from indusagi.core.process.tree import signal_group
from indusagi.core.tasks import BackgroundTask, run_shielded

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from indusagi.capabilities.sandbox.egress import EgressProxy
    from indusagi.capabilities.sandbox.profile import ServerProfile
    from indusagi.capabilities.sandbox.server import ServerSandbox
    from indusagi.capabilities.sandbox.usage import UsageWatch
    from indusagi.core.process.child import ChildProcess

_MAX_PATHS = 100
_CHECK_S = 0.5
"""How often to check whether the server is within its limits."""


class RunningSandbox:
    """The sandbox of one server process.

    Args:
        profile: What the server may touch.
        server: Its name, which its home is named after.
        report: Receives a line for the server's log when it's kept from a path or a host.
        end: Receives the reason when the server was killed, because it exceeded a limit.
    """

    def __init__(
        self, profile: ServerProfile, server: str, report: Callable[[str], None], end: Callable[[str], None]
    ) -> None:
        self._profile = profile
        self._server = server
        self._report = report
        self._end = end
        self._watcher = BackgroundTask("watch the limits of a server")
        self._sandbox: ServerSandbox | None = None
        self._proxy: EgressProxy | None = None
        """Its way to the hosts of the profile, if it names some."""
        self._paths: dict[RefusedUse, None] = {}

    @property
    def refusals(self) -> Sequence[RefusedUse]:
        """The hosts and paths it was refused, in order."""
        hosts = () if self._proxy is None else self._proxy.blocked
        return (*(RefusedUse(host, "hosts") for host in hosts), *self._paths)

    async def find_blocked_path(self, text: str, arguments: str) -> RefusedUse | None:
        """Find a path of this sandbox that the error of a call is about.

        It counts as refused unless the arguments of the call name it: then it's the caller that wanted it.
        """
        if self._profile.container is not None:
            return None
        lines = [*text.splitlines(), f"{text} {arguments}"]  # some errors don't say which path
        find = partial(find_blocked_path, lines, os.environ, is_strict=self._profile.is_strict)
        used = await to_thread.run_sync(find)
        is_own = used is not None and used.target.removeprefix("~") not in arguments
        if used is not None and is_own and used not in self._paths and len(self._paths) < _MAX_PATHS:
            self._paths[used] = None
            self._report(f"indus: the sandbox refused {used}")
        return used

    async def start(
        self,
        child: ChildProcess,
        argv: Sequence[str],
        env: Mapping[str, str],
        declared: Mapping[str, str],
        cwd: str | None,
        *,
        gentle: bool,
    ) -> None:
        """Start the server in it; on failure nothing of it is left.

        Raises:
            SandboxMissing: This machine can't hold the server to its profile.
            OSError: It can't be started.
            ValueError: `argv` or `env` holds a NUL character.
        """
        prepare = partial(_prepare, self._profile, self._server, argv, env, declared, cwd)

        async def undo(prepared: ServerSandbox) -> None:
            await to_thread.run_sync(prepared.remove)

        sandbox = self._sandbox = await run_shielded(to_thread.run_sync(prepare), "prepare a sandbox", undo)
        observer = self._profile.observer
        for note in sandbox.notes:
            self._report(note)
        try:
            if sandbox.socket_path is not None:
                await self._open_proxy(sandbox.socket_path)
            if observer is not None and sandbox.trace_path is not None:
                if self._proxy is not None:
                    observer.hosts, observer.blocked = self._proxy.asked, self._proxy.blocked
                await to_thread.run_sync(observer.trace.open, sandbox.trace_path)
            await child.start(
                sandbox.argv,
                sandbox.env,
                cwd,
                gentle=gentle,
                confine=sandbox.confine,
                handles=sandbox.handles,
                is_launcher=is_bubblewrap_helper if sandbox.mechanism == "bubblewrap" else None,
            )
            self._watcher.start(self._hold_limits(child, _create_watch(self._profile, sandbox, child)))
        except BaseException:
            await self.aclose()
            raise

    async def _hold_limits(self, child: ChildProcess, watch: UsageWatch) -> None:
        while True:
            await asyncio.sleep(_CHECK_S)
            with suppress(OSError):  # we're out of descriptors, or its home is gone
                excess = await _check(watch)
                if child.exited.is_set():
                    return  # its pid may be another program's soon
                if excess is not None:
                    signal_group(child.pid, signal.SIGKILL)
                    self._end(excess)
                    return

    async def _open_proxy(self, path: str) -> None:
        def report(target: str) -> None:
            self._report(f"indus: the sandbox refused {RefusedUse(target, 'hosts')}")

        self._proxy = await to_thread.run_sync(_create_proxy, self._profile, report)
        await self._proxy.open(path)

    async def aclose(self) -> None:
        """Close the proxy and remove the temporary files, even if cancelled."""
        sandbox, self._sandbox = self._sandbox, None
        self._watcher.cancel()
        with CancelScope(shield=True):
            await self._watcher.join()
            if self._proxy is not None:
                await self._proxy.aclose()
            if self._profile.observer is not None:
                await to_thread.run_sync(self._profile.observer.trace.close)
            if sandbox is not None:
                await to_thread.run_sync(sandbox.remove)


def _prepare(profile: ServerProfile, server: str, *arguments: Any) -> ServerSandbox:
    if profile.container is not None:
        from indusagi.capabilities.sandbox.container import prepare_container  # noqa: PLC0415 — only for containers

        return prepare_container(profile, *arguments)
    from indusagi.capabilities.sandbox.server import prepare_server  # noqa: PLC0415 — only for sandboxed servers

    return prepare_server(profile, server, *arguments)


def _create_watch(profile: ServerProfile, sandbox: ServerSandbox, child: ChildProcess) -> UsageWatch:
    from indusagi.capabilities.sandbox.usage import UsageWatch  # noqa: PLC0415 — only for sandboxed servers

    def list_pids() -> list[int]:
        return [child.pid, *(process.pid for process in child.descendants())]

    # Only a namespace keeps the descendants of its first process below it.
    scan = list_pids if sandbox.mechanism == "landlock" else None
    return UsageWatch(profile.limits, child.pid, sandbox.folders, scan)


async def _check(watch: UsageWatch) -> str | None:
    try:
        return await to_thread.run_sync(watch.check)
    except RuntimeError:  # no thread can be started: the machine may be out of processes
        return watch.check()


def _create_proxy(profile: ServerProfile, report: Callable[[str], None]) -> EgressProxy:
    from indusagi.capabilities.sandbox.egress import EgressProxy  # noqa: PLC0415 — only for profiles with hosts
    from indusagi.net.address import classify_address  # noqa: PLC0415
    from indusagi.net.dial import system_resolver  # noqa: PLC0415 — loads httpcore

    return EgressProxy(profile, system_resolver, classify_address, report)
