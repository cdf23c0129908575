"""Environment of a command: ours without secrets, plus variables that keep programs from prompting.

A model writes the command and reads its output. A command doesn't inherit a variable that looks like a secret or names
a socket (`core.secrets`), unless the user has named the variable; it never inherits keys of model providers. The added
variables keep programs from paging, colouring, opening an editor or prompting.
"""

from __future__ import annotations

import re
from types import MappingProxyType
from typing import TYPE_CHECKING

from indusagi.core.secrets.names import is_provider_key, is_secret
from indusagi.core.secrets.patterns import holds_secret
from indusagi.core.secrets.places import find_named_sockets

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

QUIET: Mapping[str, str] = MappingProxyType(
    {
        "NO_COLOR": "1",
        "TERM": "dumb",
        "PAGER": "cat",
        "GIT_PAGER": "cat",
        "MANPAGER": "cat",
        "GH_PAGER": "cat",
        "SYSTEMD_PAGER": "cat",
        "AWS_PAGER": "",
        "EDITOR": "true",
        "VISUAL": "true",
        "GIT_EDITOR": "true",
        # `true` would run an interactive rebase with the list unchanged; `false` aborts it.
        "GIT_SEQUENCE_EDITOR": "false",
        # Without a terminal vim waits for keys on standard error; commands of `-c` run first.
        "VIMINIT": "autocmd VimEnter * cquit",
        "GIT_TERMINAL_PROMPT": "0",
        "GH_PROMPT_DISABLED": "1",
        "DEBIAN_FRONTEND": "noninteractive",
        "PIP_NO_INPUT": "1",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "npm_config_yes": "true",
        "PYTHONUNBUFFERED": "1",
    }
)
"""Set for every command, whatever their values were."""

_GIT_SETTING = re.compile(r"GIT_CONFIG_(KEY|VALUE)_\d+|GIT_CONFIG_COUNT")
_GIT_CREDENTIALS = re.compile(r"extraheader|password|@.*insteadof", re.IGNORECASE)
"""Git settings with credentials, such as an authorization header."""


def command_environment(ours: Mapping[str, str], allowed: Collection[str] = ()) -> dict[str, str]:
    """Build the environment of a command.

    Args:
        ours: The environment of this process.
        allowed: Variables that commands inherit although they look like secrets or name a socket.
    """
    kept = {
        name: value
        for name, value in ours.items()
        if name in allowed
        or _GIT_SETTING.fullmatch(name)
        or not (is_secret(name, value) or any(find_named_sockets(value)))
    }
    if any(
        _GIT_SETTING.fullmatch(name) and (holds_secret(value) or _GIT_CREDENTIALS.search(value))
        for name, value in ours.items()
    ):
        # GIT_CONFIG_COUNT numbers them: removing one would break the others (git-config(1)).
        kept = {name: value for name, value in kept.items() if not _GIT_SETTING.fullmatch(name)}
    return {name: value for name, value in kept.items() if not is_provider_key(name)} | dict(QUIET)
