"""Redirects of a sign-in: which one is the answer, and where a person may be sent."""

from __future__ import annotations

from typing import Any

import pytest

from indusagi.interop.auth.callback import read_redirect, read_state
from indusagi.interop.auth.contract import AuthFault
from indusagi.interop.auth.metadata import check_endpoint


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("/cb?code=c&state=s", {"code": "c", "state": "s"}),
        ("/cb?error=e&state=s&x=", {"error": "e", "state": "s", "x": ""}),
        ("http://localhost/cb?code=c&state=s", {"code": "c", "state": "s"}),
        ("/cb?state=s", None),
        ("/cb?code=c", None),
        ("/cb?code=c&state=", None),
        ("/cb?code=c&state=S", None),
        ("/cb?code=c&state=%FF", None),
        ("/cb?code=c&code=d&state=s", None),
        ("/other?code=c&state=s", None),
        ("/cb/?code=c&state=s", None),
        ("http://[/cb?code=c&state=s", None),
        ("/cb?code=c&state=s&" + "&".join(f"p{number}=1" for number in range(30)), "32 parameters"),
        ("/cb?code=c&state=s&" + "&".join(f"p{number}=1" for number in range(31)), None),
    ],
)
def test_only_one_redirect_is_the_answer(target: str, expected: Any) -> None:
    found = read_redirect(target, "/cb", "s")
    if expected == "32 parameters":
        assert found is not None
        assert len(found) == 32
    else:
        assert found == expected


@pytest.mark.parametrize(
    ("url", "is_fine"),
    [
        ("https://issuer.example/authorize?x=1", True),
        ("http://127.0.0.1:8080/a", True),
        ("http://[::1]/a", True),
        ("http://localhost/a", True),
        ("http://issuer.example/a", False),
        ("http://127.0.0.2/a", True),
        ("https:///a", False),
        ("https://issuer.example/a b", False),
        ("https://issuer.example/é", False),
        ("javascript:alert(1)", False),
        ("file:///etc/passwd", False),
        ("https://login.example/\x1b[2J", False),
        ("", False),
    ],
)
def test_a_person_is_sent_to_https_or_to_this_machine_alone(url: str, *, is_fine: bool) -> None:
    if is_fine:
        assert check_endpoint(url, "sign-in page", "it") == url
    else:
        with pytest.raises(AuthFault, match="it: its sign-in page is no https address"):
            check_endpoint(url, "sign-in page", "it")


def test_a_request_has_a_state() -> None:
    assert read_state("https://i/a?x=1&state=s") == "s"
    for url in ("https://i/a", "https://i/a?state=", "https://i/a#state=s"):
        with pytest.raises(AuthFault, match="the authorization request has no state"):
            read_state(url)
