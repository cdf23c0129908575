"""Words for commands that run in a shell, and perhaps in a sandbox."""

from __future__ import annotations

import os
import shlex
import sys

PYTHON = shlex.quote(os.path.realpath(sys.executable))
"""The interpreter behind the environment of the tests, whatever signs its path holds. The
environment itself may lie where a sandbox does not look: in a clone below /tmp, say."""
