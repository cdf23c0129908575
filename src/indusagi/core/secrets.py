"""What counts as a secret: names of variables, shapes of values, paths on disk, sockets. All guards use these.

The file tools refuse the paths, and sandboxed commands do not see them. We know a path by its name in the home or
configuration directory, or because an environment variable names it.

A `SecretText` holds references to secrets instead of their values. Values read for one are hidden from then on.
"""

from __future__ import annotations

import base64
import json
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, cast
from urllib.parse import quote, quote_plus

if TYPE_CHECKING:
    from indusagi.core.json import JsonValue

# -- references -------------------------------------------------------------------------------


SecretKind: TypeAlias = Literal["keyring", "file", "cmd"]
REFERENCE = r"\$\{(?:keyring|file|cmd):(?![-=?+]|\d+(?::-?\d+)?\})[^}]*\}"
"""A reference to a secret: `${keyring:NAME}`, `${file:PATH}`, `${cmd:COMMAND}`; but not a shell's `${file:-default}` or
`${cmd:0:3}`."""


class SecretReference(NamedTuple):
    """A secret that's read when it's used."""

    kind: SecretKind
    name: str
    """The name in the store, the path, or the command."""
    folder: str = ""
    """The directory that a relative path starts at."""

    @property
    def written(self) -> str:
        """The reference as written."""
        return f"${{{self.kind}:{self.name}}}"


class SecretText(str):
    """A text with references to secrets. As a string, it's the text as written.

    A copy made by a method of `str` has lost its references: it's sent as written, without a secret.
    """

    __slots__ = ("parts",)
    parts: tuple[str | SecretReference, ...]

    def __new__(cls, parts: Iterable[str | SecretReference]) -> SecretText:
        """Join literal texts and references."""
        kept = tuple(parts)
        self = super().__new__(cls, "".join(part if isinstance(part, str) else part.written for part in kept))
        self.parts = kept
        return self

    def __reduce__(self) -> tuple[type[SecretText], tuple[tuple[str | SecretReference, ...]]]:
        return SecretText, (self.parts,)

    @property
    def references(self) -> Iterator[SecretReference]:
        """Its references, in order."""
        return (part for part in self.parts if isinstance(part, SecretReference))


def parse_secret_text(text: str, folder: str = "") -> str:
    """Return a text as a `SecretText` if it has references, or unchanged."""
    parts = [parse_secret(part, folder) or part for part in re.split(f"({REFERENCE})", text)]
    return SecretText(parts) if len(parts) > 1 else text


def parse_secret(written: str, folder: str = "") -> SecretReference | None:
    """Parse a text that is one reference to a secret, or return `None`."""
    if re.fullmatch(REFERENCE, written) is None:
        return None
    kind, _, name = written[2:-1].partition(":")
    return SecretReference(cast("SecretKind", kind), name, folder)


def find_literal_host(url: str) -> str | None:
    """Return the host and port of a URL as written, or `None` if a reference to a secret may change it."""
    parts = url.parts if isinstance(url, SecretText) else (url,)
    marked = "".join(part if isinstance(part, str) else "\0" for part in parts)
    scheme, mark, rest = marked.partition("://")
    host = re.split(r"[/?#\\]", rest, maxsplit=1)[0].rpartition("@")[2]
    return host if mark and host and "\0" not in scheme + host else None


def find_references(value: object) -> Iterator[SecretReference]:
    """Yield the references in a text, or in the texts of a collection."""
    if isinstance(value, SecretText):
        yield from value.references
    elif isinstance(value, Mapping):
        yield from find_references([*cast("Mapping[Any, Any]", value).values()])
    elif isinstance(value, list | tuple):
        for member in cast("Iterable[object]", value):
            yield from find_references(member)


# -- names ------------------------------------------------------------------------------------


_WORDS = frozenset(
    (
        *("KEY", "KEYS", "APIKEY", "TOKEN", "TOKENS", "AUTH", "AUTHORIZATION", "CRED", "CREDS", "PASS", "PWD"),
        *("PW", "PSW", "PASSPHRASE", "PASSCODE", "PIN", "OTP", "TOTP", "BEARER", "COOKIE", "COOKIES", "DSN", "JWT"),
        *("PAT", "SALT", "SAS", "SEED", "MNEMONIC", "SESSIONID", "CVV"),
    )
)
"""Words of a name, between separators."""
_PIECES = re.compile(
    r"SECRET|PASSW(?:OR)?D|PASSPHRASE|PASSCODE|CREDENTIAL|(?:ACCESS|AUTH|BEARER)TOKEN|(?:API|ACCESS|ACCOUNT|AUTH|DEPLOY|ENCRYPTION|LICENSE|MASTER|PRIVATE|SHARED|SIGNING|SSH"
    r"|STORAGE)KEY|CONNECTIONSTR|CARDNUMBER|SESSION(?:ID|COOKIE)|COOKIEJAR"
)
"""Parts of a name after removing its separators."""
_PROVIDER_KEY = re.compile(
    r"(ANTHROPIC|OPENAI|AZURE_OPENAI|GEMINI|GOOGLE_(AI|API|GENERATIVE)|MISTRAL|GROQ|COHERE|XAI|DEEPSEEK"
    r"|OPENROUTER|TOGETHER|FIREWORKS|PERPLEXITY|CEREBRAS|HUGGINGFACE|HF|INDUS\w*)_.*(KEY|TOKEN|SECRET)"
)
_HARMLESS = re.compile(
    r"PWD|OLDPWD|SSH_AUTH_SOCK|SSH_TTY|GPG_TTY|XDG_\w+|(?:UV|PIP)_KEYRING_PROVIDER|AWS_(?:DEFAULT_)?REGION|AWS_PAGER"
)
"""Exceptions: `SSH_AUTH_SOCK` is a socket, covered by `find_socket_variables`."""
_USUALLY_SECRET = re.compile(
    r"SESSION|PRIVATE|SIGNING|LOGIN|CERT|WEBHOOK|NETRC|KUBECONFIG|(?:^|_)PEM(?:_|$)"
    r"|(?:^|_)(?:DATABASE|DB|POSTGRES\w*|PG|MYSQL|MARIADB|REDIS|MONGO\w*|AMQP|RABBITMQ|BROKER|ELASTIC\w*|SMTP|MAILER)"
    r"_(?:URL|URI)(?:_|$)"
    r"|^(?:AWS|AZURE|ARM|GOOGLE|GCP|GCLOUD|CLOUDFLARE|CF|DIGITALOCEAN|DO|HCLOUD|OCI|VAULT|HEROKU|SSH|GPG|TF_VAR)_"
)
"""Names that often hold a secret, for use when the value is unknown."""


def is_secret_name(name: str) -> bool:
    """Return whether something with this name holds a secret, whatever its value."""
    upper = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).upper()
    if _HARMLESS.fullmatch(upper):
        return False
    words = re.split(r"[^A-Z0-9]+", upper)
    return (
        not _WORDS.isdisjoint(words)
        or any(word.endswith("TOKEN") for word in words)
        or _PIECES.search("".join(words)) is not None
        or is_provider_key(name)
    )


def is_secret(name: str, value: str) -> bool:
    """Return whether a variable is a secret, judging by its name or value."""
    return is_secret_name(name) or holds_secret(value)


def looks_secret(name: str) -> bool:
    """Return whether a variable of this name usually holds a secret, for use when its value is unknown."""
    upper = name.upper()
    return is_secret_name(name) or (not _HARMLESS.fullmatch(upper) and _USUALLY_SECRET.search(upper) is not None)


def is_plain_secret(name: str, value: str) -> bool:
    """Return whether a value is a secret, and not a path, number or placeholder under a secret's name."""
    if holds_secret(value):
        return True
    if not is_secret_name(name) or _NO_SECRET.fullmatch(value.strip()):
        return False
    return len(value) >= _MIN_KNOWN_CHARS if asks_for_secret(name) else len(value) >= _MIN_ENCODED_CHARS


_NO_SECRET = re.compile(
    r"(?i)[~.]?/.*|[a-z]:\\.*|https?://.*|[\d.]+|<.*>|\[.*\]|\{.*\}|x{3,}|\*{3,}|.*\.{3}|change[-_ ]?me"
    r"|(?:your|my|enter|insert|replace|paste)[-_ ].*|[a-z]+(?:[-_][a-z]+)*"
)
"""Paths, addresses, numbers, placeholders and words."""


def asks_for_secret(text: str) -> bool:
    """Return whether a form field's name and label certainly ask for a secret; "issue key" doesn't."""
    words = re.split(r"[^A-Z0-9]+", text.upper())
    return "CVV" in words or _PIECES.search("".join(words)) is not None


def is_provider_key(name: str) -> bool:
    """Return whether a variable is a model provider's key, which no command ever inherits."""
    return _PROVIDER_KEY.fullmatch(name.upper()) is not None


# -- patterns ---------------------------------------------------------------------------------


REDACTED = "…"
"""Replaces a secret."""
_MIN_KNOWN_CHARS = 4
"""Shorter values occur in any text by chance, and can be guessed."""
_MIN_LINE_CHARS = 16
_known: tuple[str, ...] = ()
"""The values behind references in the forms a text may quote them in, longest first."""

_SHAPES: tuple[tuple[tuple[str, ...], str], ...] = (
    # The password in a URL, or its user if that's the token: `https://ghp_…@host`.
    (("://",), r"(?<=://)[^\s/?#@'\"<>:]*:[^\s/@'\"<>]+(?=@)|(?i:(?<=http://)|(?<=https://))[^\s/?#@:'\"<>]+(?=@)"),
    # The password in a Go driver's data source name: `user:password@tcp(host)/database`.
    (("@tcp(", "@unix("), r"(?<=:)[^\s:@/]+(?=@(?:tcp|unix)\()"),
    (("PRIVATE KEY",), r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----(?s:.*?)(?:-----END [A-Z0-9 ]+-----|\Z)"),
    # A key with its beginning cut off.
    (("PRIVATE KEY",), r"(?m:^)(?:[A-Za-z0-9+/]{40,}\s+)*[A-Za-z0-9+/=]*\s+-----END [A-Z0-9 ]*PRIVATE KEY-----"),
    (("AGE-SECRET-KEY",), r"\bAGE-SECRET-KEY-1[A-Z0-9]{30,}"),
    (("sk", "pk", "rk"), r"\b(?:sk|pk|rk)[-_][A-Za-z0-9_-]{16,}"),  # OpenAI, Anthropic, Stripe
    (("ghp_", "gho_", "ghu_", "ghs_", "ghr_"), r"\bgh[pousr]_[A-Za-z0-9]{20,}"),
    (("github_pat_",), r"\bgithub_pat_\w{20,}"),
    (("gl",), r"\bgl(?:pat|dt|rt|ptt|soat|cbt|ft|imt|agent|oas)-[\w-]{16,}"),
    (("xox", "xapp-"), r"\b(?:xox[a-z]|xapp)-[\w-]{10,}"),
    (("hooks.slack.com/",), r"(?<=hooks\.slack\.com/)[\w/-]{10,}"),
    (("discord",), r"(?<=/api/webhooks/)[\w/-]{10,}"),
    (("AKIA", "ASIA", "AROA", "AIDA"), r"\bA(?:KIA|SIA|ROA|IDA)[0-9A-Z]{16}\b"),
    (("AIza", "ya29.", "GOCSPX-"), r"\b(?:AIza[\w-]{30,}|ya29\.[\w-]{20,}|GOCSPX-[\w-]{20,})"),
    (("eyJ",), r"\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*"),  # a JSON Web Token
    (("indus_",), r"\bindus_[A-Za-z0-9]{40,}"),  # ours
    (("npm_", "pypi-"), r"\bnpm_[A-Za-z0-9]{30,}|\bpypi-[\w-]{40,}"),
    (("dckr_", "rubygems_"), r"\bdckr_(?:pat|oat)_[\w-]{20,}|\brubygems_[0-9a-f]{40,}"),
    (("hf_", "gsk_", "xai-", "r8_"), r"\b(?:hf_|gsk_|xai-|r8_)[A-Za-z0-9]{24,}"),
    (("tvly-", "PMAK-", "SG."), r"\btvly-[\w-]{20,}|\bPMAK-[\w-]{20,}|\bSG\.[\w-]{16,}\.[\w-]{16,}"),
    (("dop_v1_", "shp"), r"\bdop_v1_[0-9a-f]{40,}|\bshp(?:at|ca|pa|ss)_[0-9a-fA-F]{20,}"),
    (("hvs.", "hvb.", "hvr."), r"\bhv[bsr]\.[\w-]{20,}"),
    (("lin_", "ntn_", "secret_"), r"\blin_(?:api|oauth)_[A-Za-z0-9]{20,}|\b(?:ntn|secret)_[A-Za-z0-9]{30,}"),
    (("sntry", "ATATT3"), r"\bsntry[su]_[\w=+/.-]{20,}|\bATATT3[\w=-]{20,}"),
    (("glsa_", "glc_", "figd_"), r"\bgl(?:sa|c)_[\w=+/]{20,}|\bfigd_[\w-]{20,}"),  # Grafana, Figma
    (("tskey-", "dapi", "pplx-"), r"\btskey-[\w-]{16,}|\bdapi[0-9a-f]{32}|\bpplx-[A-Za-z0-9]{24,}"),
    (("sbp_", "whsec_", "sgp_", "pscale_"), r"\b(?:sbp_|whsec_|sgp_|pscale_(?:tkn|oauth|pw)_)[\w+/=-]{20,}"),
    (("NRAK-", "sq0", "dp."), r"\bNRAK-[A-Z0-9]{20,}|\bsq0[a-z]{3}-[\w-]{20,}|\bdp\.[a-z]{2,5}\.\w{30,}"),
    (("ops_eyJ", "ATBB"), r"\bops_eyJ[\w=-]{20,}|\bATBB\w{24,}"),
    (("SU", "SA", "SO", "SN", "SC"), r"\bS[ACNOU][A-Z2-7]{56}\b"),  # the seed of a NATS key
    ((":AA",), r"\b\d{8,10}:AA[\w-]{30,}"),  # a Telegram bot
    (
        ("earer", "EARER", "asic ", "ASIC "),
        r"(?i:(?<=bearer\s)|(?<=basic\s))\s*(?!(?i:auth|token|scheme|realm|cred|chall|head))"
        r"[\w.~+/=-]{8,}",
    ),
)
"""Substrings without which the pattern can't match, and the pattern, which matches only the secret."""

_ASSIGNED = (
    # `PASSWORD=hunter2`, `"api_key": "abc"`, `?sig=…`. After a colon, words stay readable, as in `token: expired`.
    r"(?:password|passwd|passphrase|passcode|secret|token|credentials?|connection[_-]?string|authorization"
    r"|(?:api|access|account|auth|private|secret|signing|encryption|master|deploy)[_-]?key"
    r"|(?<![a-z])(?:pass|pwd|pw|pat|sig|signature|cookie|jwt|sid))"
    r"(?:[_-](?:id|value|key|base64))?[\"']?\s*(?:=\s*[\"']?|:\s*[\"']|:(?!-)\s*(?=[^\s\"']*[0-9!#$%^*+/=]))"
    r"(?P<value>(?!\s*(?:null|none|true|false|undefined|required|missing|unset|\d{1,6})\b)[^\s\"'&;,<>(){}\[\]…]{4,})"
)
_OPTION = r"(?i)(--[\w-]*(?:password|passwd|passphrase|token|secret|key|credentials?|pat|pw)\s+)(?!-)[^\s\"',;)]{4,}"
_ASSIGNED_WORDS = (
    "pass", "pw", "secret", "token", "cred", "key", "string", "auth", "pat", "sig", "cookie", "jwt", "sid",
)  # fmt: skip


def is_distinct(value: str) -> bool:
    """Return whether a secret is unlikely to be data, too: "postgres" and "created_at" may be."""
    return len(value) >= _DISTINCT_CHARS and re.search(r"\d", value) is not None


_DISTINCT_CHARS = 12
_HTML = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})
_QUOTES = str.maketrans({'"': "&quot;", "'": "&#x27;"})
_MIN_ENCODED_CHARS = 8
"""The base64 of shorter values occurs by chance."""


def list_spellings(value: str) -> set[str]:
    """Return the forms of a secret in a text: plain, escaped in JSON, Python or HTML, percent-encoded, hex, base64."""
    escaped = {value, json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1], repr(value)[1:-1]}
    escaped |= {
        quote(value),
        quote(value, safe=""),
        quote_plus(value),
        value.translate(_HTML | _QUOTES),
        value.translate(_HTML),
    }
    escaped |= {re.sub("%..", lambda found: found[0].lower(), text) for text in escaped if "%" in text}
    data = value.encode("utf-8", "surrogatepass")
    if len(data) < _MIN_ENCODED_CHARS:
        return escaped
    # Base64 of a text around the value: the characters that depend on the value alone, wherever it starts.
    for shift in range(3):
        encoded = base64.b64encode(bytes(shift) + data).decode("ascii")[(0, 2, 3)[shift] : (shift + len(data)) * 8 // 6]
        escaped |= {encoded, encoded.replace("+", "-").replace("/", "_")}
    return escaped | {data.hex(), data.hex().upper()}


def holds_secret(text: str) -> bool:
    """Return whether a value looks like a secret or contains one, such as a URL with a password."""
    return hide_secrets(text) != text


def hide_in_json(value: JsonValue, hide: Callable[[str], str]) -> JsonValue:
    """Replace what `hide` finds in every text of a JSON value, and values whose name says that they're secret."""
    if isinstance(value, str):
        return hide(value)
    if isinstance(value, list):
        return [hide_in_json(item, hide) for item in value]
    if isinstance(value, dict):
        return {
            hide(name): REDACTED
            if is_secret_name(name) and isinstance(inner, str | int | float) and not isinstance(inner, bool)
            else hide_in_json(inner, hide)
            for name, inner in value.items()
        }
    return value


def hide_value(value: str) -> None:
    """Have `hide_secrets` replace a value from now on, in all its spellings, and its long lines alone."""
    global _known
    if value in _known:
        return
    lines = [line for line in value.splitlines() if len(line) >= _MIN_LINE_CHARS]
    texts = {text for text in (value, value.strip(), *lines) if len(text) >= _MIN_KNOWN_CHARS}
    forms = {form for text in texts for form in list_spellings(text)}
    _known = tuple(sorted({*_known, *forms}, key=len, reverse=True))


def quotes_value(text: str) -> bool:
    """Return whether a text contains the value behind a reference."""
    return any(form in text for form in _known)


def hide_secrets(text: str) -> str:
    """Replace the values behind references, and secrets of known shapes; the text around them stays readable."""
    for form in _known:
        text = text.replace(form, REDACTED)
    for needles, pattern in _SHAPES:
        if any(needle in text for needle in needles):
            text = re.sub(pattern, REDACTED, text)
    if "=" in text or ":" in text:
        lower = text.lower()
        if any(word in lower for word in _ASSIGNED_WORDS):
            text = re.sub(_ASSIGNED, lambda found: found[0].removesuffix(found["value"]) + REDACTED, text, flags=re.I)
    return re.sub(_OPTION, rf"\1{REDACTED}", text) if "--" in text else text


URL = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*://)(?P<rest>[^\s'\"<>]+)")


def hide_in_urls(text: str) -> str:
    """Replace the user info and query of every URL in a text (RFC 3986 §3), and remove fragments."""
    return URL.sub(_strip_url, text)


def _strip_url(match: re.Match[str]) -> str:
    rest = match["rest"]
    authority, slash, path = rest.partition("/")
    before, _, query = path.partition("?")
    authority, _, bare_query = authority.partition("?")
    user, at, host = authority.rpartition("@")
    shown = f"{REDACTED}@{host}" if at and user else host
    hidden = f"?{REDACTED}" if query or bare_query else ""
    return f"{match['scheme']}{shown}{slash}{before.partition('#')[0]}{hidden}"


# -- places -----------------------------------------------------------------------------------------


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
_NAMED_WHOLE = (
    "AWS_SHARED_CREDENTIALS_FILE AWS_CONFIG_FILE AWS_WEB_IDENTITY_TOKEN_FILE AZURE_CONFIG_DIR BOTO_CONFIG"
    " BUNDLE_USER_CONFIG CLOUDSDK_CONFIG CODEX_HOME DOCKER_CERT_PATH DOCKER_CONFIG GH_CONFIG_DIR GNUPGHOME"
    " GOOGLE_APPLICATION_CREDENTIALS HF_TOKEN_PATH HISTFILE KRB5CCNAME KUBECONFIG LESSHISTFILE MYSQL_HISTFILE NETRC"
    " NPM_CONFIG_USERCONFIG npm_config_userconfig PASSWORD_STORE_DIR PGPASSFILE PGSERVICEFILE PIP_CONFIG_FILE"
    " PSQL_HISTORY PYTHON_HISTORY RCLONE_CONFIG REGISTRY_AUTH_FILE SOPS_AGE_KEY_FILE TF_CLI_CONFIG_FILE"
    " VAULT_TOKEN_FILE XAUTHORITY"
)
_NAMED_BY = {
    **dict.fromkeys(_NAMED_WHOLE.split(), ""),
    "CARGO_HOME": "credentials credentials.toml",
    "CLAUDE_CONFIG_DIR": ".credentials.json .claude.json",
    "HF_HOME": "token stored_tokens",
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
    *("/run/user", "/run/dbus", "/run/systemd/private", "/run/docker.sock", "/run/docker", "/run/containerd"),
    *("/run/podman", "/run/crio", "/run/buildkit", "/run/snapd.socket", "/run/libvirt", "/run/screen", "/run/tmux"),
    *("/run/pcscd", "/var/lib/lxd/unix.socket", "/var/snap/lxd/common/lxd/unix.socket"),
    *("/var/lib/incus/unix.socket", "/tmp/.X11-unix", "/tmp/.ICE-unix"),
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
        path = part[start:]
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
