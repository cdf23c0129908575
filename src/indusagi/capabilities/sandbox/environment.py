"""What a command inherits of our environment: all of it but secrets, and nothing that would ask.

A command is written by a model, which reads what it prints. A variable whose name or value says
that it is a secret is kept from it, unless the user has named the variable. The keys of model
providers are kept from it in any case. What is added has programs neither page, nor colour, nor
open an editor, nor prompt: nobody is there to answer.
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
        # `true` would let an interactive rebase run with the list as it stands; `false` ends it.
        "GIT_SEQUENCE_EDITOR": "false",
        # Without a terminal vim waits for keys on standard error; what `-c` asks for is done first.
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
"""What every command is given, whatever stood there before."""

_PROVIDERS = re.compile(
    r"(ANTHROPIC|OPENAI|AZURE_OPENAI|GEMINI|GOOGLE_(AI|API|GENERATIVE)|MISTRAL|GROQ|COHERE|XAI|DEEPSEEK"
    r"|OPENROUTER|TOGETHER|FIREWORKS|PERPLEXITY|CEREBRAS|HUGGINGFACE|HF|INDUS\w*)_.*(KEY|TOKEN|SECRET)"
)
"""The keys that our own models are paid with."""
_SECRET_PARTS = frozenset(
    (
        *("KEY", "KEYS", "APIKEY", "TOKEN", "TOKENS", "AUTH", "CRED", "CREDS", "PWD", "PASS"),
        *("PASSPHRASE", "BEARER", "COOKIE", "DSN", "JWT", "PAT", "SALT"),
    )
)
"""A part of a name, between underscores, that makes the variable a secret."""
_SECRET_PIECES = ("SECRET", "PASSW", "CREDENTIAL", "PRIVATEKEY", "ACCESSKEY", "APIKEY", "AUTHTOKEN")
_SECRET_VALUES = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----"
    r"|\b(sk-[A-Za-z0-9_-]{16}|gh[pousr]_[A-Za-z0-9]{20}|github_pat_\w{20}|glpat-[\w-]{16}"
    r"|xox[abprs]-[\w-]{10}|A(KIA|SIA)[A-Z0-9]{16}|AIza[\w-]{30}|eyJ[\w-]{10,}\.eyJ[\w-]{10,}\.)"
)
_HARMLESS = frozenset({"PWD", "OLDPWD", "SSH_AUTH_SOCK"})
"""Names that look like those of secrets; the last one is the way to an agent, not a key."""
_GIT_SETTING = re.compile(r"GIT_CONFIG_(KEY|VALUE)_\d+|GIT_CONFIG_COUNT")


def command_environment(ours: Mapping[str, str], allowed: Collection[str] = ()) -> dict[str, str]:
    """Give the environment for a command.

    Args:
        ours: The environment of this process.
        allowed: Names that the user wants commands to see although they look like secrets.
    """
    kept = {
        name: value
        for name, value in ours.items()
        if name in allowed or not is_secret(name, value) or _GIT_SETTING.fullmatch(name)
    }
    if _git_settings_are_secret(ours):
        # They are counted: to take one out is to break the others.
        kept = {name: value for name, value in kept.items() if not _GIT_SETTING.fullmatch(name)}
    return {name: value for name, value in kept.items() if not _is_provider_key(name)} | dict(QUIET)


def is_secret(name: str, value: str = "") -> bool:
    """Tell whether a variable is a secret, by its name or by what it holds."""
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


def _git_settings_are_secret(ours: Mapping[str, str]) -> bool:
    """Tell whether a setting that git is given by variables is, say, a header with a password."""
    return any(
        _GIT_SETTING.fullmatch(name)
        and (_SECRET_VALUES.search(value) or re.search(r"extraheader|password|@.*insteadof", value, re.IGNORECASE))
        for name, value in ours.items()
    )
