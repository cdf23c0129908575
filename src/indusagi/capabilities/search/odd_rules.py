"""Rule files that are no files: ripgrep opens a pipe of that name and waits for its writer."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from indusagi.capabilities.files.paths.ignore import RULE_FILE, IgnoreRules
from indusagi.capabilities.search.walk import Walk

if TYPE_CHECKING:
    from threading import Event

    from indusagi.capabilities.search.names import Lent


def has_odd_rules(lent: Lent, path: str) -> bool:
    """Tell whether there is one in a directory, below it or above it; not for the event loop.

    Args:
        lent: The directory; the search ends soon after it is given up.
        path: The way to it.
    """
    above = path
    while above != (above := os.path.dirname(above)):
        if _is_odd(os.path.join(above, RULE_FILE), None):
            return True
    try:
        with lent.begun() as handle:
            if handle is None:
                return False
            # Where rules forbid to go nobody meets one.
            walk = Walk(handle, IgnoreRules.load(path))
            return _is_met(walk, lent.given_up)
    except OSError:  # it cannot even be listed
        return False


def _is_met(walk: Walk, stop: Event) -> bool:
    for listing in walk.listings():
        if RULE_FILE in listing.names and _is_odd(RULE_FILE, listing.handle):
            return True
        if stop.is_set():
            break
    return False


def _is_odd(name: str, folder: int | None) -> bool:
    try:
        mode = os.stat(name, dir_fd=folder).st_mode
    except OSError:
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))
