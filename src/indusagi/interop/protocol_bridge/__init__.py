"""Bridge to MCP: tools of MCP servers become tools of the kernel, and a tool box is served to MCP clients.

The names are listed in `__init__.pyi`. Each is loaded when it is first used, so a program that only needs a
configuration or a fault loads no event loop.
"""

from indusagi.lazy_exports import load_export, read_exports

_EXPORTS = read_exports(__file__)
__all__ = [*_EXPORTS]  # pyright: ignore[reportUnsupportedDunderAll] — the names of the stub


def __getattr__(name: str) -> object:
    return load_export(__name__, _EXPORTS, name)


def __dir__() -> list[str]:
    return sorted(_EXPORTS)
