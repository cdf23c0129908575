"""One visit of one client: everything it does, and what is left when it has gone."""

from __future__ import annotations

import tempfile
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from outside.clients.report import NoReport, judge_client
from outside.clients.running import Runs
from outside.clients.subject import CannotServe, Target, listening, make_subject
from outside.install import HOME
from outside.leftovers import Watch

if TYPE_CHECKING:
    from collections.abc import Generator

    from outside.clients.roster import Client
    from outside.clients.subject import Subject, Transport


@dataclass(slots=True)
class Visit:
    """What was seen of a client."""

    looked_at: ClassVar = ("list", "call", "image", "resource", "prompt", "error", "progress", "cancel")
    client: str
    transport: Transport
    cancels: str
    protocol: str = ""
    seen: dict[str, str] = field(default_factory=dict[str, str])
    wrong: list[str] = field(default_factory=list[str])

    @property
    def cells(self) -> tuple[str, ...]:
        """A row for the table, without the result."""
        looks = (self.seen.get(what, "") for what in self.looked_at)
        return (self.client, self.transport, self.protocol, *looks, self.cancels)


def visit(client: Client, transport: Transport) -> Visit:
    """Let a client do everything once, against an `indus serve` of its own."""
    done = Visit(client.name, transport, client.cancels)
    watch = Watch(f"{HOME}/clients/")
    # A path that is what it seems to be: on some systems the folder for such things is a link.
    with tempfile.TemporaryDirectory() as name:
        subject = make_subject(Path(name).resolve())
        try:
            with _served(subject, transport) as target:
                report = client.way.visit(target, Runs(subject, watch.look))
                done.protocol = report.protocol
                for finding in judge_client(report, subject.happened):
                    unseen = finding.what == "progress" and report.steps is None
                    done.seen[finding.what] = "no" if finding.wrong else "-" if unseen else "yes"
                    if finding.wrong:
                        done.wrong.append(f"{finding.what}: {finding.wrong}")
        except (NoReport, CannotServe) as exc:
            done.wrong.append(str(exc))
        done.wrong.extend(f"process left: {process}" for process in watch.left())
    return done


@contextmanager
def _served(subject: Subject, transport: Transport) -> Generator[Target]:
    if transport == "stdio":
        yield Target(subject)
    else:
        with listening(subject) as target:
            yield target
