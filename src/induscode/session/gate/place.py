"""Where the rules that a user has made for always are kept; light, for those who only look."""

from __future__ import annotations

import os

from indusagi.core.places import state_dir

_FILE_NAME = "permissions.json"


def rules_path() -> str:
    """Give the file; never inside a project.

    Raises:
        OSError: There is no home directory.
    """
    return os.path.join(state_dir(), _FILE_NAME)


def has_rules() -> bool:
    """Tell whether there is such a file, in whatever state."""
    try:
        return os.path.lexists(rules_path())
    except OSError:
        return False
