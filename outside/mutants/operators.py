"""The changes that a mutant may be: each alters what a user could notice.

A change is a splice of the source text, so that line numbers stay and a survivor can be shown as a line before and
after. Nothing is changed that only alters messages, logs, types or speed (see `_Finder` for what is left out).
"""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from outside.mutants.places import Mutant, Places

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_COMPARISONS: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Is: ("is", "is not"),
    ast.IsNot: (r"is\s+not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: (r"not\s+in", "in"),
}
_BOUNDARIES = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
_TWINS = {"any": "all", "all": "any", "min": "max", "max": "min"}
_METHOD_TWINS = {"startswith": "endswith", "endswith": "startswith"}
_CLEANERS = {"strip", "rstrip", "lstrip", "lower", "casefold", "removeprefix", "removesuffix", "resolve", "expanduser"}
_LOGGERS = {"_log", "log", "logger", "_logger", "logging", "warnings"}
_EFFECTLESS = {
    "sleep",
    "checkpoint",
    "wait_readable",
    "drain",
    "fsync",
    "collect",
    "freeze",
    "set_name",
    "setDaemon",
    "assert_never",
}
"""Calls whose absence changes speed or durability alone."""
_QUIET_KEYWORDS = re.compile(
    r"slots|frozen|strict|kw_only|repr|eq|order|check|check_circular|daemon|exc_info|stacklevel|name|maxsize|indent|width|"
    r"encoding|errors|help|metavar|description|title|text|message|detail|hint|from_|.*timeout.*|.*_s|.*_ms|"
    r".*interval.*|.*delay.*|.*backoff.*|.*size|.*bytes"
)
_TIME = re.compile(r"monotonic|perf_counter|time\(|deadline|elapsed|timeout|_s\b|_S\b|_ns\b|_at\b|\bage\b|\bnow\b")
_SPEED_NAME = re.compile(
    r".*(_S|_MS|_NS|TIMEOUT|INTERVAL|POLL|GRACE|DELAY|BACKOFF|CHUNK|BUFFER|CACHE|SIZE|BYTES)|__all__|__slots__|"
    r"__match_args__|.*(_s|_ms|_ns|timeout|interval|delay|backoff|chunk|size|cache|cached)"
)
_PLATFORM = re.compile(r"\bsys\.platform\b|\bos\.name\b|\bos\.uname\b|\bplatform\.system\b|\bTYPE_CHECKING\b")
_TYPE_CALLS = {"TypeVar", "NewType", "ParamSpec", "TypeAdapter", "namedtuple", "NamedTuple", "TypedDict"}
_LARGEST_NUMBER = 20
"""Larger numbers are limits of size and speed."""


def list_mutants(path: str, source: bytes) -> list[Mutant]:
    """List the mutants of a file, in the order of its text."""
    finder = _Finder(path, source)
    finder.visit(ast.parse(source))
    return finder.found


class _Finder(Places, ast.NodeVisitor):
    """Walks over a module and lists its changes.

    Left out: decorators, annotations, `TYPE_CHECKING` and platform blocks, protocols, overloads, `__repr__`, asserts,
    docstrings, f-strings, arguments of exceptions and of log calls, names of times and sizes, `pragma: no cover`.
    """

    def __init__(self, path: str, source: bytes) -> None:
        super().__init__(path, source)
        self._loops: list[ast.AST] = []
        self._tails: set[int] = set()
        """The last statements of functions: a `return` there may as well be missing."""

    # -- statements ---------------------------------------------------------------------------

    def visit(self, node: ast.AST) -> None:
        """Visit a node; a statement is the span of all changes inside it."""
        if not isinstance(node, ast.stmt):
            super().visit(node)
            return
        if b"pragma: no cover" in self.lines[node.lineno - 1] or self._is_docstring(node):
            return
        former = self.span
        body: list[ast.stmt] = getattr(node, "body", [])
        last = node.end_lineno or node.lineno
        self.span = (node.lineno, max(node.lineno, body[0].lineno - 1) if body else last)
        super().visit(node)
        self.span = former

    @staticmethod
    def _is_docstring(node: ast.stmt) -> bool:
        return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        """Visit the defaults and the body."""
        words = {_name_of(decorator) for decorator in node.decorator_list}
        if node.name in {"__repr__", "__rich_repr__"} or words & {"overload", "abstractmethod"}:
            return
        former, self._loops = self._loops, []
        self._tails.update(map(id, _list_tails(node.body)))
        self.functions.append(node)
        self.span = (node.body[0].lineno, node.end_lineno or node.lineno)
        for default in (*node.args.defaults, *node.args.kw_defaults):
            if isinstance(default, ast.Constant) and isinstance(default.value, bool):
                self.replace(default, str(not default.value), "default")
        for statement in node.body:
            self.visit(statement)
        self.functions.pop()
        self._loops = former

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815 — a name of `ast`

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        """Visit the body, except that of a type for the type checker."""
        if not {_name_of(base) for base in node.bases} & {"Protocol", "TypedDict", "NamedTuple"}:
            for statement in node.body:
                self.visit(statement)

    def visit_If(self, node: ast.If) -> None:
        """Negate the condition."""
        if _PLATFORM.search(self.text_of(node.test)):
            return
        if not isinstance(node.test, ast.Compare) or len(node.test.ops) > 1:
            self._negate(node.test)
        self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        """Negate the condition."""
        if _PLATFORM.search(self.text_of(node.test)):
            return
        if not isinstance(node.test, ast.Compare):
            self._negate(node.test)
        self.generic_visit(node)

    def _negate(self, test: ast.expr) -> None:
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            return  # `visit_UnaryOp` does it
        self.replace(test, f"not ({self.text_of(test)})", "condition negated")

    def visit_For(self, node: ast.For | ast.AsyncFor | ast.While) -> None:
        """Visit a loop."""
        self._loops.append(node)
        self.generic_visit(node)
        self._loops.pop()

    visit_AsyncFor = visit_For  # noqa: N815 — a name of `ast`
    visit_While = visit_For  # noqa: N815 — a name of `ast`

    def visit_Break(self, node: ast.Break) -> None:
        """Go on instead, where the loop ends anyway."""
        if self._loops and not isinstance(self._loops[-1], ast.While):
            self.replace(node, "continue", "break/continue")

    def visit_Continue(self, node: ast.Continue) -> None:
        """End the loop instead."""
        self.replace(node, "break", "break/continue")

    def visit_Assert(self, node: ast.Assert) -> None:
        """Leave out what narrows types."""

    def visit_Raise(self, node: ast.Raise) -> None:
        """Go on instead; the message is left out."""
        if not isinstance(node.exc, ast.Call) or _name_of(node.exc) not in {"NotImplementedError", "AssertionError"}:
            self.replace(node, "pass", "raise removed")

    def visit_Return(self, node: ast.Return) -> None:
        """Return something else, or go on."""
        if node.value is None or (isinstance(node.value, ast.Constant) and node.value.value is None):
            if id(node) not in self._tails:
                self.replace(node, "pass", "return removed")
        elif isinstance(node.value, ast.Constant) and isinstance(node.value.value, bool):
            self.replace(node.value, str(not node.value.value), "returned value")
        elif not isinstance(node.value, (ast.JoinedStr, ast.Constant)):
            self.replace(node.value, "None", "returned value")
            self.visit(node.value)
        else:
            self.visit(node.value)

    def visit_Expr(self, node: ast.Expr) -> None:
        """Remove a call whose value is unused."""
        call = node.value.value if isinstance(node.value, ast.Await) else node.value
        if isinstance(call, ast.Call) and not _is_log(call):
            if _name_of(call) not in _EFFECTLESS:
                self.replace(node, "pass", "call removed")
            self.visit(call)
        elif isinstance(call, (ast.Yield, ast.YieldFrom)):
            self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        """Remove an assignment that others see, or change the value."""
        names = [_name_of(target) for target in node.targets]
        if any(map(_SPEED_NAME.fullmatch, names)) or _name_of(node.value) in _TYPE_CALLS:
            return
        if self.functions and self.functions[-1].name not in {"__init__", "__post_init__"}:
            if all(isinstance(target, (ast.Attribute, ast.Subscript)) for target in node.targets):
                self.replace(node, "pass", "assignment removed")
        self._visit_value(node.value)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        """Change the value; the annotation is left out."""
        if node.value is not None and not _SPEED_NAME.fullmatch(_name_of(node.target)):
            if "TypeAlias" not in self.text_of(node.annotation):
                self._visit_value(node.value)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        """Remove the change of a variable."""
        if not _SPEED_NAME.fullmatch(_name_of(node.target)):
            self.replace(node, "pass", "assignment removed")
            self.visit(node.value)

    def visit_Delete(self, node: ast.Delete) -> None:
        """Keep an item."""
        if all(isinstance(target, ast.Subscript) for target in node.targets):
            self.replace(node, "pass", "deletion removed")

    def _visit_value(self, value: ast.expr) -> None:
        if isinstance(value, ast.Constant) and isinstance(value.value, bool):
            self.replace(value, str(not value.value), "truth value")
        else:
            if isinstance(value, ast.Tuple) and not self.functions and len(value.elts) > 2:
                self.drop_items([(item, item) for item in value.elts], "item dropped")
            self.visit(value)

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        """Catch something else."""
        former, self.span = self.span, (node.lineno, node.end_lineno or node.lineno)
        if isinstance(node.type, ast.Tuple):
            self.drop_items([(item, item) for item in node.type.elts], "except")
        elif node.type is not None and _name_of(node.type) not in {"ImportError", "ModuleNotFoundError"}:
            self.replace(node.type, "ZeroDivisionError", "except")
        for statement in node.body:
            self.visit(statement)
        self.span = former

    # -- expressions --------------------------------------------------------------------------

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Leave out texts."""

    def visit_Subscript(self, node: ast.Subscript) -> None:
        """Visit an index, or what is indexed; types have a tuple or a name as index."""
        if self.functions:
            self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        """Move the boundary, or negate."""
        if len(node.ops) == 1 and not _PLATFORM.search(self.text_of(node)):
            kind = type(node.ops[0])
            old, new = _COMPARISONS[kind]
            if kind not in _BOUNDARIES or not _TIME.search(self.text_of(node)):
                right = node.comparators[0]
                start = self.end_of(node.left)
                gap = self.source[start : self.begin_of(right)].decode()
                if match := re.search(old, gap):
                    before = start + len(gap[: match.start()].encode())
                    self.splice(before, before + len(match[0].encode()), new, "comparison")
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        """Swap `and` and `or`, or leave out an operand."""
        old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        if len(node.values) == 2:
            self.replace_between(node.values[0], node.values[1], old, new, "and/or")
        if not any(isinstance(value, ast.Constant) and value.value is None for value in node.values):
            self.drop_items([(value, value) for value in node.values], "operand dropped")
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        """Drop `not`."""
        if isinstance(node.op, ast.Not):
            self.replace(node, f"bool({self.text_of(node.operand)})", "not dropped")
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        """Add instead of subtracting, where numbers are at hand; sizes are left out."""
        if not isinstance(node.op, (ast.Add, ast.Sub, ast.BitOr, ast.BitAnd, ast.Mod, ast.FloorDiv)):
            return
        if isinstance(node.op, (ast.Add, ast.Sub)) and (_is_number(node.left) or _is_number(node.right)):
            old, new = ("+", "-") if isinstance(node.op, ast.Add) else ("-", "+")
            if not _TIME.search(self.text_of(node)):
                self.replace_between(node.left, node.right, old, new, "arithmetic")
        if self.functions or not isinstance(node.op, ast.BitOr):
            self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        """Change a small number of a function."""
        value = node.value
        if self.functions and isinstance(value, int) and not isinstance(value, bool) and value <= _LARGEST_NUMBER:
            self.replace(node, str(value + 1), "number")

    def visit_Dict(self, node: ast.Dict) -> None:
        """Drop an item."""
        if len(node.keys) > 1 and all(node.keys):
            pairs = [(key, value) for key, value in zip(node.keys, node.values, strict=True) if key is not None]
            self.drop_items(pairs, "item dropped")
        self.generic_visit(node)

    def visit_List(self, node: ast.List | ast.Set) -> None:
        """Drop an item."""
        if len(node.elts) > 1:
            self.drop_items([(item, item) for item in node.elts], "item dropped")
        self.generic_visit(node)

    visit_Set = visit_List  # noqa: N815 — a name of `ast`

    def visit_comprehension(self, node: ast.comprehension) -> None:
        """Keep what is left out."""
        for test in node.ifs:
            self.replace(test, "True", "filter dropped")
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        """Change which function is called, or drop or swap arguments."""
        name = _name_of(node)
        if _is_log(node) or name in _TYPE_CALLS or name in _EFFECTLESS or _is_exception(name):
            return
        if name == "cast" and len(node.args) == 2:
            self.visit(node.args[1])
            return
        for change in self._list_callees(node, name):
            self.replace(*change)
        self._change_arguments(node, name)
        self.visit(node.func)
        for argument in node.args:
            if not isinstance(argument, ast.Constant) or name in {"range", "enumerate"}:
                self.visit(argument)
        for keyword in node.keywords:
            self._visit_keyword(keyword)

    def _change_arguments(self, node: ast.Call, name: str) -> None:
        if name in {"get", "getattr", "next", "pop"} and len(node.args) == (3 if name == "getattr" else 2):
            if not (isinstance(node.args[-1], ast.Constant) and node.args[-1].value is None and name == "get"):
                self.splice(self.end_of(node.args[-2]), self.end_of(node.args[-1]), "", "default dropped")
        elif len(node.args) == 2 and not node.keywords and not _is_symmetric(name):
            first, second = node.args
            if all(isinstance(one, (ast.Name, ast.Attribute)) for one in node.args):
                swapped = f"{self.text_of(second)}, {self.text_of(first)}"
                self.splice(self.begin_of(first), self.end_of(second), swapped, "arguments swapped")

    def _list_callees(self, node: ast.Call, name: str) -> Iterator[tuple[ast.expr, str, str]]:
        func = node.func
        if isinstance(func, ast.Name) and name in _TWINS and not _TIME.search(self.text_of(node)):
            yield func, _TWINS[name], f"{name}/{_TWINS[name]}"
        if isinstance(func, ast.Name) and name == "sorted" and len(node.args) == 1 and not node.keywords:
            yield func, "list", "not sorted"
        if isinstance(func, ast.Attribute) and name in _METHOD_TWINS:
            yield func, f"{self.text_of(func.value)}.{_METHOD_TWINS[name]}", f"{name}/{_METHOD_TWINS[name]}"
        if isinstance(func, ast.Attribute) and name in _CLEANERS and not node.keywords:
            yield node, self.text_of(func.value), f"{name} dropped"

    def _visit_keyword(self, keyword: ast.keyword) -> None:
        if keyword.arg is None or _QUIET_KEYWORDS.fullmatch(keyword.arg):
            return
        value = keyword.value
        if isinstance(value, ast.Constant):
            if isinstance(value.value, bool):
                self.replace(value, str(not value.value), "truth value")
        else:
            self.visit(value)


def _list_tails(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements after which a function ends."""
    last = body[-1]
    yield last
    if isinstance(last, (ast.If, ast.With, ast.AsyncWith, ast.Try)):
        parts = [last.body, getattr(last, "orelse", []), *(handler.body for handler in getattr(last, "handlers", []))]
        for part in filter(None, parts):
            yield from _list_tails(part)


def _name_of(node: ast.AST) -> str:
    """Return the last word of a name, an attribute or a called function."""
    if isinstance(node, ast.Call):
        return _name_of(node.func)
    if isinstance(node, ast.Subscript):
        return _name_of(node.value)
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _is_symmetric(name: str) -> bool:
    """Tell whether swapping the two arguments of a call changes nothing, or only raises."""
    return name in {"isinstance", "issubclass", "isclose", *_TWINS} or name.startswith("same")


def _is_log(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Attribute) and _name_of(call.func.value) in _LOGGERS


def _is_exception(name: str) -> bool:
    return name.endswith(("Error", "Exception", "Fault", "Warning"))


def _is_number(node: ast.expr) -> bool:
    if isinstance(node, ast.Call):
        return _name_of(node) == "len"
    return isinstance(node, ast.Constant) and isinstance(node.value, int)
