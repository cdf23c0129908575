"""What hostile servers attempt, and where each attempt succeeds: one table for the tests and for their page.

`python -m tests.support.hostile` writes the page, docs/evidence/hostile-servers.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tests.support.scripts import ROOT

PAGE: Final = ROOT / "docs" / "evidence" / "hostile-servers.md"
RUNS: Final = ("off", "standard", "strict", "landlock")
_BEGIN, _END = "<!-- attempts -->\n", "<!-- end of attempts -->"


@dataclass(frozen=True)
class Attempt:
    """One thing that the server in `tests/servers/hostile.py` tries."""

    probe: str
    arguments: tuple[object, ...] = ()
    """Texts in braces are places of the test."""
    open: str = "off"
    """The runs in which it succeeds. Without `off`, every start of ours stops it; a bare process doesn't."""
    needs: str = ""
    """What a machine must have for it to succeed at all; without, the test is skipped."""
    effect: tuple[str, ...] = ()
    """What it changes outside, if its own word doesn't count: a server may own the file it writes."""


def _write(path: str, runs: str = "off") -> Attempt:
    return Attempt("write", (path,), runs, effect=("owned", path))


ROOT_ONLY: Final = "root"
ATTEMPTS: Final[dict[str, Attempt]] = {
    # Secrets in files.
    "read an SSH key": Attempt("read", ("{home}/.ssh/id_ed25519",)),
    "read keys of AWS": Attempt("read", ("{home}/.aws/credentials",)),
    "read a token of gcloud": Attempt("read", ("{home}/.config/gcloud/application_default_credentials.json",)),
    "read a token of Azure": Attempt("read", ("{home}/.azure/msal_token_cache.json",)),
    "read a kubeconfig": Attempt("read", ("{home}/.kube/config",)),
    "read the token of gh": Attempt("read", ("{home}/.config/gh/hosts.yml",)),
    "read the token of npm": Attempt("read", ("{home}/.npmrc",)),
    "read cookies of Firefox": Attempt("read", ("{home}/.mozilla/firefox/a.default/cookies.sqlite",)),
    "read cookies of Chrome": Attempt("read", ("{home}/.config/google-chrome/Default/Cookies",)),
    "read a keyring": Attempt("read", ("{home}/.local/share/keyrings/login.keyring",)),
    "read a GnuPG key": Attempt("read", ("{home}/.gnupg/private-keys-v1.d/a.key",)),
    "read the history of a shell": Attempt("read", ("{home}/.bash_history",)),
    "read `.env` of another project": Attempt("read", ("{home}/other/.env",)),
    "read a document": Attempt("read", ("{home}/Documents/letter.txt",)),
    "read a key in the workspace that a variable names": Attempt("read", ("{workspace}/secrets/account.json",)),
    "read our sign-ins": Attempt("read", ("{state}/credentials/a.json",)),
    "read our ledger": Attempt("read", ("{state}/ledger.db",)),
    "read the home of another server": Attempt("read", ("{state}/servers/other-1/token",)),
    "read password hashes": Attempt("read_any", ("/etc/shadow",), needs=ROOT_ONLY),
    "read a file in `/tmp`": Attempt("read", ("{tmp}/canary",)),
    "read shared memory": Attempt("read", ("{shm}",), "off landlock"),
    "read a file of the system": Attempt("read_any", ("{system}",), "off standard landlock"),
    "list your home": Attempt("list_any", ("{home}/.ssh",), "off landlock"),
    "list other homes": Attempt("list_others", (("/home", "/root"), "{needed}"), "off landlock", "other homes"),
    "read through a link": Attempt("read_by_link", ("{home}/.ssh/id_ed25519", "{workspace}/soft")),
    "read through a hard link": Attempt("read_by_hard_link", ("{home}/.ssh/id_ed25519", "{workspace}/hard")),
    "read through `/proc/self/root`": Attempt("read_below", ("/proc/self/root", "{home}/.ssh/id_ed25519")),
    "read through process 1": Attempt("walk_out", (1, "{home}/.ssh/id_ed25519"), needs=ROOT_ONLY),
    "read the raw disk": Attempt("read_disk", needs=f"{ROOT_ONLY} and a disk"),
    # What runs later, outside.
    "write a start-up file of a shell": _write("{home}/.bashrc"),
    "write an autostart entry": _write("{home}/.config/autostart/a.desktop"),
    "write a unit of systemd": _write("{home}/.config/systemd/user/a.service"),
    "write a program into `~/.local/bin`": _write("{home}/.local/bin/git"),
    "write git's settings of the user": _write("{home}/.gitconfig"),
    "write npm's settings": _write("{home}/.npmrc"),
    "write pip's settings": _write("{home}/.config/pip/pip.conf"),
    "write SSH's authorized keys": _write("{home}/.ssh/authorized_keys"),
    "write the package cache of npm": _write("{home}/.npm/_cacache/a"),
    "write the package cache of uv": _write("{home}/.cache/uv/a"),
    "write a git hook": _write("{workspace}/.git/hooks/pre-commit", "off landlock"),
    "write git's settings of the project": _write("{workspace}/.git/config", "off landlock"),
    "move git's settings of the project": _write("{workspace}/.git/commondir", "off landlock"),
    "replace `.git`": Attempt("rename", ("{workspace}/.git", "{workspace}/.moved"), "off landlock"),
    "write a git hook in a directory the row names": _write("{named}/.git/hooks/pre-commit", "off landlock"),
    "move git's settings of a directory the row names": _write("{named}/.git/commondir", "off standard landlock"),
    "write `indus` settings of the project": _write("{workspace}/.indusvx/settings.json", "off landlock"),
    "write the consent to servers": _write("{state}/trust.json"),
    "write our rules": _write("{state}/permissions.json"),
    "write the home of another server": _write("{state}/servers/other-1/start"),
    "write another project": _write("{home}/other/main.py"),
    "write the workspace": _write("{workspace}/main.py", "off standard landlock"),
    "write `/var/tmp`": _write("{vartmp}/new"),
    "change the mode of a key": Attempt(
        "change_mode", ("{home}/.ssh/id_ed25519",), "off landlock", effect=("mode", "{home}/.ssh/id_ed25519")
    ),
    "create a file in `/etc`": Attempt("create", ("/etc",), needs=ROOT_ONLY),
    "create a program in `/usr/local/bin`": Attempt("create", ("/usr/local/bin",), needs=ROOT_ONLY),
    "create a crontab": Attempt("create", ("/var/spool",), needs=ROOT_ONLY),
    "set the handler of crashes": Attempt("open_to_write", ("/proc/sys/kernel/core_pattern",), needs=ROOT_ONLY),
    "press SysRq": Attempt("open_to_write", ("/proc/sysrq-trigger",), needs=ROOT_ONLY),
    "write `/sys`": Attempt("open_to_write", ("{sys}",), needs=f"{ROOT_ONLY} and sysfs"),
    "create a control group": Attempt("make_folder", ("{cgroup}",), needs=f"{ROOT_ONLY} and control groups"),
    # Network.
    "open a reverse shell": Attempt("start_reverse_shell", ("{port}",), "off standard landlock"),
    "send secrets in DNS": Attempt(
        "connect", ("AF_INET", "SOCK_DGRAM", "127.0.0.1", "{udp}"), "off standard landlock", effect=("datagram",)
    ),
    "connect by IPv6": Attempt(
        "connect", ("AF_INET6", "SOCK_STREAM", "::1", "{port6}"), "off standard landlock", "IPv6"
    ),
    "reach the metadata of a cloud": Attempt(
        "find_route", ("AF_INET", "169.254.169.254", 80), "off standard landlock", "a route"
    ),
    "reach the local network": Attempt("find_route", ("AF_INET", "10.0.0.1", 80), "off standard landlock", "a route"),
    "open a raw socket": Attempt("open_socket", ("AF_INET", "SOCK_RAW", 1), "off landlock", ROOT_ONLY),
    "listen to all packets": Attempt("open_socket", ("AF_PACKET", "SOCK_RAW", 3), "off landlock", ROOT_ONLY),
    "open a socket to the virtual machine's host": Attempt(
        "open_socket", ("AF_VSOCK", "SOCK_STREAM", 0), "off standard landlock", "vsock"
    ),
    "open sockets through io_uring": Attempt("open_ring", (), "off standard landlock", "io_uring"),
    # Sockets of this machine.
    "connect to Docker": Attempt("connect", ("AF_UNIX", "SOCK_STREAM", "{docker}"), "off landlock"),
    "connect to D-Bus": Attempt("connect", ("AF_UNIX", "SOCK_STREAM", "{runtime}/bus"), "off landlock"),
    "connect to Wayland": Attempt("connect", ("AF_UNIX", "SOCK_STREAM", "{runtime}/wayland-0"), "off landlock"),
    "connect to gpg-agent": Attempt("connect", ("AF_UNIX", "SOCK_STREAM", "{runtime}/S.gpg-agent"), "off landlock"),
    "connect to ssh-agent": Attempt("connect", ("AF_UNIX", "SOCK_STREAM", "{agent}"), "off landlock"),
    "connect to X11": Attempt("connect", ("AF_UNIX", "SOCK_STREAM", "{tmp}/X0"), "off landlock"),
    "connect to an abstract socket": Attempt("connect_abstract", ("{abstract}",), needs="scopes of Landlock"),
    "list sockets of services": Attempt("list_others", (("/run",), "{resolver}"), "off landlock"),
    # Processes and the kernel.
    "signal a process": Attempt("signal_process", ("{other}",), needs="scopes of Landlock"),
    "trace a process": Attempt("trace", ("{other}",), needs="tracing"),
    "read variables of a process": Attempt("find_environment", ("CANARY_OUTSIDE",)),
    "read command lines": Attempt("find_command_line", ("canary-on-a-command-line",), "off landlock"),
    "read our memory": Attempt("read_memory", ("{gateway}",), needs="tracing"),
    "read our memory by process_vm_readv": Attempt("read_by_vector", ("{gateway}",), needs="tracing"),
    "take a descriptor of ours": Attempt("steal_descriptor", ("{gateway}",), needs="tracing"),
    "have the kernel end us first": Attempt("open_to_write", ("/proc/{gateway}/oom_score_adj",)),
    "enter our network namespace": Attempt("enter_namespace", ("{gateway}", "net"), needs=ROOT_ONLY),
    "make a user namespace": Attempt("fork_and", ("unshare", 0x10000000), "off landlock", "user namespaces"),
    "make a mount namespace": Attempt("fork_and", ("unshare", 0x20000), needs=ROOT_ONLY),
    "change the root directory": Attempt("fork_and", ("chroot", "/"), "off landlock", ROOT_ONLY),
    "gain rights by a setuid program": Attempt("gain_rights"),
    "read a key of the session": Attempt("read_key", ("{key}",), needs="keyrings"),
    "attach shared memory": Attempt("attach_memory", ("{segment}",), "off landlock"),
    "write to your terminal": Attempt("write", ("{terminal}",), effect=("terminal",)),
    "type into your terminal": Attempt("type_into_terminal", ("{terminal}",), needs="TIOCSTI"),
    "inherit a secret variable": Attempt("own_variable", ("CANARY_API_TOKEN",), ""),
    "inherit an open file": Attempt("own_descriptor", ("canary in an open file",), ""),
}


def format_table() -> str:
    """Format the attempts and what stops them."""
    lines = ["| attempt | `standard` | `strict` | Landlock |", "|---|---|---|---|"]
    for name, attempt in ATTEMPTS.items():
        runs = attempt.open.split()
        lines.append(f"| {name} | {' | '.join('open' if run in runs else 'stopped' for run in RUNS[1:])} |")
    return "\n".join(lines) + "\n"


def split_page() -> tuple[str, str, str]:
    """Split the page into the text before its table, the table, and the rest."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(_BEGIN)
    table, _, after = rest.partition(_END)
    return before + _BEGIN, table, _END + after


if __name__ == "__main__":
    before, _, after = split_page()
    PAGE.write_text(before + format_table() + after, encoding="utf-8")
