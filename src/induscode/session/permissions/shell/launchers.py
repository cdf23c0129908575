"""Commands that run other commands.

Two kinds. A plain wrapper adds nothing to what it starts: it is looked through. A runner starts
what its arguments say, in ways of its own: it is left to a person, and what it may start is
compared with what is denied. Programs that run something because of an option are in the table of
`programs`.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from induscode.session.permissions.shell.syntax import Word


def names(text: str) -> frozenset[str]:
    """Make a set of the words of a text."""
    return frozenset(text.split())


RUNNERS = names(
    "sudo doas su runuser pkexec xargs parallel ssh sshpass rsh mosh eval trap coproc watch entr"
    " script strace ltrace ptrace gdb lldb valgrind perf unshare nsenter chroot fakeroot bwrap"
    " firejail flock at batch crontab systemd-run dbus-run-session start-stop-daemon daemonize"
    " screen tmux expect unbuffer socat nc ncat busybox toybox alias source . docker"
    " podman kubectl nerdctl lxc vagrant osascript cmd powershell pwsh wsl fish csh tcsh"
    " rlwrap proot taskset chrt numactl setarch linux32 linux64 prlimit dbus-launch xvfb-run"
    " complete compgen bind mapfile readarray fc history hyperfine run-parts setpriv choom sg"
    " uclampset capsh runcon torsocks proxychains faketime eatmydata cpulimit catchsegv newgrp"
    " i386 x86_64 uname26 systemd-inhibit systemd-nspawn ssh-agent watchexec nodemon mpirun mpiexec"
    " srun ccache sccache distcc direnv aws-vault doppler pipx cross-env dotenv concurrently tini"
    " dumb-init gosu su-exec chpst envdir setuidgid softlimit setlock lckdo ifne nq tsp sem"
    " annotate-output caffeinate xcrun sandbox-exec torify tsocks proxychains4 aa-exec cgexec dtach"
    " gtimeout gnice genv gxargs gnohup gstdbuf gsetsid xdg-open open"
)
"""They run what their arguments say, or what they are fed."""
_LOOKING = {
    **dict.fromkeys(("docker", "podman", "nerdctl"),
        names("diff history images info inspect logs port ps search top version")),
    "kubectl": names("api-resources api-versions describe explain get logs top version"),
}  # fmt: skip
"""Subcommands of runners that start nothing; their options are in the table of programs."""
_LOADERS = ("ld.so", "ld-linux", "ld-musl")
"""The dynamic loader runs the program that it is given: ld.so(8)."""
_RUNS_TEXT = re.compile(r"-[A-Za-z]*c[A-Za-z]*")
SHELLS = names("sh bash dash ash zsh ksh mksh rbash")
SHELL_CHANGERS = names(
    "alias unalias hash enable set shopt read mapfile readarray getopts let unset export declare"
    " typeset local readonly complete bind ulimit umask"
)
"""Builtins after which a name may mean something else than it says."""
MOVERS = frozenset({"cd", "pushd", "popd"})
COPIERS = names("alias cat cp dd hash install ln mv rsync tee")
"""What they are given may be a program that gets another name, or is written elsewhere."""
VARIABLE_SETTERS = names(
    "read mapfile readarray getopts let wait eval source . unset declare typeset local readonly export printf"
)
"""Builtins that give variables values in ways that are not followed."""


def base_name(text: str) -> str:
    """Give the name under which a command is known, without its directory."""
    return os.path.basename(text.rstrip("/"))


def find_runner(words: Sequence[Word]) -> str | None:
    """Say why a command is left to a person whatever the rules say; None if it is not."""
    name = base_name(words[0].shown)
    if len(words) > 1 and words[1].text in _LOOKING.get(name, ()):
        return None
    if name in RUNNERS or name.startswith(_LOADERS):
        return f"{name} runs other commands"
    if name in SHELL_CHANGERS:
        return f"{name} changes what later commands mean"
    return None


def reads_commands(words: Sequence[Word]) -> bool:
    """Tell whether a command runs what it is fed: a shell without a file, most runners.

    For xargs and parallel that is what they give to the command they start, unless they start none.
    """
    name, *arguments = (base_name(word.shown) for word in words)
    operands = [text for text in arguments if not text.startswith("-")]
    if name in {"xargs", "parallel"}:
        return not operands or any(text in RUNNERS or text in SHELLS or text in WRAPPERS for text in operands)
    return name in RUNNERS or (name in SHELLS and not operands)


def shell_code(words: Sequence[Word]) -> Word | None:
    """Give the text that a shell is told to run with `-c`; None if its commands are elsewhere."""
    options = [at for at, word in enumerate(words) if _RUNS_TEXT.fullmatch(word.shown)]
    for word in words[options[0] + 1 :] if options else ():
        if word.text is None or not word.text.startswith(("-", "+")):
            return word
    return None


# -- plain wrappers ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Wrapper:
    flags: str = ""
    values: str = ""
    operands: int = 0
    """Words of its own before the command."""
    numeric: bool = False
    """Whether `-10` is an option."""


WRAPPERS: dict[str, _Wrapper] = {
    "nohup": _Wrapper(),
    "time": _Wrapper(flags="p"),
    "nice": _Wrapper(values="n", numeric=True),
    "ionice": _Wrapper(flags="t", values="cn"),
    "timeout": _Wrapper(flags="v", values="ks", operands=1),
    "stdbuf": _Wrapper(values="ioe"),
    "setsid": _Wrapper(flags="cfw"),
    "command": _Wrapper(flags="p"),
    "builtin": _Wrapper(),
    "exec": _Wrapper(flags="cl"),
    "env": _Wrapper(flags="i", values="u"),
    "chronic": _Wrapper(),
}
_STARTS = frozenset({"{", "(", "!", "if", "for", "while", "until", "case", "function", "[[", "(("})


def unwrapped(words: Sequence[Word]) -> Sequence[Word] | None:
    """Give what a plain wrapper starts, nothing if it starts nothing; None if that is not plain.

    For `env` the assignments before the command are a part of it.
    """
    wrapper = WRAPPERS[words[0].shown]
    at = 1
    while at < len(words):
        text = words[at].text
        if text is None:
            return None
        if not text.startswith("-"):
            break
        step = _option_step(wrapper, text)
        if step is None:
            return None
        at += step
        if text == "--":
            break
    at += wrapper.operands
    rest = words[at:]
    if not rest or wrapper is WRAPPERS["env"]:
        return rest
    return None if rest[0].shown in _STARTS or "=" in rest[0].shown else rest


def only_looks_up(words: Sequence[Word]) -> bool:
    """Tell whether this is `command -v name`, which says what a name is and runs nothing."""
    return len(words) > 1 and words[0].text == "command" and words[1].text in {"-v", "-V"}


def _option_step(wrapper: _Wrapper, text: str) -> int | None:
    """Count the words that an option takes; None for one that is not known."""
    letters = text[1:]
    if text == "--":
        return 1
    if wrapper.numeric and letters.isdigit():
        return 1
    if letters and all(letter in wrapper.flags for letter in letters):
        return 1
    if letters[:1] and letters[0] in wrapper.values:
        return 2 if len(letters) == 1 else 1
    return None
