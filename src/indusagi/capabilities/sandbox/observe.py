"""Observer of one server in its sandbox: its egress proxy tells the hosts, its trace the paths and programs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from indusagi.capabilities.sandbox.behaviour import Refusal, SandboxPlaces, SortedSightings
from indusagi.capabilities.sandbox.trace import SandboxTrace

if TYPE_CHECKING:
    from collections.abc import Collection

    from indusagi.capabilities.sandbox.behaviour import Behaviour


class SandboxObserver:
    """Records what a server does in a sandbox whose profile names it, which also lets it reach every public host."""

    def __init__(self) -> None:
        self.trace = SandboxTrace()
        self.hosts: Collection[str] = ()
        """What it asked the proxy for; set, like the others, by the start of the sandbox."""
        self.blocked: Collection[str] = ()
        """What the proxy refused."""
        self.places = SandboxPlaces(home="/nonexistent", workspace=None, package=(), read=(), write=())

    def find_behaviour(self, *, with_asked: str | None = None) -> Behaviour:
        """Return what it has used so far.

        `with_asked` also counts what runtimes look for on their own, if it starts with this text.
        """
        return self._sort().build_behaviour(self.hosts, with_asked=with_asked)

    def find_refusals(self) -> list[Refusal]:
        """List what it asked for and was refused, beyond its behaviour."""
        found = self._sort()
        direct = [one for one in found.addresses if not one.startswith(("127.", "[::1]"))]
        refusals = [Refusal(host, "hosts", "an address of this machine or network") for host in sorted(self.blocked)]
        if direct:
            reason = f"it connects to {direct[0]} without the proxy, so it can't be limited to hosts"
            refusals.append(Refusal("*", "hosts", reason))
        return [*found.withheld, *refusals, *found.asked]

    @property
    def note(self) -> str:
        """What couldn't be observed, or an empty string."""
        return f"the paths and programs it used are unknown: {self.trace.missing}" if self.trace.missing else ""

    def _sort(self) -> SortedSightings:
        return SortedSightings(self.trace.sightings, self.places)
