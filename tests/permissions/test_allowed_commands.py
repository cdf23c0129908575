"""Rules with a `*`: they cover the program they name, and no argument that runs or writes more.

The tables name cases; the law at the end generates commands with hostile file names, and has a real
bash run every one that the permissions allows.
"""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest
from outside.permission_fuzz.laws import decide, find_hidden, find_overruns
from outside.permission_fuzz.run import Playground
from tests.permissions.support import Person, check_call, rules

from induscode.permissions.check import Permissions
from induscode.permissions.confirm import ApprovalScope
from induscode.permissions.policy import ApprovalMode
from induscode.permissions.rules import Effect
from induscode.permissions.shell.parse import parse_command
from induscode.permissions.shell.syntax import expand_braces

if TYPE_CHECKING:
    from pathlib import Path

BEYOND: tuple[str, ...] = (
    # arithmetic evaluation, and builtins that set variables
    "test -v 'a[$(x)]'", "test -R x", "test $x", 'test "$x" y', "[ -v 'a[$(x)]' ]",
    "printf -v 'a[$(x)]' x", "printf '%n' PATH", "printf '%5n' PATH", 'printf "$x" PATH',
    "printf -vPATH x", "echo $((a[$(x)]))", "jobs -x x", "wait -p 'a[$(x)]'", "let 'a[$(x)]'",
    # bundled and old-style options
    "tar cIf x y.tar z", "tar xIf x y.tar", "tar cvIf x y.tar z", "tar -cIf x y.tar z",
    "sort -no out f", "sort -ro out f", "curl -sSo out https://example.org", "python3 -Bc x",
    "perl -we x", "zip -qTT x out.zip f", "make -nf x", "wget -qO out https://example.org",
    # a file may have the name of an option
    "tar cf x *", "find . -exe?", "sort *", "git log *", "ls *", "cat ?*", "sort [-]*", "rsync * y",
    "find *", "sed p *", "sort $x", 'sort "$x"', "sort {-o,x}", "sort $(cat f)", "rg x *",
    "python3 x.py *", "for f in *; do sort $f; done", "x=-o; sort $x f",
    # interpreter options before the code, and code by other ways
    "python3 -X dev -c x", "python3 -W ignore -c x", "python3 -I -c x", "python3 -m timeit x",
    "python3 -m runpy x", "python3 /dev/stdin", "python3 /dev/fd/0", "python3 /proc/self/fd/0",
    "python3 <(echo x)", "python3 -i x.py", "perl -Mx y.pl", "perl -d x", "node --import x y.js",
    "node -r x y.js", "ruby -rx y.rb", "php -r x", "uv run python -c x", "uv run --with x y",
    "bash -o posix -c x", "bash --rcfile x y", "npx ./x", "npx user/repo", "npx git+ssh://x/y",
    # options and operands whose value is a command
    "git -c core.pager=x log", "git --config-env=core.pager=X log", "git log --ext-diff",
    "git grep -Ox y", "git grep --open-files-in-pager=x y", "git difftool -x x", "git bisect run x",
    "git rebase -x x", "git rebase --exec=x", "git fetch --upload-pack=x y", "git clone ext::x y",
    "git fetch 'ext::x y'", "git push --receive-pack=x", "git submodule foreach x", "git x",
    "rg --pre x y", "rg --pre=x y", "rg -z x", "sort --compress-program=x f",
    "tar --to-command=x f",
    "tar cf host:x y", "tar -T x", "find . -exec x", "find . -ok x", "find . -okdir x",
    "sed 's/a/b/e' f", "sed -e p -e 'e x' f", "sed --expression='e x' f", "awk '{system(x)}' f",
    "awk 'BEGIN{x | getline}'", "gawk '@load \"x\"'", "rsync -e x y z", "rsync --rsh=x y z",
    "make SHELL=x", "make --eval=x", "make -f x", "make -C /x", "npm --script-shell=x run y",
    "npm run --script-shell x y", "pip install --index-url=x y", "man -P x ls", "less '+!x' f",
    "go test -exec x", "go build -toolexec x", "cargo --config x build", "cargo build -Zx",
    "pytest -p x", "pytest -c x", "pytest --rootdir=x", "ssh -o ProxyCommand=x y", "vim -c x",
    "zip -T -TT x y z", "split --filter=x f", "docker run x", "env -S 'x y'", "xargs x",
    # options and operands that write
    "sort -o out f", "sort --output=out f", "sort --outp=out f", "uniq f out",
    "git diff --output=x",
    "git log --outp=x", "find . -fls out", "find . -fprintf out x", "find . -delete", "tee out",
    "dd of=out", "curl -o out x", "curl -O x", "curl -D out x", "curl -c out x", "curl -T f x",
    "curl --trace out x", "curl -w '%output{x}' y", "curl -d @f x", "curl -K f", "wget -O out x",
    "wget -P out x", "sed -i p f", "sed -n 'w out' f", "awk '{print > \"out\"}' f", "xxd f out",
    "file -C -m f", "date -s x", "date 01010000", "shuf -o out f", "ruff check --fix .",
    "tar --index-file=x -tf f", "pytest --junitxml=x", "patch -p1", "truncate -s0 f", "install a b",
    "make -- *", "uniq ./*", "uniq -- *", "uniq a $x",
    # variables that may have no value, and a directory that may be another
    "true || f=--; sort $f -o out", 'true || f=--; sort "$f" -o out', "cd x && ./run.sh",
    "true || f=x.py; python3 $f -c y", "true || s=log; git $s -c core.pager=x",
    "f='a -o b'; sort $f",
    "uv run sudo x", "uv run env x",
    # programs and options that are not known
    "cat x | mytool", "mytool --flag", "mytool x=y", "mytool 'a b'", "mytool @f", "mytool +x",
    "mytool /dev/stdin", "sort --unknown f", "grepx -r x",
    # a file of arguments, a shell's options with a plus, what is not a script file
    "pytest @f", "pytest -q -- @f", 'pytest "$x"', "pytest -k @f", "ruff check @f", "mypy @f",
    "bash +x -c x", "sh +e -c x", "bash -e +x -c x", "node inspect x.js", "deno run data:,x",
    "deno run https://example.org/x.ts", "irb x.rb", "erl x", "sbcl x", "jshell x",
    # programs that start what they are given
    "uv run rm -rf x", "uv run cp a b", "uv run -", "uv run https://example.org/x.py",
    'uv run "$x"', "poetry run rm x", "bundle exec curl x", "npx node -e x", "npx sh -c x",
    "uvx python -c x", "npx sudo x", "arch x", "x86_64 x", "ssh-agent x", "watchexec x", "tini x",
    "/lib64/ld-linux-x86-64.so.2 /bin/x", "/usr/bin/env x", "/usr/bin/nice x",
    "nice -n5 /usr/bin/env x", "./timeout 5 x",
    # a value that only the shell knows, where it may name a host or a file
    'tar cf "$x" y', 'tar -cf "$(cat f)" y', 'curl -d "$x" y', 'curl -d "$(echo @f)" y',
    "git config core.pager x", "git config edit", "go mod edit",
    # `[` is `test`; integers and indices may be evaluated
    "[ -v x ]", "[ -R x ]", "[ a -o -v x ]", "[ 'a[$(x)]' -eq 1 ]", "test x -lt 1", "[ 1 -gt y ]",
    '[ "$x" -eq 1 ]', "test -t x", "[ $x ]", '[ "$x" y ]', "[ a < b ]", "[ a > b ]", "[ -f x",
    "[[ -v x ]]", "[[ a -eq 1 ]]", "[ -f x && ls ]", "[ -f * ]", "[ ( a ) ]",
    # directories elsewhere, and values that only the shell knows
    "git -C /x status", "git -C ../x status", 'git -C "$x" status', 'git -C "a$x" status',
    "git -C~/x log", "make -C../x all", "make -C a -C ../../b", "cmake --build /x", "cmake -P x",
    "cmake -E rm x", "cmake --build b -- SHELL=x", "cmake --build b -- -f x", "tsc -p /x", "tsc @f",
    "prettier --write .", "prettier --plugin=./x.js .", "pytest --cov-report=html:x",
    "pytest --cov-config=x", "python -m unittest discover -s /x", "python -m venv x",
    "PYTHONPATH=src pytest", "ls | xargs wc -l", "curl -o/dev/nullx y", 'curl -o "/dev/null$x" y',
    "curl -w '%{http_code}%output{x}' y", "curl -w @f y", "curl --output=x y", 'curl -w "$x" y',
    # sed and awk: where a pattern ends, and what an action does
    "sed -n '/[/p;s/]/w out;/g' f", "sed 's/[/]/w out;/;s/x/y/' f", "sed '/[[:a:]/p;s/]/w x;/g' f",
    "sed -n '/[]/p;s/]/w out;/g' f", "sed -n '/[^]/p;s/]/w out;/g' f", "npm i x@..", "npm i x@./y",
    "pip install /x", "pip install ../x", "pip install file:x", "pip install -e ../x",
    "sed '/a/{w out\n}' f", "sed '/a/{p;e x\n}' f", "awk 'NR>5{print > \"x\"}' f",
    "awk 'NR>5 {print | \"x\"}' f", "awk '\"x\" | getline > 0' f", "awk 'system(\"x\") > 0' f",
    # subcommands that write or run
    "gh config set editor x", "gh extension install x/y", "gh alias set x y", "gh api x",
    "gh pr checkout 1", "gh pr view --web", "gh x", "gh repo clone x", "systemctl restart x",
    "systemctl edit x", "systemctl -H x status", "systemctl set-environment A=b", "hostname x",
    "hostname -F f", "go run host/x@latest", "go run host/x@v1 y", "go install x@latest",
    "npm install ./x", "npm install .", "npm i ../x", "npm i user/repo", "npm i git+ssh://x/y",
    "npm i x.tgz", "npm i https://example.org/x", "npm i x@file:y", "npm i x@npm:y", "npm exec x",
    "npm x y", "npm config set editor x", "npm init x", "npx .", "yarn add ./x", "yarn dlx x",
    "pip install git+https://example.org/x", "pip install -r https://example.org/x",
    "docker exec x y", "docker compose up", "docker -H x ps", "docker cp a b", "podman run x",
    "kubectl exec x", "kubectl apply x", "kubectl delete pod x", "kubectl --kubeconfig=x get pods",
    "glab config set editor x", "ip link set x down", "ip netns exec x y", "nix run x", "useradd x",
    "ufw disable", "loginctl terminate-user x", "heroku run x", "vercel deploy", "deno install x",
    "journalctl --rotate", "snap install x",
    "kubectl config set x y", "sysctl a=b", "service x restart", "apt install x", "brew install x",
    "helm install x y", "terraform apply", "aws s3 rm x", "rustup default x", "gem install x",
)  # fmt: skip


@pytest.mark.parametrize("command", BEYOND)
def test_finding_d3_rule_for_a_program_does_not_cover_arguments_that_run_or_write(command: str) -> None:
    names = {one.words[0].shown for one in parse_command(command).commands}
    given = rules(allow="; ".join(f"bash({name} *)" for name in names if name))
    assert decide(command, given) is Effect.ASK


USUAL = (
    "git status", "git log --oneline -5", "ls -la src", "pytest -q tests", "rg foo src",
    "cat a b | head -3", "rg -n --hidden 'foo bar' src", "git diff HEAD~1 -- src/a.py",
    "git add -A && git commit -m 'x y'", "find . -name '*.py' -type f", "ls src/*.py", "cat ./*.md",
    "sort -- *", "python -m pytest -q tests/x.py", "python3 script.py --flag", "npm run build",
    "npm run test -- -v", "npm install", "cargo test --all", "go test ./...", "make test",
    "make -j4 all", "sed -n '1,20p;30,40p' f", "sed -e s/a/b/ -e '/x/d' f",
    "awk -F, '{print $2}' f",
    "sort -t, -k1,1 -n f", "uniq -c f", "tar czf x.tgz src", "tar -xzf x.tgz -C out",
    "curl -sSL https://example.org", "test -f x", 'test "$x" = y', 'test -n "$x"',
    "grep -rn foo src", "printf '%s\\n' \"$x\"", "mytool build src", "uv run pytest -q", "uv sync",
    "git push origin main", "git checkout -b feature/x", "rm -rf build", "mkdir -p a/b",
    "diff -u a b", "jq '.a[]' x.json", "echo $HOME", "wc -l ./*.py", "git stash", "git stash list",
    "git show HEAD:src/a.py", "git branch -a", "git rev-parse --short HEAD", "ruff check src",
    "git log --since=yesterday --format='%h %s' --stat", "pip install -r requirements.txt",
    "node x.js", "date +%s", "find . -mtime -5 -not -path './.git/*'", "sort -k 2 < /dev/null",
    'git diff -- "$f"', 'cat "src/$f"', "f=a; sort $f", "for f in a b; do sort $f; done",
    "git log -n 3 -S foo", "tail -n +5 f", "head -c 20 f", "du -sh .", "bash build.sh x",
    "command -v git", "python3 -V", "gcc --version", "mytool --version", "node --test",
    "python -m pip install -e .", "cat f | python3 -m json.tool", "git config user.name",
    "git config --get user.name", "go mod tidy", "yarn add -D x", "pytest --pyargs x", "arch",
    'pytest "tests/$x"', "poetry install", "poetry run pytest -q", "bundle exec rspec",
    "uvx ruff check .", "uv run python x.py", 'tar xzf "./$x"', "tar cf ./a:b c",
    """curl -d '{"email": "a@example.org"}' https://example.org""",
    "[ -f x ] && ls", "if [ -f x ]; then cat x; fi", "[ ! -d x ] || ls", '[ "$x" = y ] && ls',
    '[ -z "$x" ]', "[ 1 -lt 2 -a -e x ]", "[ $? -eq 0 ] && ls", "test 3 -ge -1", "[ -e a ] 2>/dev/null",
    "while [ -f x ]; do sleep 1; done", "[ -f a -a -d b ]", '[ -n "$(ls)" ]',
    "git -C d status", "git -C a/b log -3", "sed -n '/a/{p;q}' f", "sed '/[a-z]/{s/[^,]*x//;d}' f",
    "sed -n '/[[:space:]]x/p' f", "awk 'NR>5' f", "awk '$1 > 5 || /x/' f",
    "awk -F: '$3>=1000{print $1}' f", "pytest --cov", "pytest --cov=src --cov-report=term-missing",
    "python -m mypy src", "python -m unittest discover -s tests -p 'test_*.py'",
    "gh pr list --state open", "gh pr view 12 --json title", "gh run list -L 5", "gh issue view 3",
    "gh config get editor", "tsc --noEmit", "tsc --noEmit -p tsconfig.json", "prettier --check .",
    "make -C dir target", "make -Cdir -j4", "cmake --build build", "cmake --build build -j 4",
    "docker ps", "docker ps -a", "docker logs -f x", "kubectl get pods", "kubectl get pods -n x",
    "kubectl describe pod x", "systemctl status x", "systemctl --user list-units --no-pager",
    "glab mr list", "ip addr", "ip route show", "journalctl -u x -n 50 --no-pager", "bun install",
    "hostname", "hostname -f", "go run .", "go run ./cmd/x a", "npm install x",
    "npm i -D @types/node@^20.1.0", "npm config get registry", "sysctl -a",
    "curl -o /dev/null -w '%{http_code}' https://example.org",
    "curl -sSo/dev/null --write-out='%{time_total}' https://example.org",
)  # fmt: skip


@pytest.mark.parametrize("command", USUAL)
def test_finding_d3_usual_commands_are_allowed_by_a_rule_for_their_program(command: str) -> None:
    names = {one.words[0].shown for one in parse_command(command).commands}
    given = rules(allow="; ".join(f"bash({name} *)" for name in names))
    assert decide(command, given) is Effect.ALLOW


@pytest.mark.parametrize(
    ("pattern", "command", "effect"),
    [
        ("sort -o *", "sort -o out f", Effect.ALLOW),
        ("sort *", "sort -o out f", Effect.ASK),
        ("sort -o *", "sort f -o out", Effect.ASK),
        ("sort -o*", "sort -oout f", Effect.ASK),
        ("find . -delete", "find . -delete", Effect.ALLOW),
        ("find . *", "find . -delete", Effect.ASK),
        ("mytool --release *", "mytool --release x", Effect.ALLOW),
        ("mytool --release *", "mytool --release --other", Effect.ASK),
        ("git -C sub *", "git -C sub status", Effect.ALLOW),
        ("git frobnicate *", "git frobnicate x", Effect.ALLOW),
        ("git frobnicate *", "git frobnicate --x", Effect.ASK),
        ("python -m timeit *", "python -m timeit x", Effect.ALLOW),
        ("python *", "python -m timeit x", Effect.ASK),
        ("tee out.txt", "tee out.txt", Effect.ALLOW),
        ("tar cIf *", "tar cIf x y z", Effect.ALLOW),
        ("ls *", "ls *", Effect.ASK),
        ("[ *", "[ -f x ]", Effect.ALLOW),
        ("test *", "[ -f x ]", Effect.ALLOW),
        ("[ -f x ]", "[ -f x ]", Effect.ALLOW),
        ("[ -f x ]", "[ -f y ]", Effect.ASK),
        ("gh pr *", "gh pr create x", Effect.ASK),
        ("gh pr create *", "gh pr create x", Effect.ALLOW),
        ("gh config *", "gh config set editor x", Effect.ASK),
        ("systemctl restart *", "systemctl restart x", Effect.ALLOW),
        ("docker run *", "docker run x", Effect.ASK),
        ("*", "gh alias set x y", Effect.ASK),
        ("*", "kubectl exec x y", Effect.ASK),
        ("*", "mytool --flag", Effect.ALLOW),
        ("*", "sort -o out f", Effect.ASK),
    ],
)
def test_finding_d3_option_named_by_the_rule_is_allowed(pattern: str, command: str, effect: Effect) -> None:
    assert decide(command, rules(allow=f"bash({pattern})")) is effect


HIDING = (
    r"r\m x", '"rm" x', "/bin/rm x", r"\rm x", "command rm x", "env rm x", "busybox rm x",
    "$(echo rm) x", "x=rm; $x y", "x=$(echo rm); $x y", "x=r; x+=m; $x y", "x=rmm; ${x%m} y",
    "eval 'rm x'", "bash -c 'rm x'", "ls | xargs rm", r"find . -exec rm {} \;",
    "echo cm0= | base64 -d | sh",
    "sh <<E\nrm x\nE", ". ./file", "source file", "exec -a ls rm x", "nice rm x", "timeout 5 rm x",
    "nohup rm x", "stdbuf -o0 rm x", "setsid rm x", "time rm x", "watch rm x", "parallel rm ::: x",
    r"$'\x72m' x", "{rm,-rf,x}", "r{m,} x", "{q..r}m x", "/bin/r? x", "/bin/[r]m x",
    "hash -p /bin/rm ls; ls x", "ln -s /bin/rm y; ./y x", "cp /bin/rm y; ./y x",
    "cp /bin/r? y; ./y x", "alias y=rm; y x",
    "f() { rm x; }; f", "python3 -c 'import os; os.system(\"r\" + \"m x\")'", "perl -e 'system(x)'",
    "awk 'BEGIN{c=\"r\"; system(c \"m x\")}'", "git -c alias.y='!rm x' y", "test -v 'a[$(rm x)]'",
    "[[ -v 'a[$('rm')]' ]]", 'test -v "a[\\$(rm x)]"', r"test -v a[\$\(rm\)]",
    "[[ -v 'a[$(rm x)]' ]]", "printf -v 'a[$(rm x)]' y", "GIT_PAGER='rm x' git -p log",
    "sort --compress-program=rm f", "tar cf x y --checkpoint-action=exec=rm",
    "unknown-wrapper rm x",
    "ssh host rm x", "chrt 1 rm x", "sed '1e rm x' f", "read x <<< rm; $x y", "IFS=_; x=rm_y; $x",
    "echo 'rm x' > s; sh s", "echo 'rm x' > s; chmod +x s; ./s", "BASH_ENV=s bash -c true",
    "set -- rm x; \"$@\"", "x=(rm y); ${x[@]}", "sh -c '$0 x' rm", "cat s | sh", "$SHELL -c 'rm x'",
    "${x:-rm} y", "declare -n y=x; x=rm; $y z", "trap 'rm x' EXIT", "xargs -I{} {} x",
    "env -S 'rm x'",
    "BASH_CMDS[y]=/bin/rm; y x", "mapfile -t x <<< rm; ${x[0]} y", "zip -T -TT rm x y",
    "uv run rm x", "uv run mytool rm x", "npx rm x", "poetry run rm x", "/usr/bin/env rm x",
    "/lib64/ld-linux-x86-64.so.2 /bin/rm x", "bash +x -c 'rm x'", "[ -f x && rm y ]",
    "[ -f x ; rm y ]", "[ $(rm x) = y ]", '[ -n "$(rm x)" ]', "[ 'a[$(rm x)]' -eq 1 ]",
    "[ x || rm y ]", "docker exec x rm y", "kubectl exec x -- rm y",
)  # fmt: skip


@pytest.mark.parametrize("command", HIDING)
def test_finding_d3_denied_command_in_another_spelling_is_stopped_with_approval_all(command: str) -> None:
    assert decide(command, rules(deny="bash(rm *)"), ApprovalMode.ALL) is not Effect.ALLOW
    assert decide(command, [], ApprovalMode.ALL) is Effect.ALLOW


PLAIN = (
    "ls -la", "python3 x.py", "make test", "npm run build", "git commit -m 'do not rm it'",
    "echo 'rm -rf /'", "cat $f", "mytool --flag x", "find . -name '*.py' | xargs grep foo",
    "awk '{print $1}' f", "sed -i s/a/b/ f", "x=a; cp $x b", "bash -c 'ls -la'",
    "for f in *; do cat $f; done",
    "cd /tmp && ./run.sh --all", "docker run -it image ls",
    "curl -o out https://example.org | tee x",
    "if [ -f x ]; then cat x; fi", "env A=1 pytest", "tar xzf a.tgz", "echo $((1 + 2))", "ls {a,b}",
)  # fmt: skip


@pytest.mark.parametrize("command", PLAIN)
def test_finding_d3_command_that_cannot_be_a_denied_one_runs_with_approval_all(command: str) -> None:
    assert decide(command, rules(deny="bash(rm *)"), ApprovalMode.ALL) is Effect.ALLOW


@pytest.mark.parametrize(
    ("denied", "command"),
    [
        ("rm -rf *", "rm --recursive --force x"),
        ("rm -rf *", "rm -R -f x"),
        ("rm -rf *", "rm x $opts"),
        ("git push --force *", "git push -f"),
        ("git push *", "git $x"),
        ("git clean *", "ln -s /usr/bin/git g; ./g clean"),
        ("git clean *", "g() { git \"$@\"; }; g clean"),
        ("git clean *", "alias g=git; g clean"),
    ],
)  # fmt: skip
def test_finding_d3_command_that_a_deny_rule_may_mean_is_asked_about(denied: str, command: str) -> None:
    assert decide(command, rules(deny=f"bash({denied})"), ApprovalMode.ALL) is Effect.ASK


@pytest.mark.parametrize("command", ["echo x > $f", "cat < $f", "echo x > $(cat f)"])
def test_finding_d3_file_that_only_the_shell_knows_may_be_a_denied_one(command: str) -> None:
    given = rules(deny="write(secrets/**); read(secrets/**)")
    assert decide(command, given, ApprovalMode.ALL) is Effect.ASK
    assert decide("echo x", given, ApprovalMode.ALL) is Effect.ALLOW


@pytest.mark.parametrize(
    "word",
    ["{a,b}", "x{a,b}y", "{a,b{c,d}}", "{a..e}", "{3..1}", "{1..3}x", "{c..a}", "{a}", "{a,}",
     "{,a}", "{a,b", "a,b}", "'{a,b}'", '"{a,b}"', r"\{a,b}", "${x}{a,b}", "{a,'b c'}", "{-1..1}",
     "{}",
     "{a,b}{c,d}", "{{a,b},c}", "{a..}", "x{1..2}{a,b}"],
)  # fmt: skip
def test_finding_d3_braces_are_expanded_like_bash(word: str) -> None:
    done = subprocess.run(["/bin/bash", "-c", f"x=1; printf '<%s>' {word}"], capture_output=True, text=True, check=True)
    again = subprocess.run(
        ["/bin/bash", "+B", "-c", f"x=1; printf '<%s>' {expand_braces(word)}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert again.stdout == done.stdout


@pytest.mark.parametrize("word", ["{1..1000000000}", "{a,b}" * 20, "{r..r}m{1..300}"])
def test_finding_d3_braces_for_too_many_words_are_asked_about(word: str) -> None:
    assert expand_braces(word) is None
    assert decide(f"echo {word}", rules(deny="bash(rm *)"), ApprovalMode.ALL) is Effect.ASK


@pytest.mark.parametrize(
    ("command", "effect"),
    [
        ("sed -es/a/b/ f", Effect.ALLOW),
        ("sed -e1ex f", Effect.ASK),
        ("sed -n", Effect.ASK),
        ("awk -F:", Effect.ASK),
        ("sort --key 2 f", Effect.ALLOW),
        ("sort --key -o f", Effect.ASK),
        ("bash --version", Effect.ALLOW),
    ],
)
def test_finding_d3_values_of_options_are_read_in_every_spelling(command: str, effect: Effect) -> None:
    given = rules(allow=f"bash({command.split()[0]} *)")
    assert decide(command, given) is effect


def test_finding_d3_option_named_by_a_rule_covers_its_value() -> None:
    given = rules(allow="bash(sort --key *); bash(find -name *)")
    assert decide("sort --key 2 f", given) is Effect.ALLOW
    assert decide("find -name x", given) is Effect.ALLOW
    for command in (
        "env BASH_ENV=f sh -c ls",
        "BASH_ENV=f sh -c ls",
        "for BASH_ENV in f; do export BASH_ENV; sh -c ls; done",
    ):
        assert decide(command, rules(deny="bash(rm *)"), ApprovalMode.ALL) is Effect.ASK
    assert decide("bash --version", rules(deny="bash(rm *)"), ApprovalMode.ALL) is Effect.ALLOW


# -- E1 ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("program", ["$x", '"$SHELL"', "$(cat f)", "unknown-shell", "sh", "python3"])
def test_finding_e1_text_piped_into_an_unknown_program_stays_suspect(program: str) -> None:
    command = f"printf 'rm -rf x' | {program}"
    script = parse_command(command)
    texts = [one.shown for one in (*script.suspects, *script.possible)]
    assert "rm -rf x" in texts
    assert decide(command, rules(deny="bash(rm *)"), ApprovalMode.ALL) is not Effect.ALLOW
    if program in {"$x", '"$SHELL"', "sh"}:
        assert decide(command, rules(deny="bash(rm *)"), ApprovalMode.ALL) is Effect.DENY


@pytest.mark.parametrize(
    "command",
    ["export A=1", "declare -x A=1", "unset A", "typeset A=1", "readonly A=1", "local A=1",
    "unset -f f"],
)  # fmt: skip
def test_finding_e1_declaration_builtins_count_as_commands(command: str) -> None:
    name = command.split()[0]
    assert [one.words[0].text for one in parse_command(f"ls; {command}").commands] == ["ls", name]
    given = rules(deny=f"bash({name} *)")
    assert decide(f"ls; {command}", given, ApprovalMode.ALL) is Effect.DENY
    assert decide(f"ls; {command}", rules(deny="bash(rm *)"), ApprovalMode.ALL) is Effect.ALLOW
    assert decide(command, rules(allow="bash(ls *)")) is Effect.ASK


# -- laws -------------------------------------------------------------------------------------


@pytest.mark.process
def test_finding_d3_allowed_command_runs_nothing_outside_its_rule(tmp_path: Path) -> None:
    allowed, overruns = find_overruns(Playground(tmp_path), seed=13, count=100)  # `make gate-fuzz` tries 10,000
    assert allowed > 15
    assert overruns == []


@pytest.mark.process
def test_finding_d3_no_spelling_that_runs_a_denied_program_passes(tmp_path: Path) -> None:
    ran, passed = find_hidden(Playground(tmp_path), seed=13, count=50)
    assert ran > 12
    assert passed == []


# -- through the permissions -------------------------------------------------------------------------


@pytest.mark.anyio
async def test_finding_d3_hidden_command_is_asked_about_and_denied_without_a_person(tmp_path: Path) -> None:
    given = rules(deny="bash(rm *)")
    person = Person()
    asked = Permissions(given, approver=person, approval=ApprovalMode.ALL)
    assert not (await check_call(asked, "bash", tmp_path, command="$x a")).allowed
    (question,) = person.questions
    assert question.reasons[0] == "rule deny bash(rm *) (the user) could apply"
    assert question.scopes == (ApprovalScope.ONCE,)
    alone = Permissions(given, approval=ApprovalMode.ALL)
    refused = await check_call(alone, "bash", tmp_path, command=". ./setup.sh")
    assert not refused.allowed
    assert "Write the command plainly" in refused.reason
    assert "could apply: . runs commands that aren't in the text" in refused.reason
    assert (await check_call(alone, "bash", tmp_path, command="ls; ./run.sh")).allowed


@pytest.mark.anyio
async def test_finding_d3_reason_says_why_a_rule_does_not_cover_a_command(tmp_path: Path) -> None:
    found = await check_call(Permissions(rules(allow="bash(sort *)")), "bash", tmp_path, command="sort *")
    assert "rule bash(sort *) does not cover it" in found.reason
    assert "write ./*, or -- before it" in found.reason


@pytest.mark.anyio
async def test_finding_d3_rule_for_an_unknown_option_names_it(tmp_path: Path) -> None:
    person = Person([ApprovalScope.SESSION])
    permissions = Permissions(approver=person)
    assert (await check_call(permissions, "bash", tmp_path, command="mytool --fast x")).allowed
    assert person.questions[0].saves == ("bash(mytool --fast x)",)
    assert (await check_call(permissions, "bash", tmp_path, command="mytool --fast x")).allowed
    assert len(person.questions) == 1
