"""The environment of a server process: an allow-list of inherited variables, and the ones its configuration declares.

Each group of names has a use case. No variable that looks like a secret is inherited (`core.secrets`), except the
address of a proxy: a token reaches a server only if its configuration names it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from indusagi.core.secrets.names import is_secret_name
from indusagi.core.secrets.patterns import holds_secret

if TYPE_CHECKING:
    from collections.abc import Mapping

_NAMES = frozenset(
    (
        # Every program: the search path, home, temporary files.
        *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "TERM", "TMPDIR", "TEMP", "TMP"),
        # Language and time zone.
        *("LANG", "LANGUAGE", "TZ"),
        # Companies whose proxy or inspecting firewall has its own certificate authority.
        *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"),
        *("NODE_EXTRA_CA_CERTS", "NODE_USE_SYSTEM_CA", "NODE_USE_ENV_PROXY", "GIT_SSL_CAINFO"),
        *("GIT_SSL_CAPATH", "PIP_CERT", "CARGO_HTTP_CAINFO", "DENO_CERT", "DENO_TLS_CA_STORE"),
        *("AWS_CA_BUNDLE", "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", "NIX_SSL_CERT_FILE"),
        *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "FTP_PROXY", "WS_PROXY"),
        # Several versions of a language, installed by a version manager.
        *("NVM_DIR", "NVM_BIN", "FNM_DIR", "FNM_MULTISHELL_PATH", "VOLTA_HOME", "PYENV_ROOT"),
        *("PYENV_VERSION", "ASDF_DIR", "ASDF_DATA_DIR", "MISE_DATA_DIR", "MISE_CONFIG_DIR"),
        *("RBENV_ROOT", "SDKMAN_DIR", "RUSTUP_HOME", "CARGO_HOME", "GOPATH", "GOROOT", "GOBIN"),
        *("GOPROXY", "GONOSUMDB", "GOPRIVATE", "GOFLAGS", "GOCACHE", "GOMODCACHE", "JAVA_HOME"),
        *("DOTNET_ROOT", "BUN_INSTALL", "DENO_DIR", "PNPM_HOME", "COREPACK_HOME", "NODE_PATH"),
        *("VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_DEFAULT_ENV", "JBANG_DIR", "NIX_PATH"),
        # A container engine other than the local default.
        *("DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_CONFIG", "DOCKER_CERT_PATH"),
        *("DOCKER_TLS_VERIFY", "CONTAINER_HOST", "PODMAN_USERNS"),
        # Servers that open windows (browsers, clipboards).
        *("DISPLAY", "WAYLAND_DISPLAY", "XAUTHORITY"),
        *("PLAYWRIGHT_BROWSERS_PATH", "PUPPETEER_EXECUTABLE_PATH", "CHROME_PATH"),
    )
)
"""Compared in upper case: proxy variables exist in both cases."""
_PREFIXES = (
    "LC_",  # as LANG
    "XDG_",  # other places of configuration and caches
    "UV_",  # another package index or cache
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
"""npm reads every setting from the environment; the ones that hold logins are not inherited."""
_NPM = re.compile(r"npm_config_(\w+)", re.IGNORECASE)
_RELEVANT = re.compile(
    r"(NODE|NPM|PYTHON|PIP|UV|JAVA|JDK|GO|CARGO|RUST|DENO|BUN|DOCKER|PODMAN|DOTNET|RUBY|GEM|AWS|AZURE"
    r"|GCP|GOOGLE|KUBE\w*|GITHUB|GH|GITLAB|SLACK|NOTION|LINEAR|JIRA|ATLASSIAN|SENTRY|STRIPE|BRAVE"
    r"|TAVILY|EXA|FIRECRAWL|OPENAI|ANTHROPIC|HF|PG\w*|POSTGRES\w*|MYSQL|REDIS|MONGO\w*|DATABASE"
    r"|SSL|TLS|CA|PROXY|LD|DYLD)(_\w+)?|\w+_(API_KEY|TOKEN|PROXY|CA|CERT|CERTS|URL|HOST|DSN)"
)
"""Names that servers and their runtimes read."""


def is_inherited(name: str, value: str = "") -> bool:
    """Return whether a server inherits a variable that its configuration does not declare."""
    upper = name.upper()
    setting = _NPM.fullmatch(name)
    known = (
        upper in _NAMES or upper.startswith(_PREFIXES) or (setting is not None and setting[1].lower() in _NPM_SETTINGS)
    )
    if not known or (upper not in _NAMES and is_secret_name(name)):
        return False
    # Behind a proxy that wants a password, a server without it reaches nothing at all.
    return upper.endswith("_PROXY") or not holds_secret(value)


def child_environment(ours: Mapping[str, str], declared: Mapping[str, str]) -> dict[str, str]:
    """Build the environment of a server: inherited variables, and the ones that its configuration declares."""
    inherited = {name: value for name, value in ours.items() if is_inherited(name, value)}
    return {**inherited, **declared}


def find_withheld(ours: Mapping[str, str], declared: Mapping[str, str], output: str = "") -> list[str]:
    """Name the variables that a server did not inherit and that look relevant to it.

    Variables that the server mentions in its `output` come first: they are most likely the cause of a failure.
    """
    environment = child_environment(ours, declared)
    withheld = sorted(name for name in ours if name not in environment)
    mentioned = [name for name in withheld if re.search(rf"\b{re.escape(name)}\b", output)]
    likely = [name for name in withheld if _RELEVANT.fullmatch(name) and name not in mentioned]
    return [*(name for name in mentioned if len(name) > 1), *likely]
