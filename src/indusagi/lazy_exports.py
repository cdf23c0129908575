"""Lazy exports of a package, read from its type stub.

The stub `__init__.pyi` beside a package's `__init__.py` is the one table of its public names: type checkers read it,
and the package loads a name from the module that the stub names when the name is first used. Each line of a stub is
`from MODULE import NAME as NAME`, the form that marks a re-export
(https://typing.python.org/en/latest/spec/distributing.html#import-conventions).
"""

from __future__ import annotations

import sys
from importlib import import_module


def read_exports(module_file: str, stub: str = "__init__.pyi") -> dict[str, str]:
    """Map each exported name to its module, by the stub that stands beside `module_file`."""
    folder = module_file.rpartition("/")[0]
    with open(f"{folder}/{stub}", encoding="utf-8") as file:
        lines = [line.split() for line in file if line.startswith("from ")]
    return {words[3]: words[1] for words in lines if words[3] == words[-1]}


def load_export(package: str, exports: dict[str, str], name: str) -> object:
    """Load an exported name and keep it in the package.

    Raises `AttributeError` if the package does not export the name.
    """
    if name not in exports:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    value = getattr(import_module(exports[name]), name)
    setattr(sys.modules[package], name, value)
    return value
