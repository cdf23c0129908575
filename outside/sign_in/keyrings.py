"""A real Secret Service: gnome-keyring on a session bus of its own, and what happens when it goes away."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from anyio import to_thread

from outside.install import ROOT, CannotInstall

_SCRIPT = """
mkdir -p "$HOME/.local/share/keyrings"
printf secret | gnome-keyring-daemon --daemonize --unlock --components=secrets >/dev/null
exec "$0" -m outside.sign_in.keyrings
"""
_LIMIT_S = 120


async def check_secret_service() -> str | None:
    """Store, read and delete a sign-in in a keyring, and lose the keyring; return the problem.

    Raises:
        CannotInstall: A program is missing.
    """
    for program in ("dbus-run-session", "gnome-keyring-daemon"):
        if shutil.which(program) is None:
            raise CannotInstall(f"{program} is missing (Debian: apt install gnome-keyring dbus)")

    def run() -> str | None:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home:
            runtime = Path(home) / "run"
            runtime.mkdir(mode=0o700)
            environment = {"HOME": home, "XDG_RUNTIME_DIR": str(runtime), "PATH": "/usr/bin:/bin"}
            done = subprocess.run(
                ["dbus-run-session", "--", "sh", "-c", _SCRIPT, sys.executable],
                cwd=ROOT,
                env=environment,
                capture_output=True,
                text=True,
                timeout=_LIMIT_S,
                check=False,
            )
        return None if done.returncode == 0 else " ".join((done.stderr or done.stdout).split())[-400:]

    return await to_thread.run_sync(run)


async def _use_keyring() -> None:
    """Run inside the session bus: every place of a sign-in, from the best to the last."""
    import os  # noqa: PLC0415 — in the process of its own

    import pytest  # noqa: PLC0415 — in the process of its own
    from tests.support.credentials import ACCESS, KEY, make_credentials  # noqa: PLC0415 — in the process of its own

    from indusagi.interop.auth.contract import AuthFault  # noqa: PLC0415 — in the process of its own
    from indusagi.interop.auth.storage import CredentialFiles, find_keyring  # noqa: PLC0415 — in the process of its own

    keyring = find_keyring()
    assert keyring is not None, "no keyring was found"
    assert "SecretService" in keyring.name, keyring.name
    store = CredentialFiles(environ={})
    await store.save(make_credentials())
    (row,) = store.read_rows()
    assert row.file.vault == "keyring", row
    assert ACCESS not in row.file.secret
    assert await CredentialFiles(environ={}).find(KEY) == make_credentials()
    await store.delete(KEY)
    assert keyring.get(row.file.owner, "") is None
    await store.save(make_credentials())
    # The keyring goes away: the sign-in is told to be out of reach, and the next one is sealed, then plain.
    os.environ["DBUS_SESSION_BUS_ADDRESS"] = "unix:path=/nonexistent"
    sealed = CredentialFiles(environ={"INDUS_CREDENTIALS_KEY": "correct horse battery staple"})
    with pytest.raises(AuthFault, match="cannot be opened"):
        await sealed.find(KEY)
    for other, vault in ((sealed, "sealed"), (CredentialFiles(environ={}), "plain")):
        await other.save(make_credentials())
        (row,) = other.read_rows()
        assert row.file.vault == vault, row
        assert await other.find(KEY) == make_credentials()


if __name__ == "__main__":
    import anyio

    anyio.run(_use_keyring)
