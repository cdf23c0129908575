"""Tool kernel: the definition of a tool, its context, the code that runs it, and the twelve native tools.

`__init__.pyi` lists the names. Each loads on first use, so annotations that mention a context don't load an event loop.
"""

from indusagi.lazy_exports import load_export, read_exports

_EXPORTS = read_exports(__file__)
__all__ = [*_EXPORTS]  # pyright: ignore[reportUnsupportedDunderAll] — the names of the stub


def __getattr__(name: str) -> object:
    return load_export(__name__, _EXPORTS, name)


def __dir__() -> list[str]:
    return sorted(_EXPORTS)
