"""The list of tools of a deck that doesn't run: what is news."""

from __future__ import annotations

from indusagi.core.faults import Note
from indusagi.interop.protocol_bridge.client.tools import DefinitionNote
from indusagi.interop.protocol_bridge.contract import RemoteToolRef
from induscode.boot.catalog import ToolListing
from induscode.boot.plans import ServerPlan


def test_a_definition_that_the_ledger_knew_is_no_news() -> None:
    of_known, of_new = (
        DefinitionNote(f"server {server!r}", "its parameters are wider", tool=RemoteToolRef(server, "t"))
        for server in ("known", "new")
    )
    other = Note("server 'known'", "it has no id")
    states = {"known": "known", "new": "asked"}
    listing = ToolListing([], ServerPlan(), states, (of_known, of_new, other))
    assert listing.news == [of_new, other]
