"""Environment of a command: ours without secrets, plus variables that keep programs from prompting.

A model writes the command and reads its output. A variable whose name or value looks like a secret is left out, unless
the user has named the variable; keys of model providers are always left out. The added variables keep programs from
paging, colouring, opening an editor or prompting.
"""

from __future__ import annotations

import re
from types import MappingProxyType
from typing import TYPE_CHECKING

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

_PROVIDERS = re.compile(
    r"(ANTHROPIC|OPENAI|AZURE_OPENAI|GEMINI|GOOGLE_(AI|API|GENERATIVE)|MISTRAL|GROQ|COHERE|XAI|DEEPSEEK"
    r"|OPENROUTER|TOGETHER|FIREWORKS|PERPLEXITY|CEREBRAS|HUGGINGFACE|HF|INDUS\w*)_.*(KEY|TOKEN|SECRET)"
)
"""Keys of model providers."""
_SECRET_PARTS = frozenset(
    (
        *("KEY", "KEYS", "APIKEY", "TOKEN", "TOKENS", "AUTH", "CRED", "CREDS", "PWD", "PASS"),
        *("PASSPHRASE", "BEARER", "COOKIE", "DSN", "JWT", "PAT", "SALT"),
    )
)
"""Parts of a name, between underscores, that mark a secret."""
_SECRET_PIECES = ("SECRET", "PASSW", "CREDENTIAL", "PRIVATEKEY", "ACCESSKEY", "APIKEY", "AUTHTOKEN")
_SECRET_VALUES = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----"
    r"|\b(sk-[A-Za-z0-9_-]{16}|gh[pousr]_[A-Za-z0-9]{20}|github_pat_\w{20}|glpat-[\w-]{16}"
    r"|xox[abprs]-[\w-]{10}|A(KIA|SIA)[A-Z0-9]{16}|AIza[\w-]{30}|eyJ[\w-]{10,}\.eyJ[\w-]{10,}\.)"
)
_HARMLESS = frozenset({"PWD", "OLDPWD", "SSH_AUTH_SOCK"})
"""Names that look like secrets; `SSH_AUTH_SOCK` is the socket of an agent, not a key."""
_GIT_SETTING = re.compile(r"GIT_CONFIG_(KEY|VALUE)_\d+|GIT_CONFIG_COUNT")
_GIT_CREDENTIALS = re.compile(r"extraheader|password|@.*insteadof", re.IGNORECASE)
"""Git settings with credentials, such as an authorization header."""


def command_environment(ours: Mapping[str, str], allowed: Collection[str] = ()) -> dict[str, str]:
    """Build the environment of a command.

    Args:
        ours: The environment of this process.
        allowed: Variables that commands inherit although they look like secrets.
    """
    kept = {
        name: value
        for name, value in ours.items()
        if name in allowed or not is_secret(name, value) or _GIT_SETTING.fullmatch(name)
    }
    if any(
        _GIT_SETTING.fullmatch(name) and (_SECRET_VALUES.search(value) or _GIT_CREDENTIALS.search(value))
        for name, value in ours.items()
    ):
        # GIT_CONFIG_COUNT numbers them: removing one would break the others (git-config(1)).
        kept = {name: value for name, value in kept.items() if not _GIT_SETTING.fullmatch(name)}
    return {name: value for name, value in kept.items() if not _is_provider_key(name)} | dict(QUIET)


def is_secret(name: str, value: str = "") -> bool:
    """Tell whether a variable is a secret, by its name or value."""
    if name in _HARMLESS:
        return False
    upper = name.upper()
    parts = re.split(r"[^A-Z0-9]+", upper)
    joined = "".join(parts)
    return (
        not _SECRET_PARTS.isdisjoint(parts)
        or any(piece in joined for piece in _SECRET_PIECES)
        or any(part.endswith("TOKEN") for part in parts)
        or _is_provider_key(name)
        or _SECRET_VALUES.search(value) is not None
    )


def _is_provider_key(name: str) -> bool:
    return _PROVIDERS.fullmatch(name.upper()) is not None
