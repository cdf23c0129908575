"""The table of programs: scope of a rule, number of words "always" saves, read-only programs, and program launchers.

A rule such as `bash(sort *)` lets `sort` run with the options and operands this table deems harmless. A missing option
or subcommand needs a rule that names it (`bash(gh pr create *)`); a subcommand that runs code needs a rule with every
word. Unknown programs may have plain operands only. `acts` feeds the reason users see and marks options that never
become a rule; leaving an option out of it is just as safe.

`test_programs.py` checks the table against the programs' `--help`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from induscode.deck.programs.git import ACTS, GIT, INSIDE, PLAIN, Program


def _looks(subcommands: str, acting: str = "", **options: str) -> Program:
    """Build a program with read-only subcommands and `acting` ones that run code."""
    read_only = Program(**options)  # type: ignore[arg-type] — the fields of a Program
    looking = dict.fromkeys(subcommands.split(), read_only)
    return Program(subcommands={**looking, **dict.fromkeys(acting.split(), ACTS)})


_GH_LONG = """author= assignee= base= branch= comments commit= event= head= jq= json= label= limit=
    log log-failed milestone= name-only order= repo= required search= sort= state= status=
    template= user= verbose workflow="""
_GH_LIST = Program(flags="d", values="ABHLRSalqst", long=f"{_GH_LONG} draft")
_GH_VIEW = Program(flags="cv", values="Rqtj", long=_GH_LONG)
_GH = Program(long="version", subcommands={
    "alias": _looks("list", "set import"), "auth": _looks("status"), "config": _looks("get list", "set clear-cache"),
    "extension": _looks("list search", "install upgrade exec create"),
    "issue": Program(subcommands={"list": _GH_LIST, "status": _GH_VIEW, "view": _GH_VIEW}),
    "label": _looks("list"),
    "pr": Program(subcommands={"list": _GH_LIST, "status": _GH_VIEW,
        "view": _GH_VIEW, "checks": Program(values="Rqt", long="json= required"),
        "diff": Program(values="R", long="color= name-only patch")}),
    "release": _looks("list view", values="LRqt", long="json= limit= repo="),
    "repo": _looks("list view", values="Lbqt", long="json= limit="),
    "run": _looks("list view", values="LRbeujsqt", long=_GH_LONG),
    "secret": _looks("list"), "status": PLAIN, "variable": _looks("get list"),
    "workflow": _looks("list view", flags="a", values="LR", long="all limit= repo=")})  # fmt: skip
_SYSTEMCTL_LONG = """all failed full lines= no-legend no-pager output= plain property= quiet state=
    system type= user value version"""
_SYSTEMCTL_LOOKS = """cat get-default is-active is-enabled is-failed list-dependencies list-jobs
    list-sockets list-timers list-unit-files list-units show status"""
_SYSTEMCTL = Program(flags="alq", values="npto", long=_SYSTEMCTL_LONG, subcommands={
    **dict.fromkeys(_SYSTEMCTL_LOOKS.split(), Program(flags="alq", values="npto", long=_SYSTEMCTL_LONG)),
    **dict.fromkeys(("edit", "link", "set-environment", "import-environment"), ACTS)})  # fmt: skip
_DOCKER = _looks("diff history images info inspect logs port ps search top version",
    flags="aflqst", values="n", long="""all digests filter= follow format= last= latest no-stream
        no-trunc quiet since= size tail= timestamps until=""")  # fmt: skip
_KUBECTL = _looks("api-resources api-versions describe explain get logs top version",
    flags="Afwp", values="clnoL", long="""all-containers all-namespaces container= context= follow
        namespace= no-headers output= previous recursive selector= show-labels since= sort-by=
        tail= timestamps watch wide""")  # fmt: skip
SERVICES: Mapping[str, Program] = {
    **dict.fromkeys(("docker", "podman", "nerdctl"), _DOCKER),
    "gh": _GH,
    "kubectl": _KUBECTL,
    "systemctl": _SYSTEMCTL,
    "hostname": Program(flags="AadfiIsy", long="fqdn short version", most_operands=0),
    "sysctl": Program(flags="aenN", operand=r"[^=]*"),
    "service": ACTS,
    **dict.fromkeys(("apt", "apt-cache", "apt-get", "dnf", "yum"), _looks("list policy search")),
    "brew": _looks("deps info list outdated search"),
    "helm": _looks("list status version", flags="Aa", values="n", long="all namespace="),
    "terraform": _looks("version"),
    **dict.fromkeys(("hostnamectl", "localectl", "timedatectl"), _looks("status")),
    "glab": Program(subcommands={"config": _looks("get", "set"), "alias": _looks("list", "set"),
        **dict.fromkeys(("issue", "mr", "release"), _looks("list view"))}),
    "ip": Program(subcommands=dict.fromkeys(
        ("a", "addr", "address", "l", "link", "n", "neigh", "r", "route"), _looks("list ls show"))),
    "journalctl": Program(flags="aefkqrx", values="bgnoptuSU", long="""follow lines= no-pager
        output= since= unit= until= user"""),
    "nix": _looks("eval search", "run shell develop"),
    "ufw": _looks("status version"),
    **dict.fromkeys(("ansible", "passwd", "useradd", "userdel", "usermod", "swapoff"), ACTS),
    **dict.fromkeys(("apk", "flatpak", "snap", "zypper"), _looks("info list search")),
    **dict.fromkeys(("aws", "az", "gcloud"), replace(_looks("help version"), further=2)),
    **dict.fromkeys(("corepack", "doctl", "fly", "flyctl", "gem", "heroku",
        "launchctl", "loginctl", "netlify", "nmcli", "rustup", "vercel"), _looks("help version")),
}  # fmt: skip
"""By the name of the program, without its directory."""


PACKAGE = r"(?!\.)(?!.*\.(?:tgz|tar|gz)$)(?:@[\w.-]+/)?[\w-][\w.-]*(?:@(?!\.)[\w.^~*<>=-]+)?"
"""A registry package, not a path, archive, URL or repository: https://github.com/npm/npm-package-arg."""
_REGISTERED = r"(?![/~])(?!.*(?:\.\.|:)).*"
"""A name with a version, or a path below the working directory; not a URL."""
_READER = Program(any_options=True)
_READERS = """
    : b2sum base32 base64 basename break cal cat cd cksum cmp column comm continue cut df
    diff dir dirname dirs du echo egrep exit expand expr factor false fgrep fmt fold free getconf
    getent grep groups head hexdump id join jq kill ls lsblk lscpu md5sum nl nproc numfmt od paste
    pgrep popd pr printenv ps pushd pwd readlink realpath return rev seq sha1sum sha224sum sha256sum
    sha384sum sha512sum shift sleep stat strings sum tac tail tr true tsort tty type uname unexpand
    uptime users vdir vmstat w wc whereis which who whoami yes
"""
"""Programs that only read, with any option."""
_OPERANDS_ACT = """
    ar as at cc clang cpio csplit dc dd ed emacs ex ffmpeg ftp gcc gdb gnuplot install ld ldd link
    m4 mail mailx mkfifo mknod mount mysql nano nc nvim objcopy openssl patch pax psql script shred
    split sqlite3 strip swapon tclsh tee telnet truncate umount vi view vim visudo xxd
    erl irb jshell sbcl
"""
"""Programs that run, or write to, whatever their operands or input say."""

# -- languages, packages, builds --------------------------------------------------------------

_PYTEST = Program(
    flags="qvxsl",
    values="kmn",
    optional="r",
    long="""co collect-only color= continue-on-collection-errors cov cov-branch cov-report=
        deselect= durations= no-cov
        exitfirst failed-first ff ignore= last-failed lf maxfail= new-first nf no-header no-summary
        numprocesses= quiet setup-show showlocals stepwise strict-config strict-markers sw tb=
        verbose verbosity= version pyargs""",
    acts="-p -c -o --basetemp --config-file --debug --junitxml --log-file --override-ini --pastebin"
    " --pdb --pdbcls --rootdir --confcutdir --cov-config --junit-xml --report-log --html",
    value_patterns={"--cov-report": "(?:term|term-missing)(?::skip-covered)?"},
    argument_files=True,
)
_RUFF = Program(
    long="version",
    subcommands={
        "check": Program(flags="qsv", long="""diff extend-select= ignore= no-cache output-format=
            preview quiet select= show-files statistics verbose""",
            acts="--fix --unsafe-fixes -o --output-file --config --cache-dir --add-noqa",
            argument_files=True),
        "format": Program(flags="qsv", long="""check diff line-length= no-cache preview quiet
            verbose""", acts="--config --cache-dir", argument_files=True),
        "rule": PLAIN,
    },
)  # fmt: skip
_MYPY = Program(flags="pm", long="""check-untyped-defs follow-imports= ignore-missing-imports
    no-error-summary no-incremental pretty show-error-codes strict version warn-unreachable""",
    argument_files=True)  # fmt: skip
_BLACK = Program(flags="qv", values="l", long="check diff line-length= quiet verbose version")
_UNITTEST = Program(flags="bcfqv", values="kpst", value_patterns={"-p": INSIDE, "-s": INSIDE, "-t": INSIDE})
_MODULES = {"black": _BLACK, "mypy": _MYPY, "pytest": _PYTEST, "ruff": _RUFF, "unittest": _UNITTEST}
_PIP_INSTALL = Program(
    flags="qvU",
    values="er",
    long="dry-run no-deps no-input pre quiet requirement= upgrade user verbose",
    value_patterns=dict.fromkeys(("-e", "-r", "--requirement"), _REGISTERED),
    operand=_REGISTERED,
    acts="-i --index-url --extra-index-url -f --find-links -t --target --root --prefix"
    " --trusted-host --config-settings --global-option --src --python --cert --log",
)
_PIP = Program(
    flags="V",
    long="version",
    subcommands={
        "check": PLAIN,
        "config": _looks("debug get list", "edit set unset"),
        "freeze": Program(flags="l", long="all local user"),
        "install": _PIP_INSTALL,
        "list": Program(flags="oul", long="format= local outdated uptodate user"),
        "show": Program(flags="f", long="files verbose"),
    },
)
MODULES: Mapping[str, Program] = {
    **_MODULES,
    "json.tool": Program(long="compact indent= json-lines sort-keys", most_operands=1),
    "pip": _PIP,
}
"""Modules `python -m` may run under a rule that doesn't name them."""
_STARTS = Program(options_first=True, starts=True)
_FETCHES = Program(flags="y", long="no yes", options_first=True, starts=True, fetches=True,
    acts="-c -p --call --package --shell")  # fmt: skip
_ENVIRONMENT = Program(flags="qvV", long="quiet verbose version", subcommands={
    **dict.fromkeys(("run", "exec"), _STARTS),
    **dict.fromkeys(("add", "build", "check", "install", "list", "lock", "remove", "show", "sync",
        "update", "version"), Program(flags="qv", long="quiet verbose dev",
        operand=_REGISTERED))})  # fmt: skip
_NPM_RUN = Program(flags="s", long="silent if-present workspaces")
_NPM_INSTALL = Program(
    flags="DEPS", long="ignore-scripts no-audit no-fund omit= save save-dev save-exact", operand=PACKAGE
)
_NPM = Program(
    flags="sv",
    long="silent version",
    acts="-c --call --prefix --script-shell --shell --userconfig --globalconfig --node-options",
    subcommands={
        "add": Program(flags="DEPS", long="dev exact save-dev save-exact", operand=PACKAGE),
        "audit": Program(long="json omit= production", most_operands=0),
        "ci": Program(flags="s", long="ignore-scripts no-audit no-fund omit= silent"),
        "config": _looks("get list ls", "edit set"),
        "explore": ACTS,
        "i": _NPM_INSTALL,
        "info": Program(long="json"),
        "install": _NPM_INSTALL,
        "ls": Program(flags="al", long="all depth= json long omit="),
        "list": Program(flags="al", long="all depth= json long omit="),
        "outdated": Program(long="json all long"),
        "pkg": _looks("get", "set"),
        "run": replace(_NPM_RUN, further=1),
        "run-script": replace(_NPM_RUN, further=1),
        **dict.fromkeys(("create", "dlx", "exec", "init", "innit", "x"), _FETCHES),
        "set": ACTS,  # like `config set`: script-shell names a program
        "start": _NPM_RUN,
        "test": _NPM_RUN,
        "t": _NPM_RUN,
        "view": Program(long="json"),
        "why": Program(long="json"),
    },
)
_CARGO = Program(
    flags="qvF",
    values="jp",
    long="""all all-features all-targets bin= bins color= doc example= examples features= frozen
        jobs= keep-going lib locked message-format= no-default-features no-run offline package=
        profile= quiet release test= tests verbose workspace exclude=""",
    acts="--config -Z --target-dir --manifest-path --out-dir --artifact-dir --fix -C",
)
_CARGO_TREE = Program(flags="ideq", values="ep", long="depth= duplicates edges= invert= package= workspace")
_GO = Program(
    words="v race short json cover run= bench= count= timeout= failfast list= n x p= tags= m",
    acts="-exec -toolexec -o -C -overlay -modfile -ldflags -gcflags -asmflags -vettool"
    " -coverprofile -cpuprofile -memprofile -outputdir -trace -blockprofile -mutexprofile -pkgdir"
    " -work",
)
_SHELL = Program(
    launches="shell", flags="euxvn", long="version", options_first=True, check="script", acts="-c -s --rcfile -i -l"
)


def _language(flags: str = "", long: str = "", **more: str) -> Program:
    """Build an interpreter: options, then a script with its arguments."""
    return Program(flags=flags, long=long, options_first=True, check="script", **more)  # type: ignore[arg-type] — the fields of a Program


_PYTHON = _language("BEIOPqSsuvV", "version", acts="-c -i -X -W -x")
_FILES = {
    "chgrp": Program(flags="cfhRv", long="recursive verbose changes silent quiet"),
    "chmod": Program(flags="cfRv", long="recursive verbose changes silent quiet"),
    "chown": Program(flags="cfhRv", long="recursive verbose changes silent quiet"),
    "cp": Program(flags="adfHilLnPpRrsTuvx", values="t", long="""archive force interactive
        no-clobber no-target-directory parents recursive target-directory= update verbose"""),
    "ln": Program(flags="fisnrTvLP", values="t", long="""force no-dereference no-target-directory
        relative symbolic verbose"""),
    "mkdir": Program(flags="pv", values="m", long="mode= parents verbose"),
    "mv": Program(flags="finTuv", values="t", long="""force interactive no-clobber
        no-target-directory target-directory= update verbose"""),
    "rm": Program(flags="dfiIrRv", long="dir force interactive one-file-system recursive verbose"),
    "rmdir": Program(flags="pv", long="ignore-fail-on-non-empty parents verbose"),
    "touch": Program(flags="achm", values="drt", long="date= no-create reference= time="),
}  # fmt: skip

_TSC = Program(values="p", value_patterns={"-p": INSIDE, "--project": INSIDE}, long="""listFiles
    noEmit pretty project= skipLibCheck strict version""", argument_files=True)  # fmt: skip
_PRETTIER = Program(flags="cl", long="check list-different version", acts="-w --write --plugin")

_TABLE: Mapping[str, Program] = {
    **SERVICES,
    "tsc": _TSC,
    "prettier": _PRETTIER,
    **dict.fromkeys(_READERS.split(), _READER),
    **dict.fromkeys(_OPERANDS_ACT.split(), ACTS),
    **dict.fromkeys(("sh", "bash", "dash", "ash", "zsh", "ksh", "mksh", "rbash"), _SHELL),
    **_FILES,
    "arch": Program(operand=r"(?!)"),  # on macOS it runs its operands
    "[": Program(ends_options=False, check="test"),
    "test": Program(ends_options=False, check="test"),
    "awk": Program(values="Fv", options_first=True, check="awk", acts="-f -i -l -E --exec"),
    "black": _BLACK,
    "bunx": Program(options_first=True, check="npx"),
    "cargo": Program(flags="qvV", long="offline quiet version verbose", acts="--config -C -Z",
        subcommands={
            **dict.fromkeys(("build", "b", "check", "c", "test", "t", "run", "r"), _CARGO),
            **dict.fromkeys(("bench", "clippy", "doc", "clean", "metadata", "update"), _CARGO),
            "fmt": Program(flags="qv", long="all check quiet verbose"), "tree": _CARGO_TREE}),
    "cmake": Program(flags="v", values="jt", long="build= config= parallel= target= verbose"
        " version", value_patterns={"--build": INSIDE}, operand=INSIDE,
        acts="-P -E -C -D -G -U -S -B --install --open --preset"),
    "curl": Program(
        flags="0146fgGiIkLnNsSv", values="AdeHmoruwXY", long="""compressed connect-timeout= fail
            fail-with-body get head header= http1.1 http2 include insecure ipv4 ipv6 location
            max-time= output= request= retry= show-error silent url= user-agent= verbose version
            write-out=""",
        value_patterns={**dict.fromkeys(("-o", "--output"), "/dev/null"),
            **dict.fromkeys(("-w", "--write-out"), r"(?!@)(?:[^%]|%%|%\{\w+\})*")},
        acts="""-O -J -K -T -D -c -E -F --remote-name --remote-name-all --output-dir
            --remote-header-name --config --upload-file --dump-header --cookie-jar
            --trace --trace-ascii --stderr --etag-save --hsts --alt-svc --libcurl --form --cert
            --engine --create-dirs --next --netrc-file --proxy --unix-socket"""),
    "date": Program(flags="uR", values="dr", optional="I", long="""date= iso-8601 reference=
        rfc-3339= rfc-email universal utc""", acts="-s --set -f --file", operand=r"\+.*"),
    "fd": Program(flags="0aFgHIiLlpqsu", values="cdEet", long="""absolute-path case-sensitive color=
        exact-depth= exclude= extension= fixed-strings follow full-path glob hidden ignore-case
        max-depth= max-results= min-depth= no-ignore print0 regex type= unrestricted""",
        acts="-x -X --exec --exec-batch"),
    "file": Program(flags="bhikLNnprs0", values="Fe", long="brief dereference mime mime-type"
        " mime-encoding no-dereference", acts="-C --compile -m -z -Z -f"),
    "find": Program(flags="HLP", ends_options=False, words="""a amin= and anewer= atime= cmin=
        cnewer= ctime= d daystart depth empty executable false follow fstype= gid= group= ilname=
        iname= inum= ipath= iregex= iwholename= links= lname= ls maxdepth= mindepth= mmin= mount
        mtime= name= newer= newermt= newerct= newerat= nogroup noleaf not nouser nowarn o or path=
        perm= print print0 printf= prune quit readable regex= regextype= samefile= size= true type=
        uid= used= user= warn wholename= writable xdev xtype=""",
        acts="""-exec -execdir -ok -okdir -delete -fprint -fprint0 -fprintf -fls -files0-from"""),
    "git": GIT,
    "go": Program(subcommands={
        "build": _GO, "test": _GO, "vet": _GO, "list": _GO, "version": _GO, "doc": _GO,
        "fmt": Program(words="n x"), "run": Program(words="race v", options_first=True,
            operand=rf"(?!.*@){INSIDE}", acts="-exec -toolexec"),
        "env": Program(words="json"), "mod": Program(subcommands=dict.fromkeys(
            ("download", "graph", "tidy", "verify", "why"), Program(words="json v x")))}),
    "gzip": Program(flags="cdfhklLnNqrtvV123456789", values="S", long="""best decompress fast force
        keep list quiet recursive stdout test to-stdout verbose"""),
    "make": Program(flags="BikKnqrRsSw", optional="j", values="Cl",
        value_patterns={"-C": INSIDE}, long="""always-make dry-run
        ignore-errors jobs just-print keep-going no-builtin-rules question quiet silent trace
        version""", acts="-f -I -E -e --eval --file --makefile --directory --include-dir -o -W",
        operand=r"[^=]*", further=1),
    "more": ACTS,
    "less": Program(flags="FRSXN", acts="-o -O -k --lesskey-src --log-file -t +",
        operand=r"(?!\+).*"),
    "man": Program(flags="fk", acts="-P -H -C -l --pager --html --config-file", most_operands=2),
    "mypy": _MYPY,
    "npm": _NPM,
    "npx": Program(flags="y", long="no no-install yes", options_first=True, check="npx",
        acts="-c -p --call --package --shell --node-options --userconfig"),
    **dict.fromkeys(("bundle", "conda", "hatch", "mamba", "micromamba", "pdm", "pipenv", "pixi", "poetry", "rye"),
        _ENVIRONMENT),
    **dict.fromkeys(("asdf", "mise", "nodenv", "pyenv", "rbenv", "volta"), Program(long="version",
        subcommands={"exec": _STARTS, "run": _STARTS, "x": _STARTS, "current": PLAIN, "which": PLAIN})),
    "pip": _PIP,
    "pip3": _PIP,
    "pnpm": _NPM,
    "pnpx": Program(options_first=True, check="npx", acts="-c --package"),
    "printf": Program(options_first=True, check="printf", acts="-v"),
    "pytest": _PYTEST,
    "py.test": _PYTEST,
    "rg": Program(
        flags=".0abcFhHIiLlnNopPqSsUuvwx", values="ABCEefgjMmrTt", long="""after-context=
            before-context= case-sensitive color= colors= column context= count count-matches crlf
            encoding= engine= file= files files-with-matches files-without-match fixed-strings
            follow glob-case-insensitive glob= heading hidden iglob= ignore-case invert-match json
            line-number line-regexp max-columns= max-count= max-depth= max-filesize= multiline
            multiline-dotall no-config no-filename no-heading no-ignore no-ignore-vcs
            no-line-number no-messages null only-matching passthru pcre2 pretty quiet regexp=
            replace= smart-case sort= sortr= stats text threads= trim type-list type-not= type=
            unrestricted version vimgrep with-filename word-regexp""",
        acts="-z --pre --pre-glob --hostname-bin --search-zip --hyperlink-format --debug"),
    "rsync": Program(flags="8abcCdghHiIJklmnoOpqrRStuvWxz", long="""archive checksum compress delete
        dry-run exclude= force human-readable include= itemize-changes links list-only max-size=
        min-size= out-format= owner partial perms progress prune-empty-dirs quiet recursive relative
        size-only stats times update verbose whole-file""",
        acts="-e -M -B -T -f --rsh --rsync-path --remote-option --log-file --write-batch"
        " --only-write-batch --read-batch --backup-dir --temp-dir --files-from --password-file"
        " --config --daemon --early-input --partial-dir --compare-dest --copy-dest --link-dest"),
    "ruff": _RUFF,
    "sed": Program(flags="Enrsuz", values="el", long="""expression= line-length= null-data posix
        quiet regexp-extended separate silent unbuffered version""",
        acts="-i -f --in-place --file", check="sed"),
    "shuf": Program(flags="erz", values="in", long="echo head-count= input-range= repeat"
        " zero-terminated", acts="-o --output --random-source"),
    "sort": Program(flags="bcCdfghiMmnRrsuVz", values="ktS", long="""batch-size= buffer-size= check
        debug dictionary-order field-separator= general-numeric-sort human-numeric-sort ignore-case
        ignore-leading-blanks ignore-nonprinting key= merge month-sort numeric-sort parallel=
        random-sort reverse sort= stable unique version version-sort zero-terminated""",
        acts="-o -T --output --compress-program --temporary-directory --files0-from"
        " --random-source"),
    "tar": Program(flags="AcdhjJkmnOpPrStuUvwWxzZ", values="bCfK", long="""absolute-names
        bzip2 create directory= diff dereference exclude-vcs exclude= extract file= get gzip
        keep-newer-files keep-old-files list no-same-owner no-same-permissions numeric-owner
        overwrite preserve-permissions show-transformed-names strip-components= totals verbose
        verify xz zstd""",
        acts="""-I -F -T -g -X -L -V -M --use-compress-program --to-command --checkpoint-action
            --info-script --new-volume-script --rsh-command --rmt-command --files-from
            --index-file --listed-incremental --volno-file --checkpoint --transform --xform
            --force-local --multi-volume --remove-files --backup --suffix --exclude-from""",
        old_style=True, check="tar"),
    "tree": Program(flags="aACdDfFghilnNpQqrstuUvx", values="ILP", long="""charset= dirsfirst du
        filelimit= gitignore ignore-case inodes matchdirs metafirst noreport nolinks prune
        sort= timefmt= version""", acts="-o -R -H --fromfile"),
    "uniq": Program(flags="cdDiuz", values="fsw", most_operands=1, long="""all-repeated check-chars=
        count group ignore-case repeated skip-chars= skip-fields= unique zero-terminated"""),
    "unzip": Program(flags="aCcfjLlnopqtuvz12", values="dx", numeric=False),
    "uv": Program(flags="qvV", long="offline quiet version verbose", subcommands={
        "add": Program(flags="q", long="dev frozen group= optional=", operand=_REGISTERED),
        "lock": Program(long="check"),
        "pip": _PIP, "remove": Program(flags="q", long="dev group="),
        "run": Program(flags="q", long="dev frozen locked no-sync offline quiet",
            options_first=True, starts=True, acts="--with --from --index-url --index --project"
            " --with-editable --python"
            " --directory --env-file --script -m -p -s -w -i --with-requirements"),
        "sync": Program(flags="q", long="all-extras all-groups dev frozen group= locked no-dev"),
        "tool": Program(subcommands={"list": PLAIN, "run": _FETCHES}),
        "tree": Program(flags="q", long="depth="), "version": Program(long="short")}),
    "uvx": Program(flags="q", long="offline quiet version", options_first=True, check="npx",
        acts="--from --with --with-editable --with-requirements --index-url --index -i -w -p"),
    "wget": Program(flags="46cnqSv", values="tTU", long="""continue header= max-redirect=
        no-check-certificate no-verbose quiet retry-connrefused server-response spider timeout=
        tries= user-agent= verbose version""",
        acts="""-O -o -a -e -i -P -B --output-document --output-file --append-output --execute
            --input-file --directory-prefix --post-file --body-file --use-askpass --config
            --warc-file --save-cookies --load-cookies --hsts-file --base -r --recursive"""),
    "yarn": _NPM,
    "zip": Program(flags="0123456789Djqrvy", values="", acts="-T -TT -b -m -O -@ -x --unzip-command"
        " --out --temp-path --move"),
    **dict.fromkeys(("python", "python2", "python3", "pypy", "pypy3", "ipython"), _PYTHON),
    **dict.fromkeys(("node", "nodejs"), _language("v", "check test version", acts="""-e -p -r -i
        --eval --print --require --import --loader --experimental-loader --interactive --env-file
        --inspect --inspect-brk --cpu-prof --diagnostic-dir --redirect-warnings --report-dir
        --build-snapshot --run --openssl-config --heapsnapshot-signal""")),
    **dict.fromkeys(("bun", "deno"), Program(long="version", acts="-e --eval -p --print",
        subcommands={"run": _language(), "test": PLAIN, "fmt": PLAIN,
            "install": Program(operand=r"(?!)")})),
    **dict.fromkeys(("perl", "ruby", "jruby"), _language("w",
        acts="-e -E -p -n -i -x -M -m -I -r -d -s -S -C -T")),
    **dict.fromkeys(("php", "lua", "luajit", "Rscript", "julia", "guile", "groovy", "scala",
        "ghc", "runghc", "qjs", "elixir", "racket", "ocaml", "swift",
        "raku", "tcc", "osascript"), _language(acts="-e -c -r -l -E -B -R -F --eval --execute")),
    **dict.fromkeys(("gawk", "mawk", "nawk"), Program(values="Fv", options_first=True, check="awk",
        acts="-f -i -l -E --exec --file --include --load --source -e -o -d -p -D")),
    **dict.fromkeys(("fdfind",), Program(flags="HIagisupL0", values="edtE",
        acts="-x -X --exec --exec-batch")),
    "gunzip": Program(flags="cfklnqrtv"),
    "zcat": Program(flags="f"),
}  # fmt: skip
_RUNNERS = """
    sudo doas su runuser pkexec xargs parallel ssh sshpass rsh mosh eval trap coproc watch entr script strace ltrace
    ptrace gdb lldb valgrind perf unshare nsenter chroot fakeroot bwrap firejail flock at batch crontab systemd-run
    dbus-run-session start-stop-daemon daemonize screen tmux expect unbuffer socat nc ncat busybox toybox alias
    source . docker podman kubectl nerdctl lxc vagrant osascript cmd powershell pwsh wsl fish csh tcsh rlwrap proot
    taskset chrt numactl setarch linux32 linux64 prlimit dbus-launch xvfb-run complete compgen bind mapfile
    readarray fc history hyperfine run-parts setpriv choom sg uclampset capsh runcon torsocks proxychains faketime
    eatmydata cpulimit catchsegv newgrp i386 x86_64 uname26 systemd-inhibit systemd-nspawn ssh-agent watchexec
    nodemon mpirun mpiexec srun ccache sccache distcc direnv aws-vault doppler pipx cross-env dotenv concurrently
    tini dumb-init gosu su-exec chpst envdir setuidgid softlimit setlock lckdo ifne nq tsp sem annotate-output
    caffeinate xcrun sandbox-exec torify tsocks proxychains4 aa-exec cgexec dtach gtimeout gnice genv gxargs gnohup
    gstdbuf gsetsid xdg-open open
"""
"""Programs that execute their arguments or input."""
PROGRAMS: Mapping[str, Program] = {
    **_TABLE,
    **{name: replace(_TABLE.get(name, ACTS), launches="runner") for name in _RUNNERS.split()},
    **dict.fromkeys(("builtin", "chronic", "nohup"), Program(launches="wrapper")),
    "command": Program(launches="wrapper", flags="pvV"),
    "env": Program(launches="wrapper", flags="i", values="u"),
    "exec": Program(launches="wrapper", flags="cl"),
    "ionice": Program(launches="wrapper", flags="t", values="cn"),
    "nice": Program(launches="wrapper", values="n", numeric=True),
    "time": Program(launches="wrapper", flags="p"),
    "setsid": Program(launches="wrapper", flags="cfw"),
    "stdbuf": Program(launches="wrapper", values="ioe"),
    "timeout": Program(launches="wrapper", flags="v", values="ks", further=1),
}
"""By the name of the program, without its directory."""
_SAVED_AS_WRITTEN = """rm rmdir unlink mkfs chmod chown chgrp kill pkill killall mv cp ln curl wget scp rsync reboot
    shutdown systemctl iptables bun deno"""
SAVED_AS_WRITTEN = frozenset(_SAVED_AS_WRITTEN.split())
"""Programs whose "always" saves the exact words: they remove, replace or send their operands."""
NEVER_SAVED = frozenset({"exec", "builtin", "find"})
"""Programs that get no rule for "always", in addition to launchers."""
_TASK_RUNNERS = "bazel cabal composer dotnet flutter gradle hg just mix mvn nox rails rake stack svn task tox"
TASK_RUNNERS = frozenset(_TASK_RUNNERS.split())
"""Programs outside the table that name their task in the first operand."""
_STARTING_WORDS = "api console develop dlx eval exec foreach node run runner shell tool workspace workspaces x"
STARTING_WORDS = frozenset(_STARTING_WORDS.split())
"""Subcommands that run or send their operands, in programs or positions the table doesn't cover."""
ONLY_READ = frozenset(name for name, program in PROGRAMS.items() if program.any_options) - {"kill"} | {"printf", "test"}
"""Programs that change no file, whatever their options."""
