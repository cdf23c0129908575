"""Final working directory of a bash command, recorded without output.

bash reads the preamble before the command (`BASH_ENV`, https://www.gnu.org/software/bash/manual/bash.html#Bash-Startup-Files).
An EXIT trap writes the directory to a private file, also when the command sets an EXIT trap of its own or replaces the
shell by `exec`.
"""

from __future__ import annotations

import os

FILE_VARIABLE = "INDUS_CWD_FILE"
_LONGEST_PATH = 16 * 1024

PREAMBLE = r"""
__indus_cwd_file=$INDUS_CWD_FILE
unset -v BASH_ENV INDUS_CWD_FILE
if [ -n "${INDUS_BASH_ENV-}" ]; then
  BASH_ENV=$INDUS_BASH_ENV
  export BASH_ENV
  unset -v INDUS_BASH_ENV
  . "$BASH_ENV"
fi
__indus_cwd() {
  local status=$?
  builtin pwd -P 2>/dev/null >|"$__indus_cwd_file"
  return $status
}
trap() {
  case ${1-} in '' ) [ $# -gt 0 ] || { builtin trap; return; } ;; esac
  case $1 in -[lp]*) builtin trap "$@"; return ;; --) shift ;; esac
  [ $# -gt 1 ] || set -- - "$@"
  local action=$1 name status=0
  shift
  for name; do
    case $name in
      EXIT|exit|0|SIGEXIT)
        case $action in
          -|'') builtin trap -- __indus_cwd EXIT ;;
          *) builtin trap -- "__indus_cwd"$'\n'"$action" EXIT ;;
        esac ;;
      *) builtin trap -- "$action" "$name" || status=1 ;;
    esac
  done
  return $status
}
builtin trap -- __indus_cwd EXIT
shopt -s expand_aliases
alias exec='INDUS_CWD_KEPT=$(__indus_cwd) exec'
"""
"""`exec` is an alias, because a function would undo its redirections."""


def final_cwd_variables(preamble: str, cwd_file: str, env: dict[str, str]) -> dict[str, str]:
    """Return the variables that make bash read the preamble and write its directory to `cwd_file`."""
    own = {"INDUS_BASH_ENV": env["BASH_ENV"]} if env.get("BASH_ENV") else {}
    return {"BASH_ENV": preamble, FILE_VARIABLE: cwd_file, **own}


def read_final_cwd(cwd_file: str) -> str | None:
    """Read and remove the file of a shell; None unless it holds an absolute path, since any process may write it."""
    try:
        handle = os.open(cwd_file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        data = os.read(handle, _LONGEST_PATH)
        os.unlink(cwd_file)
    except OSError:
        return None
    finally:
        os.close(handle)
    path = os.fsdecode(data.removesuffix(b"\n"))
    return path if os.path.isabs(path) and "\0" not in path else None
