"""Commands that run other commands, or text as code, and what can be told of them.

Three kinds. A plain wrapper adds nothing to what it starts: it is looked through. A runner starts
what its arguments say, in ways of its own: it is left to a person, and what it may start is looked
at for what is denied. A launcher is harmless until a certain option makes it run code.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from induscode.session.gate.words import Word


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
    " complete compgen bind mapfile readarray fc history hyperfine"
)
"""They run what their arguments say, or what they are fed."""
SHELLS = names("sh bash dash ash zsh ksh mksh rbash")
SHELL_CHANGERS = names(
    "alias unalias hash enable set shopt read mapfile readarray getopts let unset export declare"
    " typeset local readonly complete bind ulimit umask"
)
"""Builtins after which a name may mean something else than it says."""
MOVERS = frozenset({"cd", "pushd", "popd"})
_INTERPRETERS = {
    "python": "cE",
    "pypy": "c",
    "node": "epr",
    "nodejs": "epr",
    "perl": "eEpnix",
    "ruby": "epnix",
    "php": "rBRFE",
    "lua": "el",
    "luajit": "el",
    "Rscript": "e",
    "julia": "eE",
    "bun": "ep",
    "deno": "",
    "tclsh": "",
    "irb": "e",
    "ipython": "c",
    "guile": "c",
    "groovy": "e",
    "scala": "e",
    "jshell": "",
    "ghc": "e",
    "runghc": "e",
    "emacs": "",
    "ed": "",
    "ex": "c",
    "vi": "c",
    "vim": "cS",
    "nvim": "c",
    "dc": "e",
    "bc": "",
    "gawk": "",
    "sqlite3": "",
    "psql": "c",
    "mysql": "e",
}
"""Short options whose value, or after which the program itself, is code."""
_CODE_LONG = names(
    "--eval --print --require --import --loader --experimental-loader --command --execute --run"
    " --exec --call --expression --code --init-file --rcfile"
)
_OPTIONS: dict[str, tuple[str, ...]] = {
    "npx": ("-c", "--call", "-p", "--package", "--shell"),
    "npm": ("-c", "--call", "exec", "x", "--script-shell", "--prefix", "explore", "edit"),
    "pnpm": ("-c", "dlx", "exec", "--shell-mode"),
    "pnpx": ("-c",),
    "yarn": ("dlx", "exec", "--use-yarnrc"),
    "bunx": ("--package", "-p"),
    "uvx": ("--from", "--with", "--with-editable", "--with-requirements", "--index-url", "--index"),
    "uv": ("--from", "--with", "--with-editable", "--with-requirements", "--index-url", "tool"),
    "pipx": ("run", "--spec", "--index-url", "--pip-args", "runpip"),
    "pip": ("--index-url", "-i", "--extra-index-url", "--target", "--trusted-host"),
    "cargo": ("--config",),
    "go": ("-exec", "-toolexec", "generate", "-ldflags"),
    "git": (
        *("--config-env", "--exec-path", "--git-dir", "--work-tree", "--upload-pack"),
        *("--receive-pack", "--ext-diff", "--textconv", "--output", "--open-files-in-pager", "-O"),
        *("--exec", "-x", "config", "foreach", "run", "filter-branch", "difftool", "mergetool"),
        *("daemon", "instaweb", "send-email", "credential", "hook", "--attr-source"),
        *("--template", "update-ref", "fast-import"),
    ),
    "tar": (
        *("-I", "--use-compress-program", "--to-command", "--checkpoint-action", "-F"),
        *("--info-script", "--new-volume-script", "--rsh-command", "--rmt-command"),
    ),
    "rsync": ("-e", "--rsh", "--rsync-path"),
    "scp": ("-S", "-o", "-F"),
    "curl": ("-o", "-O", "--output", "--remote-name", "-K", "--config", "--output-dir", "-T"),
    "wget": ("-O", "--output-document", "--use-askpass", "-e", "--execute", "--post-file"),
    "rg": ("--pre", "--hostname-bin", "--search-zip", "-z"),
    "fd": ("-x", "--exec", "-X", "--exec-batch"),
    "fdfind": ("-x", "--exec", "-X", "--exec-batch"),
    "sort": ("-o", "--output", "--compress-program", "-T"),
    "less": ("-o", "-O", "-k", "+", "--lesskey-src"),
    "man": ("-P", "--pager", "-H", "--html"),
    "make": ("--eval", "-f", "--file", "--makefile", "-C", "--directory", "-I"),
    "zip": ("-T", "-TT", "--unzip-command"),
    "split": ("--filter",),
    "env": ("-S", "--split-string"),
    "date": ("-s", "--set"),
    "hostname": ("-F", "-b"),
    "ip": ("-b", "-batch", "--batch"),
    "openssl": ("-engine", "-provider"),
    "mount": (),
    "dd": (),
    "tee": (),
}
_FIND_ACTIONS = names(
    "-exec -execdir -ok -okdir -delete -fprint -fprint0 -fprintf -fls -files0-from"
)
_AWKS = frozenset({"awk", "gawk", "mawk", "nawk"})
_AWK_ACTS = re.compile(r"system|getline|close|printf?[^;}\n]*[>|]|[>|]|@|\bcmd\b")
_SED_HARMLESS = re.compile(
    r"(?:[0-9$]+(?:,[0-9$]+)?)?[pdq=]|s([/|#,:])(?:(?!\1)[^\\\n]|\\[^\n])*\1"
    r"(?:(?!\1)[^\\\n]|\\[^\n])*\1[gpiI0-9]*"
)


def base_name(text: str) -> str:
    """Give the name under which a command is known, without its directory."""
    return os.path.basename(text.rstrip("/"))


def danger(words: Sequence[Word]) -> str | None:
    """Say what about a command is left to a person; None if it does no more than its name says."""
    name = base_name(words[0].shown)
    if name in RUNNERS:
        return f"{name} runs other commands"
    if name in SHELL_CHANGERS:
        return f"{name} changes what later commands mean"
    if name in SHELLS or re.fullmatch(r"(?:python|pypy|lua|perl|ruby|php)[0-9.]+w?", name):
        name = "sh" if name in SHELLS else re.sub(r"[0-9.]+w?$", "", name)
    if name == "sh" or name in _INTERPRETERS:
        return _interpreted(name, words)
    if name == "find":
        return _any_of(words, _FIND_ACTIONS, "find")
    if name in _AWKS or name == "sed":
        return _edited(name, words)
    if name == "git" and (setting := _git_setting(words)):
        return setting
    if name in _OPTIONS:
        return _any_of(words, frozenset(_OPTIONS[name]), name)
    if name == "printf" and any(word.shown.startswith("-v") for word in words[1:]):
        return "printf -v changes a variable"
    return None


def reads_commands(words: Sequence[Word]) -> bool:
    """Tell whether a command runs what it is fed: a shell without a file."""
    name = base_name(words[0].shown)
    if name not in SHELLS and name not in RUNNERS:
        return False
    return not any(not word.shown.startswith("-") for word in words[1:]) or name in RUNNERS


def _interpreted(name: str, words: Sequence[Word]) -> str | None:
    letters = "cs" if name == "sh" else _INTERPRETERS[name]
    operand = False
    for word in words[1:]:
        text = word.text
        if text is None:
            return f"{name} is given what only the shell knows"
        if not text.startswith("-") or text in {"-", "--"}:
            operand = operand or text not in {"-", "--"}
            if not operand:
                continue
            break
        if _is_code_option(text, letters):
            return f"{name} {text} runs text as code"
        if text == "-m":
            return None
    if not operand:
        return f"{name} runs what it is fed"
    return "deno eval runs text as code" if name == "deno" and "eval" in _texts(words) else None


def _is_code_option(text: str, letters: str) -> bool:
    if text.startswith("--"):
        return text.partition("=")[0] in _CODE_LONG
    return any(letter in text[1:] for letter in letters)


def _texts(words: Sequence[Word]) -> list[str]:
    return [word.shown for word in words]


def _any_of(words: Sequence[Word], options: frozenset[str], name: str) -> str | None:
    """Look for options, also where their value is joined to them."""
    if name in {"tee", "dd", "mount"}:
        return f"{name} writes where its arguments say"
    for word in words[1:]:
        if word.text is None and word.guesses[0].startswith("-"):
            return f"{name} is given options that only the shell knows"
        for text in word.guesses:
            if _is_option(text, options):
                return f"{name} {text} can run or write something else"
    hole = name == "find" and any(word.text is None for word in words[1:])
    return "find is given what only the shell knows" if hole else None


def _git_setting(words: Sequence[Word]) -> str | None:
    """Look for `git -c name=value`; the `-c` of some of its commands takes no such thing."""
    for option, value in pairwise([*_texts(words), ""]):
        if re.fullmatch(r"-[A-Za-z]*c", option) and ("=" in value or "…" in value):
            return "git -c can make git run anything"
        if re.match(r"-c.*=", option):
            return "git -c can make git run anything"
    return None


def _is_option(text: str, options: frozenset[str]) -> bool:
    if text.partition("=")[0] in options:
        return True
    if text.startswith("--"):
        # Long options may be cut short as long as one can tell them apart.
        name = text.partition("=")[0]
        return len(name) > 3 and any(option.startswith(name) for option in options)
    return text.startswith("-") and any(
        len(option) == 2 and option[0] == "-" and option[1] in text[1:] for option in options
    )


def _edited(name: str, words: Sequence[Word]) -> str | None:
    if any(word.text is None for word in words):
        return f"{name} is given a program that only the shell knows"
    texts = _texts(words)[1:]
    options = [text for text in texts if text.startswith("-") and text not in {"-n", "-E", "-r"}]
    if name == "sed":
        operands = [text for text in texts if not text.startswith("-")]
        fine = operands and not options and _SED_HARMLESS.fullmatch(operands[0])
        return None if fine else "sed is given a program that may write or run something"
    plain = all(re.fullmatch(r"-F.*", option, re.DOTALL) for option in options)
    acts = any(_AWK_ACTS.search(text) for text in texts)
    return None if plain and not acts else f"{name} is given a program that may write or run"


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
