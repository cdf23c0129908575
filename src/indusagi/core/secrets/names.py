"""Names of variables, options, headers and form fields that hold secrets."""

from __future__ import annotations

import re

from indusagi.core.secrets.patterns import holds_secret

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
"""Parts of a name with its separators removed."""
_PROVIDER_KEY = re.compile(
    r"(ANTHROPIC|OPENAI|AZURE_OPENAI|GEMINI|GOOGLE_(AI|API|GENERATIVE)|MISTRAL|GROQ|COHERE|XAI|DEEPSEEK"
    r"|OPENROUTER|TOGETHER|FIREWORKS|PERPLEXITY|CEREBRAS|HUGGINGFACE|HF|INDUS\w*)_.*(KEY|TOKEN|SECRET)"
)
_HARMLESS = re.compile(
    r"PWD|OLDPWD|SSH_AUTH_SOCK|SSH_TTY|GPG_TTY|XDG_\w+|(?:UV|PIP)_KEYRING_PROVIDER|AWS_(?:DEFAULT_)?REGION|AWS_PAGER"
)
"""Exceptions: `SSH_AUTH_SOCK` is a socket, which `find_socket_variables` knows."""
_USUALLY_SECRET = re.compile(
    r"SESSION|PRIVATE|SIGNING|LOGIN|CERT|WEBHOOK|NETRC|KUBECONFIG|(?:^|_)PEM(?:_|$)"
    r"|(?:^|_)(?:DATABASE|DB|POSTGRES\w*|PG|MYSQL|MARIADB|REDIS|MONGO\w*|AMQP|RABBITMQ|BROKER|ELASTIC\w*|SMTP|MAILER)"
    r"_(?:URL|URI)(?:_|$)"
    r"|^(?:AWS|AZURE|ARM|GOOGLE|GCP|GCLOUD|CLOUDFLARE|CF|DIGITALOCEAN|DO|HCLOUD|OCI|VAULT|HEROKU|SSH|GPG|TF_VAR)_"
)
"""Names that often come with a secret, for places where the value is unknown."""


def is_secret_name(name: str) -> bool:
    """Tell whether something of this name holds a secret, whatever its value."""
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
    """Tell whether a variable is a secret, by its name or its value."""
    return is_secret_name(name) or holds_secret(value)


def looks_secret(name: str) -> bool:
    """Tell whether a variable of this name usually holds a secret, where its value is unknown."""
    upper = name.upper()
    return is_secret_name(name) or (not _HARMLESS.fullmatch(upper) and _USUALLY_SECRET.search(upper) is not None)


def asks_for_secret(text: str) -> bool:
    """Tell whether the name and label of a form field certainly ask for a secret; "issue key" doesn't."""
    words = re.split(r"[^A-Z0-9]+", text.upper())
    return "CVV" in words or _PIECES.search("".join(words)) is not None


def is_provider_key(name: str) -> bool:
    """Tell whether a variable is the key of a model provider, which no command ever inherits."""
    return _PROVIDER_KEY.fullmatch(name.upper()) is not None


def _split_camel_case(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)
