"""R50: denied and unallowed commands, however they are hidden.

Every string is also run by a real bash, with a `git` that only writes down how it was called: so
the tables hold what really runs a denied command, and not what merely looks like it.
"""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.permissions.support import get_effect, rules, stub
from tests.support.strategies import examples

from induscode.permissions.patterns import PatternMatch, may_be_command
from induscode.permissions.rules import Effect
from induscode.permissions.shell.parse import LONGEST_TEXT, MOST_COMMANDS, parse_command

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.anyio

WIDE = (
    "bash(git *); bash(echo *); bash(printf *); bash(cat *); bash(ls *); bash(true *); bash(env *);"
    "bash(find *); bash(xargs *); bash(sh *); bash(bash *); bash(eval *); bash(timeout *);"
    "bash(test *); bash(false *); bash(sleep *); bash(exec *); bash(watch *); bash(command *);"
    "bash(read *); bash(trap *); bash(export *); bash(cd *); bash(tee *); bash(diff *); bash(: *);"
    "write(**); read(**)"
)
"""Very broad allow rules."""
DENIED = "bash(git clean *)"

NESTED = {
    "substitution": "echo $(git clean -fd)",
    "backticks": "echo `git clean -fd`",
    "substitution in quotes": 'echo "a $(git clean -fd) b"',
    "backticks in quotes": 'echo "a `git clean -fd` b"',
    "substitution in a substitution": 'echo "$(echo $(git clean -fd))"',
    "backticks in backticks": r"echo `echo \`git clean -fd\``",
    "input from a process": "cat <(git clean -fd)",
    "output to a process": "echo x > >(git clean -fd); wait $!",
    "here-document": "cat <<EOF\n$(git clean -fd)\nEOF",
    "backticks in a here-document": "cat <<EOF\na `git clean -fd` b\nEOF",
    "here-document with tabs": "cat <<-EOF\n\t$(git clean -fd)\n\tEOF",
    "after a here-document": "cat <<EOF && git clean -fd\nx\nEOF",
    "below a here-document": "cat <<'EOF'\n$(x)\nEOF\ngit clean -fd",
    "here-string": 'cat <<< "$(git clean -fd)"',
    "case, the word": "case $(git clean -fd) in *) echo x;; esac",
    "case, the branch": "case x in x) git clean -fd;; esac",
    "double brackets": '[[ -n "$(git clean -fd)" ]]',
    "single brackets": '[ -n "$(git clean -fd)" ] || true',
    "arithmetic": "echo $((1 + $(git clean -fd >/dev/null; echo 1)))",
    "arithmetic command": "(( 1 + $(git clean -fd; echo 1) ))",
    "function": "f() { git clean -fd; }; f",
    "function, the other way": "function f { git clean -fd; }; f",
    "pipeline": "echo x | git clean -fd",
    "pipeline with errors": "echo x |& git clean -fd",
    "and": "true && git clean -fd",
    "or": "false || git clean -fd",
    "semicolon": "true; git clean -fd",
    "newline": "true\ngit clean -fd",
    "background": "git clean -fd & wait",
    "behind the background": "true & git clean -fd",
    "subshell": "(git clean -fd)",
    "braces": "{ git clean -fd; }",
    "negation": "! git clean -fd",
    "if": "if git clean -fd; then true; fi",
    "then": "if true; then git clean -fd; fi",
    "else": "if false; then true; else git clean -fd; fi",
    "while": "while git clean -fd; do break; done",
    "until": "until git clean -fd; do true; done",
    "for": "for x in $(git clean -fd); do true; done",
    "the body of for": "for x in 1; do git clean -fd; done",
    "c-style for": "for ((i=0; i<1; i++)); do git clean -fd; done",
    "assignment": "x=$(git clean -fd)",
    "assignment before a command": "LANG=$(git clean -fd) true",
    "array": "x=(1 $(git clean -fd))",
    "array subscript": "x[$(git clean -fd; echo 1)]=2",
    "default value": 'echo "${x:-$(git clean -fd)}"',
    "export": "export x=$(git clean -fd)",
    "redirection target": "echo x > $(git clean -fd; echo /dev/null)",
    "process group with redirection": "{ git clean -fd; } > /dev/null 2>&1",
    "coproc": "coproc git clean -fd; wait",
    "time": "time git clean -fd",
    "time of a group": "time { git clean -fd; }",
    "select": "select x in a; do git clean -fd; done <<< 1",
    "double negation": "! ! git clean -fd",
}

HIDDEN = {
    "env": "env git clean -fd",
    "env with a variable": "env A=1 git clean -fd",
    "env -i": 'env -i PATH="$PATH" git clean -fd',
    "env -u": "env -u HOME git clean -fd",
    "env -S": "env -S 'git clean -fd'",
    "env, long option": "env --unset=HOME git clean -fd",
    "nohup": "nohup git clean -fd",
    "nice": "nice git clean -fd",
    "nice -n": "nice -n 5 git clean -fd",
    "nice, old": "nice -5 git clean -fd",
    "timeout": "timeout 5 git clean -fd",
    "timeout -k": "timeout -k 1 -s TERM 5 git clean -fd",
    "timeout -v -k": "timeout -v -k 1 5 git clean -fd",
    "timeout, long option": "timeout --signal=TERM 5 git clean -fd",
    "setsid": "setsid -w git clean -fd",
    "stdbuf": "stdbuf -oL git clean -fd",
    "command": "command git clean -fd",
    "command -p, with its own path": "command git clean -fd",
    "exec": "exec git clean -fd",
    "exec -a": "exec -a harmless git clean -fd",
    "two wrappers": "nohup nice timeout 5 git clean -fd",
    "xargs": "echo -fd | xargs git clean",
    "xargs -n": "echo -fd | xargs -n 1 git clean",
    "xargs with the command as data": "echo git clean -fd | xargs -I{} sh -c '{}'",
    "find -exec": r"find . -maxdepth 0 -exec git clean -fd \;",
    "find -execdir": "find . -maxdepth 0 -exec git clean -fd {} +",
    "sh -c": "sh -c 'git clean -fd'",
    "bash -c": 'bash -c "git clean -fd"',
    "bash -lc": "bash --norc -c 'git clean -fd'",
    "sh -c in sh -c": "sh -c \"sh -c 'git clean -fd'\"",
    "sh from a pipe": "echo 'git clean -fd' | sh",
    "sh from printf": "printf 'git clean -fd\\n' | bash",
    "bash -s": "echo 'git clean -fd' | bash -s",
    "bash from a here-document": "bash <<'EOF'\ngit clean -fd\nEOF",
    "bash from a here-string": "bash <<< 'git clean -fd'",
    "eval": "eval git clean -fd",
    "eval of one word": "eval 'git clean -fd'",
    "eval in pieces": "eval g'i't clean -fd",
    "trap": "trap 'git clean -fd' EXIT",
    "escape_text letter": r"g\it clean -fd",
    "escape_text argument": r"git c\lean -fd",
    "quotes inside": 'g"i"t clean -fd',
    "single quotes": "'git' clean -fd",
    "empty quotes": "g''it cl\"\"ean -fd",
    "ansi quotes": r"$'git' clean -fd",
    "ansi quotes in hex": r"$'\x67it' $'cl\145an' -fd",
    "ansi quotes in unicode": r"$'\u0067it' clean -fd",
    "translated quotes": '$"git" clean -fd',
    "line continuation": "gi\\\nt clean -fd",
    "line continuation in the argument": "git cl\\\nean -fd",
    "line continuation between words": "git \\\n  clean -fd",
    "variable": "x=git; $x clean -fd",
    "variable with the whole": "x='git clean -fd'; $x",
    "variable as argument": "x=clean; git $x -fd",
    "loop variable": "for x in status clean; do git $x -fd; done",
    "default as name": "${x:-git} clean -fd",
    "default as argument": "git ${x:-clean} -fd",
    "empty expansion": "g$@it clean -fd",
    "empty expansion in the argument": "git cl$@ean -fd",
    "braces": "{git,clean,-fd}",
    "braces behind": "git {clean,-fd}",
    "redirection in between": "git >/dev/null clean -fd",
    "redirection before": ">/dev/null git clean -fd",
    "options in between": "git -C . clean -fd",
    "more options": "git --no-pager -c a.b=c clean -fd",
    "function of another name": "status() { git clean -fd; }; status",
    "assignment before": "LANG=C git clean -fd",
    "tabs": "git\tclean\t-fd",
    "many spaces": "  git    clean   -fd",
    "background and wait": "git clean -fd& wait",
    "no spaces": "true&&git clean -fd",
    "substituted name": "$(echo git) clean -fd",
    "comment, then a line": "true # nothing\ngit clean -fd",
    "quoted hash": "echo '#'; git clean -fd",
    "hash in a word": "echo a#b; git clean -fd",
    "builtin eval": "builtin eval 'git clean -fd'",
    "command eval": "command eval 'git clean -fd'",
    "busy pipeline": "echo x | cat | cat | tee /dev/null | git clean -fd",
    "exit code trick": "false; [ $? -eq 1 ] && git clean -fd",
    "other case of options": "git clean -f -d -x",
    "long options": "git clean --force -d",
    "glob in the name's directory": "command -p true; git clean -fd",
    "source of a process": "source <(echo 'git clean -fd')",
    "dot": ". /dev/stdin <<< 'git clean -fd'",
    "printf -v": "printf -v x 'git clean -fd'; $x",
    "read": "read -r x <<< 'git clean -fd'; $x",
    "array": "x=(git clean -fd); ${x[@]}",
    "two pairs of backticks": ">/dev/null `git clean -fd` `git clean -fd`",
    "nothing in between": "git $nothing clean -fd",
    "options of an option": "git -c a=b -C . --no-pager clean -fd",
}


def run_in_bash(command: str, folder: Path) -> str:
    """Run a command with a stub `git`, and give the calls of the stub."""
    log = folder / "log"
    stub(folder / "bin", "git", log)
    env = {"PATH": f"{folder / 'bin'}:/usr/bin:/bin", "HOME": str(folder)}
    subprocess.run(
        ["/bin/bash", "-c", command],
        cwd=folder,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        timeout=60,
        check=False,
    )
    return log.read_text(encoding="utf-8") if log.exists() else ""


def bash_parses(text: str) -> bool:
    """Tell whether bash can parse a text."""
    bash = ["/bin/bash", "-n", "-c", "--", text]
    return subprocess.run(bash, capture_output=True, timeout=60, check=False).returncode == 0


GUESSED = {"substituted name", "read", "printf -v", "array", "xargs with the command as data"}
"""Commands that only running them can resolve: asked about, never allowed."""


@pytest.mark.parametrize("name", NESTED)
async def test_every_nested_command_is_found(name: str, tmp_path: Path) -> None:
    command = NESTED[name]
    assert "clean" in run_in_bash(command, tmp_path)
    found = [*parse_command(command).commands, *parse_command(command).suspects]
    assert any(may_be_command("git clean", one) is PatternMatch.YES for one in found)
    assert await get_effect(tmp_path, command, rules(allow=WIDE, deny=DENIED)) is Effect.DENY


@pytest.mark.parametrize("name", HIDDEN)
async def test_r50_denied_command_stays_denied(name: str, tmp_path: Path) -> None:
    command = HIDDEN[name]
    assert "clean" in run_in_bash(command, tmp_path)
    effect = await get_effect(tmp_path, command, rules(allow=WIDE, deny=DENIED))
    assert effect in ({Effect.ASK, Effect.DENY} if name in GUESSED else {Effect.DENY})


MODEST = (
    "bash(echo *); bash(git status *); bash(git log *); bash(git diff *); bash(ls *); bash(cat *);"
    "bash(find *); bash(sed *); bash(awk *); bash(python *); bash(python3 *); bash(node *);"
    "bash(npx *); bash(uvx *); bash(perl *); bash(tar *); bash(sort *); bash(rg *); bash(make *);"
    "bash(git branch *); bash(true *); bash(cd *); bash(head *); bash(printf *); bash(npm *);"
    "bash(curl *); bash(tee *); bash(env *); bash(test *); bash(wc *); bash(export *)"
)
WRITING = (
    # files that a redirection makes
    "echo x > out.txt",
    "echo x >> out.txt",
    "echo x >| out.txt",
    "echo x &> out.txt",
    "echo x >& out.txt",
    "cat < in.txt > out.txt",
    "> out.txt",
    "exec > out.txt",
    "ls 2> out.txt",
    "echo x > $f",
    "echo x > ~/.bashrc",
    "echo x > ../out.txt",
    "echo x > /etc/cron.d/x",
    "echo x > .git/hooks/pre-commit",
    "echo x > $HOME/x",
    "cd /tmp && echo x > out.txt",
    "cat <<EOF > out.txt\nx\nEOF",
    "echo x 3<> out.txt",
    # commands without an allow rule
    "ls; rm -rf x",
    "ls && curl-not-really x",
    "ls $(rm x)",
    "ls `rm x`",
    "cat <(rm x)",
    "echo ${x:-$(rm x)}",
    "ls & rm x",
    "ls | xargs rm",
    "ls\nrm x",
    "ls \\\n; rm x",
    "(rm x)",
    "if ls; then rm x; fi",
    "for f in *; do rm $f; done",
    "ls() { rm x; }; ls",
    "alias ls='rm x'; ls",
    "ls; \\rm x",
    "ls; /bin/rm x",
    "./ls",
    "/tmp/echo x",
    "./timeout 5 ls",
    "/tmp/env ls",
    "echo x > *.txt",
    "timeout ${x} ls",
    "command -v ls",
    "ls() (rm x); ls",
    "export -f ls; ls",
    "unset PATH; ls",
    "deno eval x",
    "timeout -- 5 rm x",
    "less -- x",
    "$ls x",
    "'ls' x",
    "l\\s x",
    # variables that change what a name means
    "PATH=/tmp/evil ls",
    "PATH=/tmp/evil; ls",
    "LD_PRELOAD=/tmp/x.so ls",
    "GIT_PAGER='rm x' git log",
    "GIT_SSH_COMMAND='rm x' git status",
    "BASH_ENV=/tmp/x ls",
    "export PATH=/tmp/evil; ls",
    "for PATH in /tmp/evil; do ls; done",
    "IFS=x; ls",
    "PYTHONPATH=/tmp python -m x",
    "NODE_OPTIONS='--require /tmp/x' node x.js",
    "env PATH=/tmp/evil ls",
    "env -S 'rm x'",
    "http_proxy=evil ls",
    # options that run or write
    "find . -delete",
    "find . -exec rm {} +",
    "find . -ok rm {} ';'",
    "find . -fprint out.txt",
    "find . $x",
    "sed -i s/a/b/ f",
    "sed 's/a/rm x/e' f",
    "sed -n 'w out.txt' f",
    "sed --in-place s/a/b/ f",
    "sed -e '1e rm x' f",
    "awk 'BEGIN{system(\"rm x\")}'",
    "awk '{print > \"out.txt\"}' f",
    "awk '{print | \"sh\"}' f",
    "awk -f prog.awk f",
    "awk $prog f",
    "sed $prog f",
    "ls >&-x",
    "git log --output=out.txt",
    "git diff --ext-diff",
    "git -c core.pager='rm x' log",
    "git -ccore.pager=x status",
    "tar -cf x.tar --use-compress-program='rm x' .",
    "tar xf x.tar --checkpoint=1 --checkpoint-action=exec=sh",
    "tar -I 'rm x' -xf x.tar",
    "sort -o out.txt f",
    "sort --compress-program=x f",
    "rg --pre ./x pattern",
    "make --eval='x:;rm x'",
    "curl -o out.txt https://example.org",
    "curl --output out.txt https://example.org",
    "tee out.txt",
    "printf -v PATH x",
    # C20: launchers that run text as code
    "python -c 'import os'",
    "python3 -Ic 'import os'",
    "python -",
    "python",
    "python <<EOF\nimport os\nEOF",
    "python $x",
    "node -e 'x'",
    "node --eval 'x'",
    "node -pe 'x'",
    "node --require ./x y.js",
    "npx -c 'rm x'",
    "npx --call 'rm x'",
    "npx --package x y",
    "npx -yc 'rm x'",
    "npm exec x",
    "npm x -c 'rm x'",
    "uvx --from git+https://example.org/x y",
    "uvx --with x y",
    "perl -e 'unlink x'",
    "perl -pi -e s/a/b/ f",
    # where the grammar and the shell read differently
    "ls\n\\\nrm x",
    "ls >/dev/null rm x",
    "! ls 2>&1 -x",
    "true | ls 2>&1 rm x",
    "ls ''\\a",
    "ls $",
    "time x=a rm",
    ">/dev/null &>/dev/null r\\m 2>/dev/null",
    "nice ls x=a\n\n\\rm x",
    # what cannot be understood
    "echo 'x",
    "ls )",
    "echo $((x))",
    "[[ $x -eq 1 ]] && ls",
    "echo ${x@P}",
    "echo ${!x}",
    "case x in x) ls;; esac",
    "cat <<EOF\nx\nEOF",
    "cat <<< x",
    "ls {a,b}; echo $'x'",
    "",
    "   ",
    "# nothing",
    "x=1",
)
FINE = (
    "ls",
    "ls -la src",
    "git status",
    "git log --oneline -5 | head -n 3",
    "ls && git status; cat a b",
    "cat a 2>/dev/null",
    "ls >/dev/null 2>&1",
    "timeout 5 ls -l",
    "nice -n 5 ls",
    "time -p ls",
    "nohup ls",
    "env LANG=C ls",
    "LC_ALL=C sort f",
    "echo 'rm -rf /'",
    'echo "a; rm x"',
    "echo hello > /dev/null",
    "if test -f x; then cat x; else echo no; fi",
    "for f in a b; do cat $f; done",
    "f=a; cat $f",
    'f=$(ls); echo "$f"',
    "! ls",
    "(ls)",
    "{ ls; cat x; }",
    "ls &",
    "# what is here\nls",
    "ls \\\n  -la",
    "cat < in.txt",
    "diff_is_not_here=1; ls",
    "sed -n '1,20p' f",
    "sed s/a/b/g f",
    "awk '{print $1}' f",
    "awk -F: '{print $1}' f",
    "find . -name '*.py'",
    "python -m pytest -q",
    "python3 script.py --flag",
    "git diff --cached",
    "echo héllo wörld",
    "cat <(ls)",
)


@pytest.mark.parametrize("command", WRITING)
async def test_r50_writing_or_unparsed_commands_are_never_allowed_by_rules(command: str, tmp_path: Path) -> None:
    assert await get_effect(tmp_path, command, rules(allow=MODEST)) is Effect.ASK


@pytest.mark.parametrize("command", FINE)
async def test_parsed_and_allowed_command_needs_no_question(command: str, tmp_path: Path) -> None:
    assert bash_parses(command)
    assert await get_effect(tmp_path, command, rules(allow=MODEST)) is Effect.ALLOW


@pytest.mark.parametrize(
    ("text", "read"),
    [
        (r"$'a\tb'", "a\tb"),
        (r"$'\cA\x01\101\x41\u0041\U00000041'", "\x01\x01AAAA"),
        (r"$'\'\"\q'", "'\"q"),
        (r"$'a\x00b'", "ab"),
        (r"$'\Uffffffff'", ""),
        ("a\\ b'c d'\"ef\"", "a bc def"),
        ('"a\\\\b\\$c\\"d\\e"', 'a\\b$c"d\\e'),
        ("a\\*b", "a*b"),
    ],
)
def test_quotes_are_removed_like_the_shell_does(text: str, read: str) -> None:
    word = parse_command(f"echo {text}").commands[0].words[1]
    assert word.guesses[0] == read
    assert word.text in {None, read}


async def test_c16_denied_command_behind_another_is_denied(tmp_path: Path) -> None:
    given = rules(allow="bash(git fetch *); bash(git clean *)", deny="bash(git clean)")
    assert await get_effect(tmp_path, "git fetch && git clean -fd", given) is Effect.DENY


@pytest.mark.parametrize("count", [60, 500, MOST_COMMANDS + 10])
async def test_c17_many_commands_do_not_hide_a_denied_one(count: int, tmp_path: Path) -> None:
    given = rules(allow=WIDE, deny=DENIED)
    command = "true;" * count + "git clean -fd"
    assert await get_effect(tmp_path, command, given) is Effect.DENY


async def test_c17_too_long_command_is_denied_if_there_is_a_deny_rule(tmp_path: Path) -> None:
    command = f"echo {'x' * LONGEST_TEXT}; git clean -fd"
    assert await get_effect(tmp_path, command, rules(allow=WIDE, deny=DENIED)) is Effect.DENY
    assert await get_effect(tmp_path, command, rules(allow=WIDE)) is Effect.ASK


async def test_c17_too_many_here_documents_are_denied_if_there_is_a_deny_rule(tmp_path: Path) -> None:
    command = "cat " + "<<a " * 5_000
    assert await get_effect(tmp_path, command, rules(allow=WIDE, deny=DENIED)) is Effect.DENY
    assert await get_effect(tmp_path, command, rules(allow=WIDE)) is Effect.ASK


async def test_c17_deeply_nested_text_is_denied_if_there_is_a_deny_rule(tmp_path: Path) -> None:
    command = "git clean -fd"
    for _ in range(9):
        command = "eval " + "'" + command.replace("'", "'\\''") + "'"
    assert await get_effect(tmp_path, command, rules(allow=WIDE, deny=DENIED)) is Effect.DENY


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("echo x > ~/.bashrc", Effect.ASK),
        ("echo x >> /etc/profile", Effect.ASK),
        ("ls && echo x > ../x", Effect.ASK),
        ("echo x > /proc/self/mem", Effect.DENY),
        ("cat < /etc/shadow", Effect.ASK),
    ],
)
async def test_c18_rule_for_a_command_does_not_cover_its_redirection(
    command: str, expected: Effect, tmp_path: Path
) -> None:
    given = rules(allow=f"{WIDE}; bash; write; read")
    assert await get_effect(tmp_path, command, given) is expected


SPACES = ["\r", "\xa0", "\u2003", "\u3000", "\u200b", "\u202e", "\v", "\f", "\x85", "\u2028", "\0"]


@pytest.mark.parametrize("space", SPACES)
async def test_c19_unusual_white_space_is_never_allowed(space: str, tmp_path: Path) -> None:
    for command in (f"ls{space}-la", f"ls -la{space}", f"{space}ls", f"ls '{space}'"):
        assert await get_effect(tmp_path, command, rules(allow=f"{WIDE}; bash")) is Effect.ASK


@pytest.mark.parametrize("space", SPACES)
async def test_c19_unusual_white_space_does_not_hide_a_denied_command(space: str, tmp_path: Path) -> None:
    given = rules(allow=f"{WIDE}; bash", deny=DENIED)
    for command in (f"git{space}clean -fd", f"g{space}it clean", f"ls #{space}git clean -fd"):
        effect = await get_effect(tmp_path, command, given)
        assert effect is not Effect.ALLOW
        if space in "\r\u2028\v":
            assert effect is Effect.DENY


ALLOWED_PARTS = st.sampled_from(["ls -la", "git status", "cat 'a;b'", 'echo "x && y"', "true"])
DENIED_PARTS = st.sampled_from(
    ["git clean -fd", "$(git clean)", "sh -c 'git clean'", "env git clean -x", "`git clean`"]
)
BETWEEN = st.sampled_from(["; ", " && ", " || ", " | ", "\n", " & ", " ;\t", " \\\n && "])


@given(st.lists(st.tuples(st.one_of(ALLOWED_PARTS, DENIED_PARTS), BETWEEN), min_size=1, max_size=8))
async def test_r50_chain_is_as_strict_as_its_strictest_part(
    tmp_path_factory: pytest.TempPathFactory, chain: list[tuple[str, str]]
) -> None:
    parts = [part for part, _ in chain]
    command = "".join(part + link for part, link in chain[:-1]) + parts[-1]
    effect = await get_effect(tmp_path_factory.getbasetemp(), command, rules(allow=MODEST, deny=DENIED))
    hidden = any("clean" in part for part in parts)
    assert effect is (Effect.DENY if hidden else Effect.ALLOW), command


@given(st.text(alphabet="gitclean -fd\"'\\$(){};&|<>`\n#*?[]=!~ \t", max_size=40))
def test_parser_accepts_any_text_and_bash_parses_what_is_allowed(text: str) -> None:
    script = parse_command(text)
    assert script.text == text
    if not script.flaws and script.commands:
        assert bash_parses(text), text


PIECES = st.sampled_from(
    [
        *("a ", "b ", "'a b' ", '"b a" ', "\\a ", "$x ", "x=a ", "x=a\n", "| ", "&& ", "|| ", "; "),
        *("\n", "(", ") ", "{ ", "; } ", "if ", "; then ", "; fi ", "# ", "#", "<(a) ", "$(b) "),
        *("`a` ", "! ", "& ", "for x in a b; do ", "; done ", ">/dev/null ", "2>&1 ", "\\\n"),
        *('"$(a)" ', "''", '""', "a\\;", "${x} ", "a=b ", "\t", "-x ", "~ ", "* ", "a", "b", "$"),
        *("'", '"', "\\", "else ", "time ", "nice ", "env ", "<", "a#b ", "{a ", "=", "in ", "$("),
    ]
)


@given(st.lists(PIECES, min_size=1, max_size=9).map("".join))
@example("a else x=a\n\\\n{a 'a b' ")
@example('x=a | b 2>&1 b "$(a)" ')
@example("! -x 2>&1 a ")
@example("env ''\\a ")
@example("a '\n'")
@examples(3)
def test_every_command_that_bash_runs_was_found_by_the_parser(
    tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    script = parse_command(text)
    if script.flaws or not script.commands:
        return
    folder = tmp_path_factory.mktemp("run")
    log = folder / "log"
    for name in ("a", "b", "x", "-x", "ab", "ba", "aa", "bb"):
        stub(folder / "bin", name, log, logged="")  # arguments may hold newlines
    bash = ["/bin/bash", "-c", "--", f"{text}\nwait"]
    env = {"PATH": str(folder / "bin"), "HOME": str(folder)}
    subprocess.run(bash, cwd=folder, env=env, capture_output=True, timeout=60, check=False)
    ran = log.read_text(encoding="utf-8").splitlines() if log.exists() else []
    found = {one.words[0].text for one in script.commands}
    assert {line.split()[0] for line in ran} <= found, text
