"""MCP servers in the deck: configuration, consent, tool enrolment and the ledger.

Names load lazily, since reading a configuration needs no event loop.
"""

from indusagi.lazy_exports import load_export, read_exports

_EXPORTS = read_exports(__file__)
__all__ = [*_EXPORTS]  # pyright: ignore[reportUnsupportedDunderAll] — the names of the stub


def __getattr__(name: str) -> object:
    return load_export(__name__, _EXPORTS, name)


def __dir__() -> list[str]:
    return sorted(_EXPORTS)
