"""Speaking to other systems: the MCP bridge."""

from importlib import import_module
from typing import TYPE_CHECKING

from indusagi.interop.protocol_bridge import __all__ as __all__

if TYPE_CHECKING:
    from indusagi.interop.protocol_bridge import *

_INNER = f"{__name__}.protocol_bridge"


def __getattr__(name: str) -> object:
    inner = import_module(_INNER)
    if name not in inner.__all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(inner, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *import_module(_INNER).__all__})
