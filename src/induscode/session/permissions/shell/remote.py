"""Which tools of servers a rule names: by server and tool, not by the two names joined.

`a__b__*` can be read as tools `b__…` of server `a`, or as every tool of server `a__b`. To allow,
one reading holds: that of the server with the longest id that exists, and the part before the `__`
must be the server's id, whole. A name without a star means the tool that is shown under it. A star
in the server's part never stands for a `__`; a pattern without `__` names tools of this machine,
other than `*` alone, which names everything. To deny or to ask, it is enough that one of the
readings may be meant: what a rule kept from running is kept from it when a server is added.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

from indusagi.interop.protocol_bridge.contract import QUALIFIER, qualify_tool_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from indusagi.interop.protocol_bridge.contract import RemoteToolRef

_SIGNS = re.compile(r"[*?]")


def names_exactly(pattern: str, ref: RemoteToolRef, name: str, *, shared: bool) -> bool:
    """Tell whether a pattern names a tool of a server, beyond doubt: enough to allow it.

    `name` is the one a model calls it by, and what a pattern without a star or `?` must be. If its
    joined name is `shared` with a server of a longer id, a pattern that has a further `__` is not
    taken to mean this tool.
    """
    if pattern == "*" or _SIGNS.search(pattern) is None:
        return pattern in {"*", name}
    return any(
        _is_server(server, ref.server)
        and match_glob(tool, ref.name)
        and (not shared or QUALIFIER not in _literal_start(pattern)[len(server) + 1 :])
        for server, tool in _splits(pattern)
    )


def may_name(pattern: str, ref: RemoteToolRef, name: str) -> bool:
    """Tell whether a pattern may be meant to name a tool of a server: enough to deny or to ask."""
    joined = qualify_tool_name(ref)
    return match_glob(pattern, name) or match_glob(pattern, joined)


@lru_cache(maxsize=512)
def _compile_glob(pattern: str) -> re.Pattern[str]:
    text = re.escape(pattern).replace(r"\*", ".*").replace(r"\?", ".")
    return re.compile(text, re.DOTALL)


def match_glob(pattern: str, text: str) -> bool:
    """Compare a whole text with a pattern: `*` is any characters, `?` is one."""
    return _compile_glob(pattern).fullmatch(text) is not None


def _is_server(pattern: str, server: str) -> bool:
    if _SIGNS.search(pattern) is None:
        return pattern == server
    return QUALIFIER not in server and match_glob(pattern, server)


def _literal_start(pattern: str) -> str:
    return _SIGNS.split(pattern, maxsplit=1)[0]


def _splits(pattern: str) -> Iterator[tuple[str, str]]:
    """Give the ways to read a pattern as one of a server and one of its tools."""
    at = pattern.find(QUALIFIER, 1)
    while at > 0:
        server, tool = pattern[:at], pattern[at + len(QUALIFIER) :]
        if _SIGNS.search(server) and QUALIFIER in server:
            return
        if tool:
            yield server, tool
        at = pattern.find(QUALIFIER, at + 1)
