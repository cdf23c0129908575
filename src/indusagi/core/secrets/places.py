"""Locations of credentials on disk, and sockets of services that act outside of any sandbox.

The file tools refuse these paths, and sandboxed commands don't see them. We know a path by its name in the home or
configuration directory, or because an environment variable names it.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_IN_HOME = (
    # Keys and logins.
    ".ssh .gnupg .netrc .authinfo .authinfo.gpg .git-credentials .password-store .local/share/keyrings"
    " .local/share/kwalletd .local/share/gopass .pki .putty .vnc .Xauthority .ICEauthority Library/Keychains .1password"
    " .env .env.local .curlrc .wgetrc .lftp .msmtprc .fetchmailrc .subversion/auth .hgrc .smbcredentials .vault_pass"
    # Clouds and clusters.
    " .aws .azure .kube .minikube .docker .oci .boto .s3cfg .bluemix .aliyun .fly/config.yml .railway/config.json"
    " .pulumi/credentials.json .vault-token .terraform.d .terraformrc .chef .rancher .local/share/com.vercel.cli"
    " .wrangler .modal.toml .supabase .colima .lima .rd/docker.sock .orbstack/run"
    # Package registries and databases.
    " .npmrc .yarnrc .yarnrc.yml .bunfig.toml .pypirc .pip .condarc .cargo/credentials .cargo/credentials.toml"
    " .gem/credentials .bundle/config .m2/settings.xml .m2/settings-security.xml .gradle/gradle.properties"
    " .sbt/.credentials .ivy2/.credentials .composer/auth.json .nuget/NuGet/NuGet.Config .hex/hex.config"
    " .pgpass .pg_service.conf .my.cnf .mylogin.cnf .dbshell .cassandra .kaggle .huggingface .cache/huggingface/token"
    " .cache/huggingface/stored_tokens .jupyter .local/share/jupyter/runtime"
    # Assistants, with keys in their server configuration.
    " .claude.json .claude/.credentials.json .codex/auth.json .codex/config.toml .gemini/oauth_creds.json"
    " .gemini/settings.json .cursor/mcp.json .codeium/windsurf/mcp_config.json .local/share/opencode/auth.json"
    " .indusvx/mcp.json .indus/mcp.json .continue/config.json .continue/config.yaml .continue/.env"
    # Browsers and mail: cookies and saved passwords.
    " .mozilla .thunderbird .librewolf .zen .waterfox .var/app snap/firefox snap/chromium snap/brave snap/thunderbird"
    " Library/Cookies Library/Safari Library/Application\0Support/Google Library/Application\0Support/Firefox"
    " Library/Application\0Support/BraveSoftware Library/Application\0Support/Microsoft\0Edge"
    " Library/Application\0Support/Arc Library/Application\0Support/Claude .local/share/TelegramDesktop"
    " .local/share/remmina .local/share/evolution"
    # Histories: passwords typed by mistake, commands with tokens.
    " .bash_history .zsh_history .zhistory .histfile .history .sh_history .ash_history .ksh_history .tcsh_history"
    " .local/share/fish/fish_history .python_history .node_repl_history .irb_history .psql_history .mysql_history"
    " .sqlite_history .rediscli_history .mongo_history .mongosh .lesshst .viminfo .local/share/atuin .zsh_sessions"
    " .bash_sessions .local/state/zsh .local/state/bash .local/state/python_history"
    # Wallets.
    " .electrum .bitcoin .ethereum .solana"
)
"""Relative to the home directory; `\\0` stands for a space."""
_IN_CONFIG = (
    "gcloud gh glab-cli hub op 1Password rclone doctl containers git/credentials heroku netlify hcloud scw linode-cli"
    " ngrok stripe Bitwarden Bitwarden\0CLI keepassxc sops argocd helm pip pypoetry/auth.toml composer/auth.json NuGet"
    " hg gopass age filezilla remmina freerdp putty solana wandb goose configstore github-copilot kwalletrc"
    " indusvx/mcp.json indus/mcp.json Claude/claude_desktop_config.json zed/settings.json Code/User/mcp.json"
    " google-chrome google-chrome-beta chromium BraveSoftware microsoft-edge vivaldi opera Signal discord Slack"
    " session Element evolution"
)
"""Relative to the configuration directory."""
_NAMED_BY = {
    "AWS_SHARED_CREDENTIALS_FILE": "",
    "AWS_CONFIG_FILE": "",
    "AWS_WEB_IDENTITY_TOKEN_FILE": "",
    "AZURE_CONFIG_DIR": "",
    "BOTO_CONFIG": "",
    "BUNDLE_USER_CONFIG": "",
    "CARGO_HOME": "credentials credentials.toml",
    "CLOUDSDK_CONFIG": "",
    "CODEX_HOME": "",
    "CLAUDE_CONFIG_DIR": ".credentials.json .claude.json",
    "DOCKER_CERT_PATH": "",
    "DOCKER_CONFIG": "",
    "GH_CONFIG_DIR": "",
    "GNUPGHOME": "",
    "GOOGLE_APPLICATION_CREDENTIALS": "",
    "HF_HOME": "token stored_tokens",
    "HF_TOKEN_PATH": "",
    "HISTFILE": "",
    "KRB5CCNAME": "",
    "KUBECONFIG": "",
    "LESSHISTFILE": "",
    "MYSQL_HISTFILE": "",
    "NETRC": "",
    "NPM_CONFIG_USERCONFIG": "",
    "npm_config_userconfig": "",
    "PASSWORD_STORE_DIR": "",
    "PGPASSFILE": "",
    "PGSERVICEFILE": "",
    "PIP_CONFIG_FILE": "",
    "PSQL_HISTORY": "",
    "PYTHON_HISTORY": "",
    "RCLONE_CONFIG": "",
    "REGISTRY_AUTH_FILE": "",
    "SOPS_AGE_KEY_FILE": "",
    "TF_CLI_CONFIG_FILE": "",
    "VAULT_TOKEN_FILE": "",
    "XAUTHORITY": "",
    "ZDOTDIR": ".zsh_history .histfile",
}
"""Variables that name a file or directory of credentials, with the names in it if only those are secret."""
_SYSTEM = (
    "/etc/shadow /etc/shadow- /etc/gshadow /etc/gshadow- /etc/sudoers /etc/sudoers.d /etc/krb5.keytab /etc/ssl/private"
    " /etc/wireguard /etc/openvpn /etc/NetworkManager/system-connections /etc/rancher /etc/kubernetes /run/secrets"
    " /var/run/secrets /run/credentials /var/lib/docker /var/lib/containerd /var/lib/kubelet"
)
"""Readable for root or in a container."""

SOCKETS = (
    "/run/user",
    "/run/dbus",
    "/run/systemd/private",
    "/run/docker.sock",
    "/run/docker",
    "/run/containerd",
    "/run/podman",
    "/run/crio",
    "/run/buildkit",
    "/run/snapd.socket",
    "/run/libvirt",
    "/run/screen",
    "/run/tmux",
    "/run/pcscd",
    "/var/lib/lxd/unix.socket",
    "/var/snap/lxd/common/lxd/unix.socket",
    "/var/lib/incus/unix.socket",
    "/tmp/.X11-unix",
    "/tmp/.ICE-unix",
)
"""Sockets, and directories of sockets, of services that run programs, hold keys or see the screen."""
_SOCKET_DIRECTORIES = ("XDG_RUNTIME_DIR", "TMUX_TMPDIR", "SCREENDIR")
_SOCKET_TABLE = "/proc/net/unix"
"""All bound sockets of the network namespace, with the path in the last column (unix(7), proc(5))."""
_PATH_COLUMN = 7
_SETTLED_S = 1.0
"""Younger sockets come and go: bubblewrap can't cover a path that has just vanished."""


def find_credential_places(environ: Mapping[str, str], home: str) -> Iterator[str]:
    """Yield the absolute paths of credential files and directories, whether they exist or not."""
    if os.path.isabs(home):
        yield from _join_all(home, _IN_HOME)
        for folder in dict.fromkeys((os.path.join(home, ".config"), environ.get("XDG_CONFIG_HOME", ""))):
            if os.path.isabs(folder):
                yield from _join_all(folder, _IN_CONFIG)
    for variable, below in _NAMED_BY.items():
        for path in environ.get(variable, "").removeprefix("FILE:").split(os.pathsep):
            path = os.path.normpath(os.path.expanduser(path))
            if os.path.isabs(path) and below:
                yield from _join_all(path, below)
            elif os.path.isabs(path) and path not in {home, *_NEVER_HIDDEN}:
                yield path
    yield from _SYSTEM.split()


_NEVER_HIDDEN = ("/", "/dev/null", "/tmp", "/etc", "/usr", "/home", "/root", "/var")
"""Values such as `HISTFILE=/dev/null`: hiding them would break every command."""


def _join_all(folder: str, names: str) -> Iterator[str]:
    for name in names.split(" "):
        yield os.path.join(folder, name.replace("\0", " "))


def find_socket_places(environ: Mapping[str, str]) -> Iterator[str]:
    """Yield the sockets that a sandboxed command mustn't reach: known ones, and those named by variables."""
    yield from SOCKETS
    for name in _SOCKET_DIRECTORIES:
        path = os.path.normpath(environ.get(name, ""))
        if os.path.isabs(path) and path not in _NEVER_HIDDEN:
            yield path
    for value in environ.values():
        yield from find_named_sockets(value)


def find_named_sockets(value: str) -> Iterator[str]:
    """Yield the sockets in values like `unix:///run/docker.sock`, `unix:path=/run/bus,guid=1`, `/tmp/tmux/0,12,0`."""
    for part in value.replace(";", ",").split(","):
        start = part.find("/")
        if start < 0 or (start and part[start - 1] not in ":=@"):
            continue
        path = "/" + part[start:].lstrip("/")
        # gpg-agent's variable continues after the path: `/run/gpg/S.gpg-agent:0:1`.
        yield from (one for one in dict.fromkeys((path, path.partition(":")[0])) if _stat_socket(one) is not None)


def find_sockets_of_user(now_s: float) -> Iterator[str]:
    """Yield the paths of this user's bound sockets."""
    try:
        with open(_SOCKET_TABLE, encoding="utf-8", errors="surrogateescape") as table:
            rows = table.read().splitlines()[1:]
    except OSError:  # not Linux, or a container without /proc
        return
    for row in rows:
        path = row.split(maxsplit=_PATH_COLUMN)[-1]
        status = _stat_socket(path) if path.startswith("/") else None
        if status is not None and status.st_uid == os.geteuid() and status.st_mtime <= now_s - _SETTLED_S:
            yield path


def _stat_socket(path: str) -> os.stat_result | None:
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    return status if stat.S_ISSOCK(status.st_mode) else None
