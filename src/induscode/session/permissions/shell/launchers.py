"""Programs that run other commands: wrappers and runners.

A wrapper (`nohup`, `timeout`) adds nothing to the command it starts: rules are compared with that command. A runner
(`xargs`, `ssh`) starts what its arguments say in its own way: no rule allows it, and everything that it may start is
compared with deny rules. Programs that run something because of an option are in the table of `programs`.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from indusagi.core.records import record

if TYPE_CHECKING:
    from collections.abc import Sequence

    from induscode.session.permissions.shell.syntax import Word


def names(text: str) -> frozenset[str]:
    """Split a text into a set of names."""
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
"""Programs that run what their arguments or their input say."""
_LOOKING = {
    **dict.fromkeys(("docker", "podman", "nerdctl"),
        names("diff history images info inspect logs port ps search top version")),
    "kubectl": names("api-resources api-versions describe explain get logs top version"),
}  # fmt: skip
"""Read-only subcommands of runners; their options are in the table of programs."""
_LOADERS = ("ld.so", "ld-linux", "ld-musl")
"""Names of the dynamic loader, which runs its argument: https://man7.org/linux/man-pages/man8/ld.so.8.html."""
_RUNS_TEXT = re.compile(r"-[A-Za-z]*c[A-Za-z]*")
SHELLS = names("sh bash dash ash zsh ksh mksh rbash")
SHELL_CHANGERS = names(
    "alias unalias hash enable set shopt read mapfile readarray getopts let unset export declare"
    " typeset local readonly complete bind ulimit umask"
)
"""Builtins that can change the meaning of later names."""
MOVERS = frozenset({"cd", "pushd", "popd"})
COPIERS = names("alias cat cp dd hash install ln mv rsync tee")
"""Programs that can copy another program, or give it another name."""
VARIABLE_SETTERS = names(
    "read mapfile readarray getopts let wait eval source . unset declare typeset local readonly export printf"
)
"""Builtins that assign variables in ways the parser does not follow."""


def base_name(text: str) -> str:
    """Give the name of a program without its directory."""
    return os.path.basename(text.rstrip("/"))


def find_runner(words: Sequence[Word]) -> str | None:
    """Describe why no rule allows a command; None if rules may."""
    name = base_name(words[0].shown)
    if len(words) > 1 and words[1].text in _LOOKING.get(name, ()):
        return None
    if name in RUNNERS or name.startswith(_LOADERS):
        return f"{name} runs other commands"
    if name in SHELL_CHANGERS:
        return f"{name} changes what later commands mean"
    return None


def runs_input(words: Sequence[Word]) -> bool:
    """Tell whether a command runs its standard input: a shell without a script, most runners.

    The input of xargs and parallel becomes arguments; it is run if they start a shell, a runner or nothing named.
    """
    name, *arguments = (base_name(word.shown) for word in words)
    operands = [text for text in arguments if not text.startswith("-")]
    if name in {"xargs", "parallel"}:
        return not operands or any(text in RUNNERS or text in SHELLS or text in WRAPPERS for text in operands)
    return name in RUNNERS or (name in SHELLS and not operands)


def find_shell_code(words: Sequence[Word]) -> Word | None:
    """Give the argument of a shell's `-c`; None if its commands are elsewhere."""
    options = [index for index, word in enumerate(words) if _RUNS_TEXT.fullmatch(word.shown)]
    for word in words[options[0] + 1 :] if options else ():
        if word.text is None or not word.text.startswith(("-", "+")):
            return word
    return None


# -- wrappers -----------------------------------------------------------------------------------


@record
class _CommandWrapper:
    flags: str = ""
    values: str = ""
    operands: int = 0
    """Number of its own operands before the command."""
    numeric: bool = False
    """Whether `-10` is an option."""


WRAPPERS: dict[str, _CommandWrapper] = {
    "nohup": _CommandWrapper(),
    "time": _CommandWrapper(flags="p"),
    "nice": _CommandWrapper(values="n", numeric=True),
    "ionice": _CommandWrapper(flags="t", values="cn"),
    "timeout": _CommandWrapper(flags="v", values="ks", operands=1),
    "stdbuf": _CommandWrapper(values="ioe"),
    "setsid": _CommandWrapper(flags="cfw"),
    "command": _CommandWrapper(flags="p"),
    "builtin": _CommandWrapper(),
    "exec": _CommandWrapper(flags="cl"),
    "env": _CommandWrapper(flags="i", values="u"),
    "chronic": _CommandWrapper(),
}
_STARTS = frozenset({"{", "(", "!", "if", "for", "while", "until", "case", "function", "[[", "(("})


def unwrap_command(words: Sequence[Word]) -> Sequence[Word] | None:
    """Give the command that a wrapper starts, empty if there is none; None if it is uncertain.

    For `env` the assignments before the command are a part of the result.
    """
    wrapper = WRAPPERS[words[0].shown]
    index = 1
    while index < len(words):
        text = words[index].text
        if text is None:
            return None
        if not text.startswith("-"):
            break
        index += 1
        if text == "--":
            break
        letters = text[1:]
        is_number = wrapper.numeric and letters.isdigit()
        if is_number or (letters and all(letter in wrapper.flags for letter in letters)):
            continue
        if not letters or letters[0] not in wrapper.values:
            return None
        if len(letters) == 1:
            index += 1  # the next word is its value
    index += wrapper.operands
    rest = words[index:]
    if not rest or wrapper is WRAPPERS["env"]:
        return rest
    return None if rest[0].shown in _STARTS or "=" in rest[0].shown else rest


def is_lookup(words: Sequence[Word]) -> bool:
    """Tell whether this is `command -v name`, which looks up a name and runs nothing."""
    return len(words) > 1 and words[0].text == "command" and words[1].text in {"-v", "-V"}
