"""How a shell tells where it stood when it ended: without a word on its output, whatever ends it.

bash reads the preamble before the command, which stays as it was written. It leaves the directory
in a private file when the shell exits, also when the command sets an exit trap of its own or
replaces the shell with another program.
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
"""An alias, because a function would undo the redirections that `exec` is there to make."""


def final_cwd_variables(preamble: str, note: str, env: dict[str, str]) -> dict[str, str]:
    """Give the variables that have bash read the preamble and leave its note."""
    own = {"INDUS_BASH_ENV": env["BASH_ENV"]} if env.get("BASH_ENV") else {}
    return {"BASH_ENV": preamble, FILE_VARIABLE: note, **own}


def read_final_cwd(note: str) -> str | None:
    """Read what a shell has left, and remove it; the command may have put anything there."""
    try:
        handle = os.open(note, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        said = os.read(handle, _LONGEST_PATH)
        os.unlink(note)
    except OSError:
        return None
    finally:
        os.close(handle)
    path = os.fsdecode(said.removesuffix(b"\n"))
    return path if os.path.isabs(path) and "\0" not in path else None
