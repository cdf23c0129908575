"""Tool kernel: what a tool is, what it receives, how it is run, and the twelve native tools.

The names are listed in `__init__.pyi`. Each is loaded when it is first used, so annotations that mention a context load
no event loop.
"""

from indusagi.lazy_exports import load_export, read_exports

_EXPORTS = read_exports(__file__)
__all__ = [*_EXPORTS]  # pyright: ignore[reportUnsupportedDunderAll] — the names of the stub


def __getattr__(name: str) -> object:
    return load_export(__name__, _EXPORTS, name)


def __dir__() -> list[str]:
    return sorted(_EXPORTS)
