"""The environment of a server process: a list of what it inherits, and what it does not.

Each class of names has a user in mind. Nothing that may be a secret is in it: a token reaches a
server only if its configuration names it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from indusagi.capabilities.sandbox.environment import is_secret

if TYPE_CHECKING:
    from collections.abc import Mapping

_NAMES = frozenset(
    (
        # Whoever runs any program: where it finds others, its home, its temporary files.
        *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "TERM", "TMPDIR", "TEMP", "TMP"),
        # A user who does not read English, or whose clock is not UTC.
        *("LANG", "LANGUAGE", "TZ"),
        # A user in a company whose proxy or inspecting firewall has a certificate of its own.
        *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"),
        *("NODE_EXTRA_CA_CERTS", "NODE_USE_SYSTEM_CA", "NODE_USE_ENV_PROXY", "GIT_SSL_CAINFO"),
        *("GIT_SSL_CAPATH", "PIP_CERT", "CARGO_HTTP_CAINFO", "DENO_CERT", "DENO_TLS_CA_STORE"),
        *("AWS_CA_BUNDLE", "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", "NIX_SSL_CERT_FILE"),
        *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "FTP_PROXY", "WS_PROXY"),
        # A user with several versions of a language, installed by a version manager.
        *("NVM_DIR", "NVM_BIN", "FNM_DIR", "FNM_MULTISHELL_PATH", "VOLTA_HOME", "PYENV_ROOT"),
        *("PYENV_VERSION", "ASDF_DIR", "ASDF_DATA_DIR", "MISE_DATA_DIR", "MISE_CONFIG_DIR"),
        *("RBENV_ROOT", "SDKMAN_DIR", "RUSTUP_HOME", "CARGO_HOME", "GOPATH", "GOROOT", "GOBIN"),
        *("GOPROXY", "GONOSUMDB", "GOPRIVATE", "GOFLAGS", "GOCACHE", "GOMODCACHE", "JAVA_HOME"),
        *("DOTNET_ROOT", "BUN_INSTALL", "DENO_DIR", "PNPM_HOME", "COREPACK_HOME", "NODE_PATH"),
        *("VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_DEFAULT_ENV", "JBANG_DIR", "NIX_PATH"),
        # A user whose container engine is not the local default one.
        *("DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_CONFIG", "DOCKER_CERT_PATH"),
        *("DOCKER_TLS_VERIFY", "CONTAINER_HOST", "PODMAN_USERNS"),
        # A user of servers that open windows (browsers, clipboards).
        *("DISPLAY", "WAYLAND_DISPLAY", "XAUTHORITY"),
        *("PLAYWRIGHT_BROWSERS_PATH", "PUPPETEER_EXECUTABLE_PATH", "CHROME_PATH"),
    )
)
"""Compared in upper case: proxies are named in both."""
_PREFIXES = (
    "LC_",  # as LANG
    "XDG_",  # a user whose configuration or caches are elsewhere
    "UV_",  # a user of an index of packages of their own, or of another cache
    "PIP_",
    "PIPX_",
    "HOMEBREW_",
)
_NPM_SETTINGS = frozenset(
    (
        *("registry", "userconfig", "globalconfig", "cache", "prefix", "proxy", "https_proxy"),
        *("http_proxy", "noproxy", "ca", "cafile", "strict_ssl", "offline", "prefer_offline"),
        *("fetch_retries", "fetch_timeout", "maxsockets", "script_shell", "tmp", "yes"),
    )
)
"""npm reads any setting from the environment; those that hold logins are not passed on."""
_NPM = re.compile(r"npm_config_(\w+)", re.IGNORECASE)
_HARMLESS = frozenset({"UV_KEYRING_PROVIDER", "PIP_KEYRING_PROVIDER"})
_RELEVANT = re.compile(
    r"(NODE|NPM|PYTHON|PIP|UV|JAVA|JDK|GO|CARGO|RUST|DENO|BUN|DOCKER|PODMAN|DOTNET|RUBY|GEM|AWS|AZURE"
    r"|GCP|GOOGLE|KUBE\w*|GITHUB|GH|GITLAB|SLACK|NOTION|LINEAR|JIRA|ATLASSIAN|SENTRY|STRIPE|BRAVE"
    r"|TAVILY|EXA|FIRECRAWL|OPENAI|ANTHROPIC|HF|PG\w*|POSTGRES\w*|MYSQL|REDIS|MONGO\w*|DATABASE"
    r"|SSL|TLS|CA|PROXY|LD|DYLD)(_\w+)?|\w+_(API_KEY|TOKEN|PROXY|CA|CERT|CERTS|URL|HOST|DSN)"
)
"""Names that servers and their runtimes look at."""


def is_inherited(name: str, value: str = "") -> bool:
    """Tell whether a server inherits a variable of ours without being configured to."""
    upper = name.upper()
    setting = _NPM.fullmatch(name)
    known = (
        upper in _NAMES or upper.startswith(_PREFIXES) or (setting is not None and setting[1].lower() in _NPM_SETTINGS)
    )
    return known and (upper in _NAMES or upper in _HARMLESS or not is_secret(name, value))


def child_environment(ours: Mapping[str, str], declared: Mapping[str, str]) -> dict[str, str]:
    """Build the environment of a server: what is inherited, and what its configuration declares."""
    inherited = {name: value for name, value in ours.items() if is_inherited(name, value)}
    return {**inherited, **declared}


def find_withheld(ours: Mapping[str, str], declared: Mapping[str, str], said: str = "") -> list[str]:
    """Name variables of ours that a server was not given and that look relevant to it.

    Those that it mentions itself in what it `said` come first: they are most likely the cause.
    """
    given = child_environment(ours, declared)
    withheld = sorted(name for name in ours if name not in given)
    mentioned = [name for name in withheld if re.search(rf"\b{re.escape(name)}\b", said)]
    likely = [name for name in withheld if _RELEVANT.fullmatch(name) and name not in mentioned]
    return [*(name for name in mentioned if len(name) > 1), *likely]
