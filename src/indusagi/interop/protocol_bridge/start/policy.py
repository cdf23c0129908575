"""How long the start of a server may take: the one place that decides it.

A command that was never seen up under its configuration may have to download a program first: it
has a minute, and more while its processes show that they work. One that was up before has ten
seconds. A limit that the configuration states itself (`startup_timeout_sec`) always wins.
"""

from __future__ import annotations

from dataclasses import dataclass

from indusagi.core.hashing import content_hash
from indusagi.interop.protocol_bridge.contract import LATER_START_S, ServerConfig, StdioServerConfig
from indusagi.interop.protocol_bridge.start.managers import find_package_manager


@dataclass(frozen=True, slots=True)
class StartAllowance:
    """How long one start may take."""

    limit_s: float
    cap_s: float
    """The limit is extended while the processes show life, up to this; equal: never."""
    slow_s: float
    """A start that takes longer is told."""
    first: bool = False
    package_manager: str | None = None
    patient_next: bool = False
    """Whether a start after this one, if this one takes too long, is given more time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartPolicy:
    """The times of starts. Pure: it is told whether a configuration was seen up."""

    first_s: float = 60.0
    later_s: float = LATER_START_S
    cap_s: float = 120.0
    """For a first start of any command that shows life."""
    package_manager_cap_s: float = 300.0
    slow_s: float = 1.0

    def allow(self, config: ServerConfig, *, seen_up: bool) -> StartAllowance:
        """Say how long a start of this configuration may take."""
        if not isinstance(config, StdioServerConfig):
            limit_s = config.limits.start_s
            return StartAllowance(limit_s, limit_s, self.slow_s)
        manager = find_package_manager(config.command, config.args)
        name = None if manager is None else manager.name
        stated_s = config.limits.connect_s
        if stated_s is not None or seen_up:
            limit_s = self.later_s if stated_s is None else stated_s
            patient_next = stated_s is None
            return StartAllowance(limit_s, limit_s, self.slow_s, not seen_up, name, patient_next)
        cap_s = self.cap_s if manager is None else self.package_manager_cap_s
        # A container engine downloads in another process: nothing of it can be seen from here.
        outside = manager is not None and manager.outside
        limit_s = cap_s if outside else min(self.first_s, cap_s)
        return StartAllowance(limit_s, cap_s, self.slow_s, first=True, package_manager=name)


def start_digest(config: StdioServerConfig) -> str:
    """Digest what a process is started with: what was learned of one start holds for this."""
    return content_hash([config.command, [*config.args], {**config.env}, config.cwd])


class StartHistory:
    """Which configurations were seen up. In memory; a product fills it from what it has kept."""

    def __init__(self) -> None:
        self._up: set[str] = set()

    def was_up(self, config: ServerConfig) -> bool:
        """Tell whether a server was seen up with this configuration."""
        return not isinstance(config, StdioServerConfig) or start_digest(config) in self._up

    def record_up(self, config: ServerConfig) -> None:
        """Remember that it came up: its next start is a later one."""
        if isinstance(config, StdioServerConfig):
            self._up.add(start_digest(config))

    def record_timeout(self, config: ServerConfig) -> None:
        """Forget that it was up: what it runs may have to be downloaded anew."""
        if isinstance(config, StdioServerConfig):
            self._up.discard(start_digest(config))


PROCESS_HISTORY = StartHistory()
"""For all that is started without a history of its own, in this process."""
