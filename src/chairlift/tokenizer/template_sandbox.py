"""A Jinja environment for templates from strangers: no way out, and bounded work.

Jinja's sandbox stops a template from reaching Python's insides. It does not stop one from doubling a string
forty times. Here every value a template makes is measured, so none exceeds MAX_SIZE, and every loop turn,
call, comparison and operation pays into one budget of MAX_STEPS per rendering, in proportion to the size of
what it touches. A hostile template therefore fails within about a second and a few tens of megabytes.

Filters and methods that chat templates have no use for, and that can multiply sizes, are left out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from datetime import datetime
from typing import Any

from jinja2 import TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.filters import FILTERS, make_attrgetter
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace, pass_environment
from jinja2.visitor import NodeTransformer

MAX_SIZE = 4_000_000  # characters; an element of a list or dict counts ITEM_SIZE
MAX_STEPS = 500_000
ITEM_SIZE = 16
SIZE_PER_STEP = 128
STEPS_PER_CALL = 4
MAX_WIDTH = 64  # of an indent
MAX_INT_BITS = 256

_METHODS = {
    str: "capitalize count endswith find index isalnum isalpha isascii isdecimal isdigit islower isnumeric isspace "
    "istitle isupper join lower lstrip partition removeprefix removesuffix replace rfind rindex rpartition rsplit "
    "rstrip split splitlines startswith strip swapcase title upper",
    list: "count index",
    tuple: "count index",
    dict: "get items keys values",
    int: "",
    float: "",
    bytes: "",
}
_KEPT_FILTERS = (
    "abs attr capitalize count d default dictsort first float groupby int items last length list lower map max min "
    "reject rejectattr reverse select selectattr sort string striptags sum title trim truncate unique upper wordcount"
)
_WIDE_FORMAT = re.compile(r"%[^a-zA-Z%]*[\d*]")


class TemplateLimitError(TemplateError):
    """A template asked for more work or a larger value than any chat needs."""


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """Jinja as Hugging Face sets it up for chat templates, with the bounds of this module."""

    intercepted_binops = frozenset(("+", "*", "**", "%"))

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, optimized=False, extensions=[_GenerationTag, loopcontrols]
        )
        self._steps_left: ContextVar[int] = ContextVar("steps_left", default=MAX_STEPS)
        self.filters = {name: FILTERS[name] for name in _KEPT_FILTERS.split()} | {
            "format": _format,
            "indent": _indent,
            "join": _join,
            "replace": _replace,
            "round": _round,
            "safe": str,
            "tojson": _tojson,
            "__bounded__": self.bounded,
            "__metered__": self._metered,
        }
        self.globals = {
            "range": self.globals["range"],
            "dict": dict,
            "namespace": _PlainNamespace,
            "raise_exception": _raise_exception,
            "strftime_now": _strftime_now,
        }

    def start(self) -> None:
        """Begin a rendering: its budget is full again."""
        self._steps_left.set(MAX_STEPS)

    def pay(self, steps: int) -> None:
        """Take steps from the budget; raises TemplateLimitError when it is used up."""
        left = self._steps_left.get() - steps
        if left < 0:
            raise TemplateLimitError(f"the chat template takes more than {MAX_STEPS} steps")
        self._steps_left.set(left)

    def bounded(self, value: Any) -> Any:
        """`value` itself, paid for by its size; raises TemplateLimitError when it is too large."""
        self.pay(1 + _measure(value) // SIZE_PER_STEP)
        return value

    def _metered(self, values: Iterable[Any]) -> Iterator[Any]:
        for value in values:
            self.pay(1)
            yield value

    # -- hooks of Jinja --------------------------------------------------------------------------------------
    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree: nodes.Template = _Meter().visit(super()._parse(source, name, filename))
        return tree

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Only the methods listed above of strings, lists, dicts and numbers."""
        allowed = next((names for kind, names in _METHODS.items() if isinstance(obj, kind)), None)
        return super().is_safe_attribute(obj, attr, value) and (allowed is None or attr in allowed.split())

    def wrap_str_format(self, value: Any) -> None:
        """`str.format` is refused like any method that is not listed."""
        return

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """`+ * ** %` on bounded values, with a bounded result."""
        _check_operands(operator, left, right)
        return self.bounded(super().call_binop(context, operator, left, right))

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        """A call pays for what it reads and for what it returns."""
        self.pay(STEPS_PER_CALL)
        if isinstance(obj, LoopContext) and args:  # a recursive loop's own loop
            args = (self._metered(args[0]), *args[1:])
        owner = getattr(obj, "__self__", None)
        if isinstance(owner, (str, list, tuple, dict)):
            self.bounded([owner, *args])
            if isinstance(owner, str):
                _check_str_method(owner, obj.__name__, args)
        return self.bounded(super().call(context, obj, *args, **kwargs))


class _Meter(NodeTransformer):
    """Wraps what makes values or takes time in the filters `__bounded__` and `__metered__`."""

    def visit_For(self, node: nodes.For) -> nodes.For:  # noqa: N802
        self.generic_visit(node)
        node.iter = _filtered(node.iter, "__metered__")
        return node

    def visit_AssignBlock(self, node: nodes.AssignBlock) -> nodes.AssignBlock:  # noqa: N802
        self.generic_visit(node)
        node.filter = _filtered(node.filter, "__bounded__")
        return node

    def visit_Compare(self, node: nodes.Compare) -> nodes.Compare:  # noqa: N802
        self.generic_visit(node)
        node.expr = _bounded(node.expr)
        for operand in node.ops:
            operand.expr = _bounded(operand.expr)
        return node

    def visit_Test(self, node: nodes.Test) -> nodes.Test:  # noqa: N802
        self.generic_visit(node)
        node.args = [_bounded(argument) for argument in node.args]
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Expr:  # noqa: N802
        self.generic_visit(node)
        return _bounded(node) if isinstance(node.arg, nodes.Slice) else node

    def visit_Filter(self, node: nodes.Filter) -> nodes.Expr:  # noqa: N802
        self.generic_visit(node)
        if node.node is not None:
            node.node = _bounded(node.node)
        return _filtered(node, "__bounded__")

    def _visit_maker(self, node: nodes.Expr) -> nodes.Expr:
        self.generic_visit(node)
        return node if getattr(node, "ctx", "load") == "store" else _bounded(node)

    visit_Concat = visit_List = visit_Tuple = visit_Dict = _visit_maker  # noqa: N815


def _bounded(node: nodes.Expr) -> nodes.Expr:
    small = isinstance(node, (nodes.Const, nodes.TemplateData))
    return node if small or getattr(node, "name", "") == "__bounded__" else _filtered(node, "__bounded__")


def _filtered(node: Any, name: str) -> nodes.Filter:
    lineno = node.lineno if node is not None else 0
    return nodes.Filter(node, name, [], [], None, None, lineno=lineno)


class _GenerationTag(Extension):
    """`{% generation %}` marks what a training run learns from; rendering only needs the text inside."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """The body, as if the tag were not there."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _PlainNamespace(Namespace):
    """Jinja's namespace without names that Python treats specially, and without others inside."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        attrs = dict(*args[1:], **kwargs)
        Namespace.__init__(args[0])
        for name, value in attrs.items():
            args[0][name] = value

    def __setitem__(self, name: str, value: Any) -> None:
        if str(name).startswith("_"):
            raise SecurityError(f"a namespace cannot have an attribute {name!r}")
        _measure([value])
        super().__setitem__(name, value)


# -- sizes ---------------------------------------------------------------------------------------------------
def _measure(value: Any) -> int:
    """Size of a value with everything in it, what is shared counted each time; bounded by MAX_SIZE."""
    size, stack, top = 0, [value], True
    while stack:
        item = stack.pop()
        if isinstance(item, str):
            size += len(item)
        elif isinstance(item, dict):
            size += ITEM_SIZE * len(item)
            stack += item.keys()
            stack += item.values()
        elif isinstance(item, (list, tuple)):
            size += ITEM_SIZE * len(item)
            stack += item
        elif isinstance(item, int):
            _check_int(item)
        elif isinstance(item, Namespace) and not top:
            raise TemplateLimitError("the chat template puts a namespace into another value")
        top = False
        if size > MAX_SIZE:
            raise _too_large(size)
    return size


def _check_int(value: int) -> None:
    if value.bit_length() > MAX_INT_BITS:
        raise TemplateLimitError(f"the chat template computes a number of more than {MAX_INT_BITS} bits")


def _check_size(size: int) -> None:
    if size > MAX_SIZE:
        raise _too_large(size)


def _too_large(size: int) -> TemplateLimitError:
    return TemplateLimitError(
        f"the chat template makes a value of {size} or more characters; limit {MAX_SIZE}"
    )


def _check_operands(operator: str, left: Any, right: Any) -> None:
    if operator == "*":
        for value, times in ((left, right), (right, left)):
            if isinstance(value, (str, list, tuple)) and isinstance(times, int):
                _check_size(_measure(value) * max(times, 0) + ITEM_SIZE * max(times, 0) * (not value))
    elif operator == "**" and isinstance(left, int) and isinstance(right, int):
        _check_size(left.bit_length() * max(right, 0))
    elif operator == "%" and isinstance(left, str):
        _check_format(left)


def _check_format(template: str) -> None:
    if _WIDE_FORMAT.search(template):
        raise TemplateLimitError("the chat template formats with a width, which is not supported")


def _check_str_method(text: str, name: str, args: tuple[Any, ...]) -> None:
    if name == "replace" and len(args) >= 2:
        _check_replace(text, *args[:2])
    elif name == "join" and isinstance(args[0] if args else None, (list, tuple)):
        _check_size(_measure(args[0]) + len(text) * len(args[0]))
    elif name == "join":
        raise TemplateLimitError("the chat template joins something that is not a list")


def _check_replace(text: str, old: Any, new: Any) -> None:
    if isinstance(old, str) and isinstance(new, str):
        _check_size(len(text) + text.count(old) * len(new))


# -- filters and functions that Hugging Face defines, or that need a bound -----------------------------------
def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    if indent is not None:
        _check_width(indent)
    if separators is not None and sum(map(len, separators)) > MAX_WIDTH:
        raise TemplateLimitError("the chat template has long separators for tojson")
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _format(template: str, *args: Any, **kwargs: Any) -> str:
    _check_format(str(template))
    return str(template) % (kwargs or args)


def _indent(text: str, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    pad = width if isinstance(width, str) else " " * _check_width(width)
    _check_width(len(pad))
    lines = str(text).split("\n")
    _check_size(len(text) + len(pad) * len(lines))
    padded = [pad + line if line or blank else line for line in lines]
    return "\n".join(padded if first else [lines[0], *padded[1:]])


@pass_environment
def _join(environment: Any, values: Iterable[Any], d: str = "", attribute: str | int | None = None) -> str:
    items = list(values)
    if attribute is not None:
        items = list(map(make_attrgetter(environment, attribute), items))
    _check_size(_measure(items) + len(d) * len(items))
    return str(d).join(map(str, items))


def _replace(text: str, old: str, new: str, count: int | None = None) -> str:
    _check_replace(str(text), str(old), str(new))
    return str(text).replace(str(old), str(new), -1 if count is None else count)


def _round(value: float, precision: int = 0, method: str = "common") -> float:
    _check_width(abs(precision))
    rounder: Callable[..., float] = FILTERS["round"]
    return rounder(value, precision, method)


def _check_width(width: int) -> int:
    if not isinstance(width, int) or not 0 <= width <= MAX_WIDTH:
        raise TemplateLimitError(f"the chat template asks for a width of {width!r}; limit {MAX_WIDTH}")
    return width


def _raise_exception(message: str) -> None:
    raise TemplateError(str(message))


def _strftime_now(pattern: str) -> str:
    if len(pattern) > MAX_SIZE // 10_000 or re.search(r"%[^a-zA-Z%]*\d", pattern):
        raise TemplateLimitError("the chat template has a date format that is too long or has a width")
    return datetime.now().strftime(pattern)
