"""Names of variables, options, headers and form fields that hold secrets."""

from __future__ import annotations

import re

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
    upper = _split_camel_case(name).upper()
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


def asks_for_secret(text: str) -> bool:
    """Return whether a form field's name and label certainly ask for a secret; "issue key" doesn't."""
    words = re.split(r"[^A-Z0-9]+", text.upper())
    return "CVV" in words or _PIECES.search("".join(words)) is not None


def is_provider_key(name: str) -> bool:
    """Return whether a variable is a model provider's key, which no command ever inherits."""
    return _PROVIDER_KEY.fullmatch(name.upper()) is not None


def _split_camel_case(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)


# -- patterns ---------------------------------------------------------------------------------


REDACTED = "…"
"""Replaces a secret."""

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


def holds_secret(text: str) -> bool:
    """Return whether a value looks like a secret or contains one, such as a URL with a password."""
    return hide_secrets(text) != text


def hide_secrets(text: str) -> str:
    """Replace secrets of known shapes; the text around them stays readable."""
    for needles, pattern in _SHAPES:
        if any(needle in text for needle in needles):
            text = re.sub(pattern, REDACTED, text)
    if "=" in text or ":" in text:
        lower = text.lower()
        if any(word in lower for word in _ASSIGNED_WORDS):
            text = re.sub(_ASSIGNED, _hide_value, text, flags=re.IGNORECASE)
    return re.sub(_OPTION, rf"\1{REDACTED}", text) if "--" in text else text


def _hide_value(match: re.Match[str]) -> str:
    return match[0].removesuffix(match["value"]) + REDACTED
