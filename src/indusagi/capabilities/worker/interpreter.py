"""A Python of its own for work that would not let go of the interpreter.

A single call into C keeps every other thread waiting until it is done, the event loop included, and
nothing but the end of its process can stop it. Work that may take such calls for long is done in a
process, which costs one start of Python.
"""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec

_START = """
import sys, types
for name, path in zip(("indusagi", "indusagi.core", "indusagi.capabilities"), sys.argv[2:5]):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [path]
sys.path.extend(filter(None, sys.argv[5:6]))
from importlib import import_module
sys.exit(import_module(sys.argv[1]).main(*sys.argv[6:]))
"""
"""Finds our modules where they are, and does without the rest of the packages they are in: to load
the whole kernel takes four times as long as to start Python. An empty name on the path would be the
working directory, in which a stranger may have put a module."""
_KERNEL = os.path.dirname(os.path.dirname(__file__))
_PACKAGE = os.path.dirname(_KERNEL)


def own_python(module: str, *arguments: str, library: str = "") -> list[str]:
    """Write the command line that calls `main` of one of our modules in a process of its own.

    What is in the working directory or the environment is not what it runs.

    Args:
        module: Its whole name.
        arguments: What `main` is given.
        library: A directory of libraries, for when they are not beside the interpreter.
    """
    places = (_PACKAGE, os.path.join(_PACKAGE, "core"), _KERNEL, library)
    return [sys.executable, "-I", "-c", _START, module, *places, *arguments]


def library_of(name: str) -> str:
    """Tell in which directory a library is installed, nothing if it is not.

    It looks at files: not for the event loop.
    """
    found = find_spec(name)
    return os.path.dirname(os.path.dirname((found and found.origin) or ""))
