"""numpy, loaded so that its matrix products use one thread.

The matrices of one query are small: more threads gain nothing, and on a busy machine they wait for one another for a
hundred times as long. The library reads the variable when it is loaded (https://github.com/OpenMathLib/OpenBLAS#usage);
the environment of child processes stays as it was. A numpy that is loaded already keeps its threads.
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
