"""Where the rules of a user and of a project are kept; light, for those who only look."""

from __future__ import annotations

import os

from indusagi.core.app_dirs import state_dir

_FILE_NAME = "permissions.json"


def rules_path() -> str:
    """Give the file of the user; never inside a project.

    Raises:
        OSError: There is no home directory.
    """
    return os.path.join(state_dir(), _FILE_NAME)


def project_rules_path(cwd: str) -> str:
    """Give the file in which a project says what is denied in it."""
    return os.path.join(cwd, ".indusvx", _FILE_NAME)


def has_rules(cwd: str) -> bool:
    """Tell whether there is one of these files, in whatever state."""
    if os.path.lexists(project_rules_path(cwd)):
        return True
    try:
        return os.path.lexists(rules_path())
    except OSError:
        return False
