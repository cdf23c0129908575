"""The sandbox around one server process: started with it, and removed after its end."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

from anyio import CancelScope, to_thread

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from indusagi.capabilities.sandbox.egress import EgressProxy
    from indusagi.capabilities.sandbox.profile import ServerProfile
    from indusagi.capabilities.sandbox.server import ServerSandbox
    from indusagi.core.process.child import ChildProcess

_log = logging.getLogger(__name__)


class RunningSandbox:
    """The sandbox of one server process."""

    def __init__(self, profile: ServerProfile, server: str) -> None:
        self._profile = profile
        self._server = server
        self._sandbox: ServerSandbox | None = None
        self.proxy: EgressProxy | None = None
        """Its way to the hosts of the profile, if it names some."""

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
        from indusagi.capabilities.sandbox.server import prepare_server  # noqa: PLC0415 — only for sandboxed servers

        prepare = partial(prepare_server, self._profile, self._server, argv, env, declared, cwd)
        sandbox = self._sandbox = await to_thread.run_sync(prepare)
        try:
            if sandbox.socket_path is not None:
                await self._open_proxy(sandbox.socket_path)
            await child.start(sandbox.argv, sandbox.env, cwd, gentle=gentle, confine=sandbox.confine)
        except BaseException:
            await self.aclose()
            raise

    async def _open_proxy(self, path: str) -> None:
        from indusagi.capabilities.sandbox.egress import EgressProxy  # noqa: PLC0415 — only for profiles with hosts
        from indusagi.capabilities.web.dial import classify_address, system_resolver  # noqa: PLC0415

        def report(target: str) -> None:
            _log.warning(
                "server %r was kept from %s: if it needs that, add %r to the hosts of its sandbox",
                self._server,
                target,
                target,
            )

        self.proxy = EgressProxy(self._profile, system_resolver, classify_address, report)
        await self.proxy.open(path)

    async def aclose(self) -> None:
        """Close the proxy and remove the temporary files, even if cancelled."""
        sandbox, self._sandbox = self._sandbox, None
        with CancelScope(shield=True):
            if self.proxy is not None:
                await self.proxy.aclose()
            if sandbox is not None:
                await to_thread.run_sync(sandbox.remove)
