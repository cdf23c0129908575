"""Interoperation with other systems: the MCP bridge, whose public names this package repeats."""

from indusagi.lazy_exports import load_export, read_exports

_EXPORTS = read_exports(__file__, "protocol_bridge/__init__.pyi")
__all__ = [*_EXPORTS]  # pyright: ignore[reportUnsupportedDunderAll] — the names of the bridge's stub


def __getattr__(name: str) -> object:
    return load_export(__name__, _EXPORTS, name)


def __dir__() -> list[str]:
    return sorted(_EXPORTS)
