"""Programs that manage something by subcommands: those that look are harmless, the others ask.

A part of the table in `programs`. A subcommand that is missing here is asked about, unless the rule
names it (`bash(gh pr create *)`); one that runs code is allowed only if every word is named.
"""

from __future__ import annotations

from collections.abc import Mapping

from induscode.session.permissions.shell.program import ACTS, PLAIN, Program


def _looks(subcommands: str, acting: str = "", **options: str) -> Program:
    """Make a program of which the table knows subcommands that look, and some that run code."""
    one = Program(**options)  # type: ignore[arg-type] — the fields of a Program
    looking = dict.fromkeys(subcommands.split(), one)
    return Program(subcommands={**looking, **dict.fromkeys(acting.split(), ACTS)})


_GH_LONG = """author= assignee= base= branch= comments commit= event= head= jq= json= label= limit=
    log log-failed milestone= name-only order= repo= required search= sort= state= status=
    template= user= verbose workflow="""
_GH_LIST = Program(flags="d", values="ABHLRSalqst", long=f"{_GH_LONG} draft")
_GH_VIEW = Program(flags="cv", values="Rqtj", long=_GH_LONG)
_GH = Program(long="version", subcommands={
    "alias": _looks("list", "set import"), "auth": _looks("status"),
    "config": _looks("get list", "set clear-cache"),
    "extension": _looks("list search", "install upgrade exec create"),
    "issue": Program(subcommands={"list": _GH_LIST, "status": _GH_VIEW,
        "view": _GH_VIEW}),
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
    **dict.fromkeys(_SYSTEMCTL_LOOKS.split(),
        Program(flags="alq", values="npto", long=_SYSTEMCTL_LONG)),
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
    **dict.fromkeys(("aws", "az", "corepack", "doctl", "fly", "flyctl", "gcloud", "gem", "heroku",
        "launchctl", "loginctl", "netlify", "nmcli", "rustup", "vercel"), _looks("help version")),
}  # fmt: skip
"""By the name of the program, without its directory."""
