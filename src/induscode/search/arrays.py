"""numpy, loaded so that its matrix products use one thread.

A query's matrices are small: more threads gain nothing, and on a busy machine they wait a hundred times as long for
each other. The library reads the variable when it loads (https://github.com/OpenMathLib/OpenBLAS#usage); the
environment of child processes stays unchanged. An already loaded numpy keeps its threads.
"""

from __future__ import annotations

import os

__all__ = ["np"]

_VARIABLES = ("OPENBLAS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
_added = [name for name in _VARIABLES if name not in os.environ]
os.environ.update(dict.fromkeys(_added, "1"))
try:
    import numpy as np
finally:
    for _name in _added:
        del os.environ[_name]
