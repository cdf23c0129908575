"""What a server inherits of our environment."""

from __future__ import annotations

import pytest

from indusagi.interop.protocol_bridge.client.stdio import child_environment, find_withheld, is_inherited


@pytest.mark.parametrize(
    "name",
    [
        "PATH",
        "HOME",
        "LANG",
        "LC_ALL",
        "TZ",
        "TMPDIR",
        "SSL_CERT_FILE",
        "SSL_CERT_DIR",
        "REQUESTS_CA_BUNDLE",
        "CURL_CA_BUNDLE",
        "NODE_EXTRA_CA_CERTS",
        "NODE_USE_SYSTEM_CA",
        "HTTP_PROXY",
        "https_proxy",
        "NO_PROXY",
        "all_proxy",
        "npm_config_registry",
        "NPM_CONFIG_REGISTRY",
        "npm_config_userconfig",
        "npm_config_cache",
        "UV_INDEX_URL",
        "UV_CACHE_DIR",
        "UV_KEYRING_PROVIDER",
        "PIP_INDEX_URL",
        "PIP_CERT",
        "XDG_CACHE_HOME",
        "XDG_RUNTIME_DIR",
        "NVM_DIR",
        "PYENV_ROOT",
        "VOLTA_HOME",
        "DOCKER_HOST",
        "GOPROXY",
        "DISPLAY",
    ],
)
def test_finding_b6_what_a_network_a_language_or_a_package_manager_needs_is_passed_on(name: str) -> None:
    assert child_environment({name: "x"}, {}) == {name: "x"}


@pytest.mark.parametrize(
    "name",
    [
        "GITHUB_TOKEN",
        "OPENAI_API_KEY",
        "AWS_SECRET_ACCESS_KEY",
        "npm_config__authToken",
        "npm_config__auth",
        "NPM_TOKEN",
        "NPM_CONFIG__PASSWORD",
        "UV_PUBLISH_TOKEN",
        "UV_INDEX_PRIVATE_PASSWORD",
        "PIP_PASSWORD",
        "DATABASE_URL",
        "LD_PRELOAD",
        "NODE_OPTIONS",
        "PYTHONPATH",
        "SSH_AUTH_SOCK",
        "EDITOR",
        "npm_config_otp",
    ],
)
def test_finding_b6_no_secret_and_nothing_that_changes_what_runs_is_passed_on(name: str) -> None:
    assert child_environment({name: "x"}, {}) == {}
    assert child_environment({name: "x"}, {name: "y"}) == {name: "y"}


def test_setting_with_a_token_is_a_secret() -> None:
    assert not is_inherited("UV_FIND_LINKS", "https://ghp_abcdefghijklmnopqrstuvwxyz0123@host/")


def test_finding_b6_what_was_withheld_and_may_matter_is_named_the_mentioned_first() -> None:
    ours = {
        "PATH": "x",
        "EDITOR": "vi",
        "BRAVE_API_KEY": "secret",
        "GITHUB_TOKEN": "secret",
        "MY_SETTING": "x",
        "NODE_OPTIONS": "x",
        "GIVEN_TOKEN": "x",
        "_": "x",
    }
    withheld = find_withheld(ours, {"GIVEN_TOKEN": "y"}, "Error: MY_SETTING is not set _ ")
    assert withheld == ["MY_SETTING", "BRAVE_API_KEY", "GITHUB_TOKEN", "NODE_OPTIONS"]
