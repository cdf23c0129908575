"""Bridge to MCP: makes tools of MCP servers available to the kernel, and serves a tool box to MCP clients.

`__init__.pyi` lists the exports. Each one is loaded on first use, so a program that only needs a configuration or a
fault doesn't load an event loop.
"""

from indusagi.lazy_exports import load_export, read_exports

_EXPORTS = read_exports(__file__)
__all__ = [*_EXPORTS]  # pyright: ignore[reportUnsupportedDunderAll] — the names of the stub


def __getattr__(name: str) -> object:
    return load_export(__name__, _EXPORTS, name)


def __dir__() -> list[str]:
    return sorted(_EXPORTS)
