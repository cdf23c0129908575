"""The subcommands of git: https://git-scm.com/docs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from typing import Literal, TypeAlias

from indusagi.core.records import record

# -- program ----------------------------------------------------------------------------------


Check: TypeAlias = Literal["awk", "npx", "printf", "script", "sed", "tar", "test"]
"""The function in `arguments` that checks a program's operands."""

Launch: TypeAlias = Literal["runner", "shell", "wrapper"]
"""How a program runs other commands: from its arguments or input, as a shell, or as a transparent wrapper."""


@record(kw_only=True)
class Program:
    """A program or subcommand."""

    flags: str = ""
    """Harmless short options without a value."""
    values: str = ""
    """Harmless short options with a value, joined or as the next word."""
    optional: str = ""
    """Harmless short options with a value that can only be joined."""
    long: str = ""
    """Harmless long options. A trailing `=` means it needs a value."""
    words: str = ""
    """Harmless multi-letter options with a single hyphen. A trailing `=` means it takes a value."""
    acts: str = ""
    """Options that run a command or write a file."""
    any_options: bool = False
    """Whether every option is harmless."""
    always_acts: bool = False
    """Whether its operands alone make it run or write something."""
    numeric: bool = False
    """Whether `-5` is an option."""
    ends_options: bool = True
    """Whether `--` ends the options (POSIX Utility Syntax Guideline 10)."""
    options_first: bool = False
    """Whether options end at the first operand."""
    old_style: bool = False
    """Whether the first operand is a bundle of options: `tar cf`."""
    value_patterns: Mapping[str, str] = field(default_factory=dict[str, str])
    """Patterns for option values, keyed by the option as written."""
    operand: str = ""
    """Pattern for known operands; empty allows any."""
    most_operands: int | None = None
    """Maximum number of operands it reads. Any further one is a file it writes."""
    subcommands: Mapping[str, Program] = field(default_factory=dict[str, "Program"])
    argument_files: bool = False
    """Whether `@file` means the arguments in that file."""
    starts: bool = False
    """Whether its operands are another command and its arguments."""
    fetches: bool = False
    """Whether it may download the command it starts. Only a rule that names the command covers it."""
    further: int = 0
    """How many operands say what it does, such as a `make` target; for wrappers, how many precede the command."""
    launches: Launch | None = None
    check: Check | None = None


ACTS = Program(always_acts=True)
PLAIN = Program()
INSIDE = r"(?![/~+-])(?!.*(?:\.\.|[=:])).+"
"""A path below the working directory."""


# -- git --------------------------------------------------------------------------------------


_DIFF_LONG = """
    abbrev= binary cached check color color-words diff-algorithm= diff-filter= dirstat exit-code
    find-copies find-renames full-index function-context histogram ignore-all-space
    ignore-blank-lines ignore-cr-at-eol ignore-space-at-eol ignore-space-change inter-hunk-context=
    merge-base minimal name-only name-status no-color no-ext-diff no-index no-patch no-prefix
    no-renames no-textconv numstat patch patch-with-stat patience pickaxe-all pickaxe-regex quiet
    raw relative shortstat stat staged summary submodule text unified= word-diff word-diff-regex=
"""
_LOG_LONG = f"""{_DIFF_LONG}
    abbrev-commit after= all all-match ancestry-path author= author-date-order before= boundary
    branches cherry cherry-mark cherry-pick committer= date-order date= decorate
    decorate-refs= extended-regexp first-parent fixed-strings follow format= full-history graph
    grep= invert-grep left-only left-right max-count= max-parents= merges min-parents= no-decorate
    no-abbrev-commit no-merges no-notes no-pager notes oneline parents perl-regexp pretty
    regexp-ignore-case relative-date remotes reverse right-only root show-linear-break
    simplify-by-decoration since= skip= source tags topo-order until= walk-reflogs
"""
_DIFF = Program(flags="abpRsuwWz", values="GIlnSU", optional="BCM", long=_DIFF_LONG, numeric=True,
    acts="--output -O --ext-diff --textconv")  # fmt: skip
_LOG = Program(flags="abcgipqstuwEFPRW", values="GILnSU", optional="BCM", long=_LOG_LONG,
    numeric=True, acts="--output -O --ext-diff --textconv")  # fmt: skip
_REPOSITORY = r"(?!.*::).*"
"""Not `ext::command`: https://git-scm.com/docs/gitremote-helpers."""
_REMOTE_ACTS = "--upload-pack --receive-pack --exec -u -c --config --template"


def _git(flags: str = "", values: str = "", long: str = "", **more: object) -> Program:
    return Program(flags=flags, values=values, long=long, **more)  # type: ignore[arg-type] — the fields of a Program


GIT = Program(
    flags="P",
    values="C",
    value_patterns={"-C": INSIDE},
    long="bare literal-pathspecs no-optional-locks no-pager no-replace-objects version",
    acts="-c -p --config-env --exec-path --git-dir --work-tree --namespace --paginate",
    subcommands={
        "add": _git("AnNpuvf", long="all dry-run force intent-to-add no-all update verbose"),
        "blame": _git("bceflnpstw", "L", "date= line-porcelain porcelain root since= show-email"),
        "branch": _git(
            "adDfiilmMqrvcC",
            "u",
            """abbrev= all color contains copy delete force format= ignore-case list merged move
            no-color no-contains no-merged no-track points-at= quiet remotes set-upstream-to=
            show-current sort= track unset-upstream verbose""",
        ),
        "cat-file": _git("eptsz", long="batch batch-all-objects batch-check unordered"),
        "check-ignore": _git("qvnz", long="non-matching quiet stdin verbose"),
        "checkout": _git("bBdfqt", long="detach force no-track ours quiet theirs track"),
        "cherry": _git("v"),
        "cherry-pick": _git("enrsx", "m", "abort continue no-commit quit signoff skip"),
        "clean": _git("dfnqxX", "e", "dry-run exclude= force quiet"),
        "clone": _git("qvl", "bo", """bare branch= depth= local no-checkout no-tags origin= quiet
            recurse-submodules shallow-since= single-branch verbose""", acts=_REMOTE_ACTS, operand=_REPOSITORY),
        "commit": _git("aenopqsv", "mCcF", """all allow-empty allow-empty-message amend author=
            date= dry-run fixup= message= no-edit no-verify only quiet reset-author reuse-message=
            short signoff squash= status verbose"""),
        "config": _git("l", long="get get-all global list local show-origin system",
            operand=r"[\w-]+\..+", most_operands=1, further=1),
        "count-objects": _git("vH", long="human-readable verbose"),
        "describe": _git(long="abbrev= all always contains dirty exact-match long match= tags"),
        "diff": _DIFF,
        "diff-tree": _LOG,
        "fetch": _git("afnpqtv", "j", """all append depth= deepen= dry-run force jobs= no-tags prune
            prune-tags quiet shallow-since= tags unshallow verbose""", acts=_REMOTE_ACTS, operand=_REPOSITORY),
        "for-each-ref": _git(long="count= format= merged no-merged points-at= sort="),
        "fsck": _git(long="full no-dangling strict unreachable"),
        "grep": _git("acEFGhHIilLnoPpqsvwWz", "ABCefm", """all-match and basic-regexp break cached
            color column count extended-regexp fixed-strings files-with-matches
            files-without-match function-context heading ignore-case invert-match line-number
            max-count= name-only no-color no-index not null only-matching or perl-regexp quiet
            show-function untracked word-regexp""", acts="-O --open-files-in-pager --textconv",
            numeric=True),
        "init": _git("qb", long="bare initial-branch= quiet", acts="--template"),
        "log": _LOG,
        "ls-files": _git("cdfikmostuvz", "xX", """abbrev cached deleted error-unmatch
            exclude-standard exclude= full-name ignored killed modified others stage unmerged"""),
        "ls-remote": _git("hqt", long="branches exit-code heads quiet refs sort= symref tags",
            acts=_REMOTE_ACTS, operand=_REPOSITORY),
        "ls-tree": _git("dlrtz", long="abbrev full-name full-tree long name-only name-status"),
        "merge": _git("enqv", "m", """abort commit continue ff ff-only log message= no-commit
            no-edit no-ff no-stat quiet quit signoff squash stat verbose"""),
        "merge-base": _git("a", long="all fork-point independent is-ancestor octopus"),
        "mv": _git("fknv", long="dry-run force verbose"),
        "name-rev": _git(long="all always name-only refs= stdin tags"),
        "pull": _git("fnqrv", long="""all autostash depth= ff ff-only force no-edit no-rebase prune
            quiet rebase tags unshallow verbose""", acts=_REMOTE_ACTS, operand=_REPOSITORY),
        "push": _git("dfnquv", "o", """all atomic delete dry-run follow-tags force force-with-lease
            mirror no-verify porcelain prune quiet set-upstream tags verbose""",
            acts="--receive-pack --exec", operand=_REPOSITORY),
        "range-diff": _LOG,
        "rebase": _git("kmqv", long="""abort autosquash autostash continue edit-todo keep-base
            no-autostash onto= quiet quit rebase-merges root skip verbose""", acts="-x --exec -i"),
        "reflog": replace(_LOG, subcommands={"show": _LOG, "list": PLAIN, "exists": PLAIN}),
        "remote": _git("v", long="verbose", subcommands={
            "show": _git("n"), "get-url": _git(long="all push")}),
        "reset": _git("Npq", long="hard keep merge mixed no-refresh quiet soft"),
        "restore": _git("pqSW", "s", "ours quiet source= staged theirs worktree"),
        "rev-list": _LOG,
        "rev-parse": _git("q", long="""abbrev-ref abbrev all branches default= disambiguate= flags
            git-common-dir git-dir is-bare-repository is-inside-git-dir is-inside-work-tree quiet
            remotes short show-cdup show-prefix show-superproject-working-tree show-toplevel
            symbolic-full-name tags verify"""),
        "revert": _git("ens", "m", "abort continue no-commit no-edit quit signoff skip"),
        "rm": _git("fnqr", long="cached dry-run force ignore-unmatch quiet"),
        "shortlog": _git("cens", long="""all author= committer email no-merges numbered since=
            summary until="""),
        "show": _LOG,
        "show-ref": _git("dhqs", long="""abbrev branches dereference hash heads head quiet tags
            verify"""),
        "stash": _git("kpqu", "m", "all include-untracked keep-index message= patch quiet",
            subcommands={
                "apply": _git("q", long="index quiet"), "list": _LOG,
                "pop": _git("q", long="index quiet"), "show": _LOG,
                "push": _git("akpqu", "m", "all include-untracked keep-index message= quiet")}),
        "status": _git("bsvz", long="""ahead-behind branch column ignore-submodules ignored long
            no-column no-renames porcelain renames short show-stash untracked-files verbose""",
            optional="u"),
        "switch": _git("cCdfqt", long="""create= detach force force-create= guess orphan= quiet
            track"""),
        "symbolic-ref": _git("dq", long="short quiet"),
        "tag": _git("adfilnn", "mF", """annotate color contains delete format= force ignore-case
            list merged message= no-contains no-merged points-at= sort=""", numeric=True),
        "var": PLAIN,
        "version": PLAIN,
        "whatchanged": _LOG,
        "worktree": _git(subcommands={"list": _git("vz", long="porcelain verbose"),
            "add": _git("bBdfq", long="detach force quiet", operand=INSIDE)}),
        "submodule": _git("q", long="quiet", subcommands={"status": _git(long="cached recursive"), "summary": PLAIN}),
        "notes": _git(subcommands=dict.fromkeys(("list", "show", "get-ref"), PLAIN)),
        "rerere": _git(subcommands=dict.fromkeys(("diff", "remaining", "status"), PLAIN)),
        "bundle": _git(subcommands=dict.fromkeys(("list-heads", "verify"), PLAIN)),
        "sparse-checkout": _git(subcommands={"list": PLAIN}),
        "lfs": _git(subcommands=dict.fromkeys(("env", "ls-files", "status", "version"), PLAIN)),
        "hook": _git(subcommands={"run": ACTS}),
        "bisect": _git(subcommands=dict.fromkeys(("bad", "good", "log", "new", "old", "reset", "skip"), PLAIN)),
    },
)  # fmt: skip
