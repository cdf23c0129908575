"""`webfetch` of a server of one's own: refused with a remedy, and the remedy works."""

from __future__ import annotations

import os
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.support.scripts import run

from induscode.launch.settings import user_settings_path

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.process


class _Page(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = b"hello from home"
        self.send_response(200)
        self.send_header("Content-Type", "text/plain")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def port() -> Iterator[int]:
    """Serve a page on this machine."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Page) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_finding_b9_what_webfetch_advises_for_loopback_works(host: str, port: int, tmp_path: Path) -> None:
    url = f"url=http://{host}:{port}/"
    refused = run("call", "webfetch", url, cwd=tmp_path)
    assert refused.returncode == 1
    flag = re.search(r"(--web-allow) '([^']+)'", refused.stdout)
    key = re.search(r"the setting `web\.(\w+)`", refused.stdout)
    assert flag is not None
    assert key is not None
    allowed = run("call", flag[1], flag[2], "webfetch", url, cwd=tmp_path)
    assert (allowed.returncode, "hello from home" in allowed.stdout) == (0, True), allowed
    path = Path(user_settings_path(os.environ))
    path.parent.mkdir(parents=True)
    path.write_text(f'{{"web": {{"{key[1]}": ["{flag[2]}"]}}}}', encoding="utf-8")
    assert "hello from home" in run("call", "webfetch", url, cwd=tmp_path).stdout
    other = run("call", "webfetch", f"url=http://{host}:{port + 1}/", cwd=tmp_path)
    assert other.returncode == 1
