"""Consent that holds at every node: to servers of a project, by a keyed digest of what was consented to.

A node shares the consents of its own user to the rows that it serves, and withdraws those that the user has revoked.
Another node trusts a row that is equal in every fact: name, command, arguments, variables, address. Its file may be
elsewhere there, unless the row runs something of its project: that has to be in the same directory at both nodes. The
digest cannot be turned back into the facts without the key.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from anyio import to_thread

from indusagi.core.json import compact_json
from indusagi.core.time import iso_utc, now_ms
from indusagi.interop.protocol_bridge.contract import StdioServerConfig
from induscode.servers.config.rows import find_project_dir
from induscode.servers.config.trust import TrustStore, consent_facts

if TYPE_CHECKING:
    from indusagi.core.json import JsonObject
    from induscode.cluster.key import ClusterKey
    from induscode.cluster.shared.table import SharedTable
    from induscode.core.consent import ConsentState
    from induscode.servers.config.rows import ServerRow

KIND = "consent"


class SharedTrust(TrustStore):
    """The consents of this user, and those of the other nodes. `consent` is called in threads."""

    def __init__(self, table: SharedTable, key: ClusterKey, node: str, path: str | None = None) -> None:
        super().__init__(path)
        self.on_checked: Callable[[], object] = lambda: None
        """Called in a thread when a row was looked up: there may be a consent to share."""
        self._table = table
        self._key = key
        self._node = node
        self._own: dict[tuple[str, str], str] = {}
        """The digests of rows that this user trusts, by file and server."""

    def consent(self, row: ServerRow) -> ConsentState:
        """Look up the consent of this user, or of another node to an equal row."""
        own = super().consent(row)
        digest = self._digest(row)
        place = row.origin.file, row.id
        if own == "trusted":
            self._own[place] = digest
        else:
            self._own.pop(place, None)
        self.on_checked()
        others = self._table.list(KIND).values()
        is_trusted = own == "trusted" or any(
            value.get("digest") == digest and value.get("by") != self._node for value in others
        )
        return "trusted" if is_trusted else own

    def _digest(self, row: ServerRow) -> str:
        facts = consent_facts(row)
        if (folder := find_used_project(row)) is not None:
            facts["project"] = folder
        return self._key.digest(KIND, compact_json(facts, sort_keys=True))

    async def share(self) -> None:
        """Write the consents of this user that are missing, and remove those that were revoked.

        Raises:
            ClusterFault: The broker did not do it.
        """
        wanted: dict[str, JsonObject] = {}
        for (file, server), digest in [*self._own.items()]:
            value: JsonObject = {"digest": digest, "server": server, "file": file, "by": self._node}
            wanted[self._table.build_key(KIND, digest, self._node)] = value
        present = self._table.list(KIND)
        for key, value in present.items():
            if key not in wanted and value.get("by") == self._node:
                file, server = str(value.get("file")), str(value.get("server"))
                # A consent of another project, which is not served now, stays.
                if (file, server) in self._own or not await to_thread.run_sync(self.has_consent, file, server):
                    await self._table.remove(key)
        for key, value in wanted.items():
            if key not in present:
                await self._table.put(key, {**value, "at": iso_utc(now_ms())})


def find_used_project(row: ServerRow) -> str | None:
    """Return the directory of a row's project if its command names something there, otherwise None. It blocks.

    An equal row of another project (`node server.js`) runs another program.
    """
    config, command = row.config, (row.auth or {}).get("header_command")
    words = [config.command, *config.args, config.cwd or ""] if isinstance(config, StdioServerConfig) else []
    words += map(str, command) if isinstance(command, list) else ()
    folder = os.path.realpath(find_project_dir(row.origin))
    is_used = any(_names_file(folder, part) for word in words for part in (word, *word.split()))
    return folder if is_used else None


def _names_file(folder: str, word: str) -> bool:
    """Tell whether a word of a command names something in a directory, or has a path with a variable in it."""
    # `--option=value`, `file.ts:run`, `-m package.module`
    names = {word, word.partition("=")[2], word.partition(":")[0], word.partition(".")[0]} - {""}
    return any(
        name.startswith(".")
        or (os.sep in name and ("$" in name or "{" in name))
        or (not os.path.isabs(name) and os.path.lexists(os.path.join(folder, name)))
        for name in names
    )
