"""The commands: programs with their options and hostile operands, and spellings of a denied one."""

from __future__ import annotations

import random
import shlex
from collections.abc import Iterator

CANARY = "canary"
READERS = (
    *("cat", "ls", "head", "tail", "wc", "sort", "uniq", "grep", "find", "awk", "sed", "echo"),
    *("printf", "test", "[", "diff", "cut", "tr", "git", "jq", "stat", "file", "date", "seq"),
    *("basename", "python3", "true"),
)
"""Programs that are allowed and write nothing unless an option or operand makes them."""
WRITERS = ["tar", "cp", "mv", "rm", "touch", "mkdir", "ln", "gzip", "zip", "make", "curl"]
"""Programs that are allowed and write where their operands say."""
HOSTILE_FILES = (
    "a.txt", "b.txt", "-exec", "canary", ";", "-ocreated", "--output=created",
    "--compress-program=canary", "--checkpoint=1", "--checkpoint-action=exec=canary", "-Icanary",
    "--to-command=canary", "--use-compress-program=canary", "$(canary)", ";canary", "a\nb",
    "a[$(canary)]", "-v", "-e", "-c", "--pre=canary", "-fprint", "--ext-diff", "--files0-from=x",
    "-delete", "-i", "-n", "x=y", "SHELL=canary", "+!canary", "-TTcanary", "-T",
    "{canary,x}", "~", "-", "--", "`canary`", "|canary", "--rsh=canary", "@file", "-Kx", "e canary",
    "-S.x", "-I", "-execdir",
)  # fmt: skip
"""Names of files in the directory, all of which a glob finds."""
_OPTIONS = {
    "sort": "-n -r -u -k1 -t: -o --output=created -ocreated --compress-program=canary -S1b -S 1 -T."
    " --outp=created -nr -no",
    "uniq": "-c -d -i -f1",
    "tar": "cf xf tf czf cIf xIf -cf -xf -tf -I -Icanary --checkpoint=1 --to-command=canary"
    " --checkpoint-action=exec=canary -F canary --use-compress-program=canary -v -C . cvf"
    " --exclude=x --checkpoint-act=exec=canary -T a.txt",
    "find": ". -name -exec canary {} ; + -exe? -delete -print -fprint created -type f -ok -maxdepth"
    " 1 -printf %p -fls created -exec",
    "git": "log diff show status grep -p -O -Ocanary --output=created --ext-diff -c"
    " core.pager=canary --oneline -1 difftool -x canary --open-files-in-pager=canary -C ."
    " alias.x=!canary --stat rebase bisect run config branch commit -m x --exec=canary --no-index",
    "awk": "-f -F: -v x=1 {print} BEGIN{system(\"canary\")} {print>\"created\"} -e"
    " {print|\"canary\"}",
    "sed": "-n -e p s/a/b/ 1ecanary s/a/canary/e -i -i.bak wcreated 1p -f -E --in-place e$p;p d"
    " s/.*/canary/e --expression=1ecanary -ne",
    "printf": "-v %s %d %n a[$(canary)] -- PATH x",
    "test": "-v -f -n -z a[$(canary)] = -eq 1 -R -o -a ! ( )",
    "[": "-v -f -n -z a[$(canary)] = -eq 1 ] -R",
    "date": "+%s -s -d now -f",
    "python3": "-c -m -X dev -W x import/os -I x.py - /dev/stdin -m timeit print(1)",
    "make": "-f -n SHELL=canary --eval=x:;canary -C . all -j2 --eval",
    "zip": "-T -TT canary -r out.zip -q --unzip-command",
    "curl": "-o created -K -O -s file:///etc/hostname --output created -w %{http_code} -T a.txt",
    "gzip": "-c -k -d -S.z",
    "file": "-C -m -b -f",
    "diff": "-u -l -r --from-file=a.txt",
    "cp": "-r -t . -a --backup -S.x",
    "ln": "-s -f",
    "grep": "-r -n -e x -f -i",
    "jq": ". -n -r -f --arg x y",
    "ls": "-la -R --hyperlink",
}  # fmt: skip
_SHAPES = ("{}", "{}", "{}", "{} | cat", "cat a.txt | {}", "true && {}", "x=a.txt; {}", "f=-o; {}",
    "for f in a.txt b.txt; do {}; done", "if true; then {}; fi", "LANG=C {}", "nice -n 1 {}",
    "timeout 5 {}", "env LC_ALL=C {}", "! {}", "( {} )", "command {}",
    "true || f=--; {}", "false && x=a.txt; {}", "true || x=x.py; {}")  # fmt: skip
_WORDS = ("*", "./*", "-- *", "-- ./*", "?*", "a*", "a.txt", "b.txt", "$x", '"$x"', "$f", '"$f"',
    "[-]*", "{a.txt,b.txt}", "{-o,created}", "~", '"$(cat a.txt)"', "$(echo -o)", "'*'", "-*",
    "./-*", "**", "a.tx?", "../work/*", "$HOME", "'a[$(canary)]'", "\\;", "'{}'", "'$(canary)'",
    "-", "created")  # fmt: skip


def generate_commands(seed: int, count: int) -> Iterator[str]:
    """Generate commands of allowed programs, the same for the same seed."""
    rng = random.Random(seed)
    for _ in range(count):
        program = rng.choice((*READERS, *WRITERS, *_OPTIONS, *_OPTIONS))
        words = [program]
        options = _OPTIONS.get(program, "-a -n -1 --help").split()
        for _ in range(rng.randint(1, 5)):
            kind = rng.random()
            if kind < 0.5:
                words.append(_maybe_quoted(rng, rng.choice(options)))
            elif kind < 0.8:
                words.append(rng.choice(_WORDS))
            else:
                words.append(shlex.quote(rng.choice(HOSTILE_FILES)))
        if program == "[" and rng.random() < 0.8:
            words.append("]")
        yield rng.choice(_SHAPES).replace("{}", " ".join(words), 1)


def _maybe_quoted(rng: random.Random, text: str) -> str:
    plain = shlex.quote(text)
    return text if rng.random() < 0.3 and not set(text) & set("()$;!{}>|`\"'") else plain


# -- spellings of a denied command ------------------------------------------------------------

_NAMES = (
    "canary",
    r"c\anary",
    '"canary"',
    "'canary'",
    "can''ary",
    '"can"ary',
    r"$'\x63anary'",
    r"$'\143anary'",
    "$(echo canary)",
    "`echo canary`",
    "{canary,a}",
    "can{ary,}",
    "{c,}anary",
    "bin/canary",
    "./bin/canary",
    "bin/can?ry",
    "bin/c*y",
    "bin/[c]anary",
    "${zz:-canary}",
    "ca$@nary",
    "ca${zz}nary",
    "$'can'ary",
    '$"canary"',
    "${zz-canary}",
    "can\\\nary",
    "$(printf can)ary",
    "{b..c}anary",
    "../work/bin/canary",
)
_BEFORE = (
    "",
    "x=canary; $x",
    "x=can; y=ary; $x$y",
    "x=can; x+=ary; $x",
    "x=canaryy; ${x%y}",
    "x=canary; y=x; ${!y}",
    "x=(canary a); ${x[0]}",
    "read x <<< canary; $x",
    "set -- canary; $1",
    'set -- canary a; "$@"',
    "declare x=canary; $x",
    "printf -v x canary; $x",
    ": canary; $_",
    ": ${x:=canary}; $x",
    "x=ls; read x <<< canary; $x",
    "x=$(echo canary); $x",
    "IFS=_; x=canary_a; $x",
    "for x in canary; do $x; done",
    "x=xcanary; ${x:1}",
    "export x=canary; $x",
    "x=CANARY; ${x,,}",
    "mapfile -t x <<< canary; ${x[0]}",
    "declare -n y=x; x=canary; $y",
    "local x=canary; $x",
    "a=(x canary); ${a[1]}",
    "x=$(basename bin/canary); $x",
    "x=bin; $x/canary",
    "x='canary a'; $x",
    "x=c; ${x}anary",
    "case a in a) x=canary;; esac; $x",
    "readonly x=canary; $x",
    "select x in canary; do $x; break; done <<< 1",
    "let x=1; y=canary; $y",
    "x=no; (( 1 )) && x=canary; $x",
)
_AROUND = (
    "{n} a",
    "env {n} a",
    "env A=1 {n}",
    "command {n} a",
    "exec {n}",
    "exec -a x {n}",
    "nice {n}",
    "nohup {n}",
    "timeout 5 {n}",
    "stdbuf -o0 {n}",
    "setsid -w {n}",
    "time {n}",
    "! {n}",
    "({n})",
    "{{ {n}; }}",
    "if {n}; then true; fi",
    "f() {{ {n} a; }}; f",
    "true && {n}",
    "{n} | cat",
    "cat a.txt | {n}",
    "echo $({n})",
    "cat <({n})",
    "x=$({n})",
    "A=1 {n}",
    "{n} > /dev/null",
    "trap '{n}' EXIT",
    "eval {q}",
    "bash -c {q}",
    "sh -c {q}",
    "echo {q} | sh",
    "echo {q} | bash -s",
    "bash <<< {q}",
    "sh <<'E'\n{n}\nE",
    "cat <<E | sh\n{n}\nE",
    "xargs {n} < /dev/null",
    "echo a | xargs -I@ {n} @",
    "find . -maxdepth 0 -exec {n} \\;",
    "echo {q} > s; sh s",
    "echo {q} > s; . ./s",
    "echo {q} > s; source s",
    "echo {q} > s; chmod +x s; ./s",
    "coproc {n}; wait",
    "bash -c 'eval \"$1\"' x {q}",
    "env -S {q}",
    "echo {q} | xargs -I@ sh -c @",
    "printf %s {q} | base64 | base64 -d | sh",
    "bash -xc {q}",
    "bash -o posix -c {q}",
    "while {n}; do break; done",
    "case x in x) {n};; esac",
    "[[ -n $({n}) ]]",
    "test -v 'a[$({n})]'",
    "[ -v 'a[$({n})]' ]",
    "printf -v 'a[$({n})]' x",
    "(( a[$({n})] ))",
    "[[ -v 'a[$({n})]' ]]",
    "let 'a[$({n})]'",
    "echo $(( a[$({n})] ))",
    "read 'a[$({n})]' <<< x",
    "unset 'a[$({n})]'",
    "declare 'a[$({n})]=1'",
    "x='a[$({n})]'; echo $(( x ))",
    "x='a[$({n})]'; (( x ))",
    "x='a[$({n})]'; [[ x -eq 1 ]]",
    "x='a[$({n})]'; declare -i y=x",
    "echo ${{zz:-$({n})}}",
    "awk 'BEGIN{{system(\"canary\")}}'",
    'awk \'BEGIN{{c="can"; system(c "ary")}}\'',
    'awk \'BEGIN{{print "x" | "canary"}}\'',
    "awk 'BEGIN{{\"canary\" | getline}}'",
    "echo x | sed 's/.*/canary/e'",
    "sed '1e canary' a.txt",
    "echo canary | sed e",
    'perl -e \'system("can"."ary")\'',
    'python3 -c \'import os; os.system("can"+"ary")\'',
    'echo \'import os; os.system("can"+"ary")\' | python3',
    "python3 - <<< 'import os; os.system(\"canary\")'",
    "tar cf /dev/null --checkpoint=1 --checkpoint-action=exec=canary a.txt",
    "tar cf x.tar a.txt; tar xf x.tar --to-command=canary",
    "tar cIf canary x.tar a.txt",
    "sort -S1k --compress-program=canary big",
    "git -c alias.z='!canary' z",
    "git -c alias.z='!c''anary' z",
    "GIT_PAGER=canary git -p log",
    "GIT_EXTERNAL_DIFF=canary git diff",
    "PAGER=canary git -p log",
    "GIT_EDITOR=canary git commit --allow-empty",
    "ln -s bin/canary zz; ./zz",
    "cp bin/canary zz; ./zz",
    "cat bin/canary > zz; chmod +x zz; ./zz",
    "hash -p bin/canary zz; zz",
    "shopt -s expand_aliases\nalias zz=canary\nzz",
    "BASH_ENV=t bash -c true",
    "PATH=bin:$PATH canary",
    "install bin/canary zz; ./zz",
    "mv bin/canary zz; ./zz",
    "BASH_CMDS[zz]=bin/canary; zz",
    "make --eval='$(shell canary)'",
    "make SHELL=canary -f m",
    "zip -q -T -TT canary x.zip a.txt",
    "bash t",
    "sh ./t",
    ". t",
    "bash -i t",
    'bash -c "$(cat t)"',
    "bash < t",
    "cat t | bash",
    "source t",
    'eval "$(cat t)"',
    "$(cat t)",
    "xargs -a t -I@ sh -c @",
    "enable -n echo; {n}",
    "man -P canary ls",
    'python3 <<< \'import subprocess; subprocess.run(["can"+"ary"])\'',
    "script -qc canary /dev/null",
    "echo {n} | tee s | sh",
    "builtin eval {q}",
    "command -p env {n}",
    "env -i bin/canary",
    "exec 3< <(canary); cat <&3",
    'eval "{n}"',
    "/bin/sh -c {q}",
    "b\\ash -c {q}",
    "x=bash; $x -c {q}",
    "$SHELL -c {q}",
    "${{SHELL:-sh}} -c {q}",
    "vim -es -c '!canary' -c q",
    "ld.so bin/canary",
    "find . -maxdepth 0 -exec sh -c {q} \\;",
    "xargs sh -c {q} < /dev/null",
    "parallel ::: canary",
    "busybox sh -c canary",
    "flock a.txt canary",
    "ionice canary",
    "chrt -b 0 canary",
    "taskset 1 bin/canary",
    "setarch x86_64 canary",
    "choom -n 0 -- canary",
    "prlimit -- canary",
    "setpriv canary",
    "unshare canary",
    "uname26 canary",
    "linux64 canary",
    "runuser -u root canary",
    "su -c canary",
    "sg root canary",
    "start-stop-daemon --start --exec $PWD/bin/canary",
    "run-parts bin",
    "nsenter -t 1 canary",
    "less '+!canary' a.txt",
    "m4 <<< 'syscmd(canary)'",
    "dc -e '!canary'",
    "ed <<< '!canary'",
    "git bisect run canary",
    "git rebase --exec canary HEAD",
    "git submodule foreach canary",
    "git difftool -y -x canary",
    "git grep -Ocanary a",
    "strace -o /dev/null canary",
    "git log --ext-diff -p; {n}",
    "jobs -x canary",
    "complete -C canary x; {n}",
    "compgen -C canary",
    "mapfile -C canary -c 1 x < a.txt",
    "bind -x '\"a\":canary'; {n}",
    "PS4='$(canary)'; set -x; true",
    "PROMPT_COMMAND=canary bash -i < /dev/null",
)


def generate_spellings(seed: int, count: int) -> Iterator[str]:
    """Generate commands that may run `canary`; whether they do is for bash to say."""
    rng = random.Random(seed)
    first = [template for template in _AROUND if "{n}" not in template and "{q}" not in template]
    for number in range(count):
        if number < len(first):
            yield first[number].replace("{{", "{").replace("}}", "}")
            continue
        before = rng.choice(_BEFORE) if rng.random() < 0.4 else ""
        name = before.rpartition("; ")[2] if before else rng.choice(_NAMES)
        template = rng.choice(_AROUND)
        if before and ("{q}" in template or "done" in before or "break" in before or "(" in name):
            yield before
            continue
        setup = before.rpartition("; ")[0]
        body = template.replace("{{", "\0").replace("}}", "\1")
        body = body.replace("{n}", name).replace("{q}", shlex.quote(f"{name} a"))
        body = body.replace("\0", "{").replace("\1", "}")
        yield f"{setup}; {body}" if setup else body
