"""A mypy plugin that checks that the function given to `monkeypatch.setattr` is compatible with the one it replaces.

mypy itself accepts anything there, so a stand-in for a function whose signature has changed since was noticed when its
test failed, or never. Anything named and annotated is checked (a `def`, a method, a class); a lambda's parameters are
not, as they have no types.
"""

from __future__ import annotations

from collections.abc import Callable

from mypy.checker import TypeChecker
from mypy.errorcodes import ErrorCode
from mypy.messages import format_type
from mypy.nodes import Context, Expression, LambdaExpr, MemberExpr, MypyFile, NameExpr, RefExpr, StrExpr
from mypy.plugin import MethodContext, Plugin
from mypy.subtypes import is_subtype
from mypy.types import AnyType, CallableType, Type, TypeOfAny, get_proper_type

STAND_IN = ErrorCode("stand-in", "A function does not pass for the one in whose place it is put", "Tests")


class StandIns(Plugin):
    def get_method_hook(self, fullname: str) -> Callable[[MethodContext], Type] | None:
        return check if fullname == "_pytest.monkeypatch.MonkeyPatch.setattr" else None


def check(context: MethodContext) -> Type:
    given = [each[0] if each else None for each in context.args[:3]]
    owner, name, value = (*given, None, None, None)[:3]
    if owner is not None and isinstance(name, StrExpr) and isinstance(value, NameExpr | MemberExpr | LambdaExpr):
        compare(context, owner, name.value, value)
    elif isinstance(owner, StrExpr) and isinstance(name, NameExpr | MemberExpr | LambdaExpr):
        refuse_text(context, name)
    return context.default_return_type


def refuse_text(context: MethodContext, value: Expression) -> None:
    checker = context.api
    assert isinstance(checker, TypeChecker)
    with checker.msg.filter_errors():
        found = get_proper_type(checker.expr_checker.accept(value))
    if isinstance(found, CallableType):
        checker.fail(
            "say whose it is by more than a text, so that the two can be compared", context.context, code=STAND_IN
        )


def compare(context: MethodContext, owner: Expression, name: str, value: Expression) -> None:
    checker = context.api
    assert isinstance(checker, TypeChecker)
    with checker.msg.filter_errors():
        wanted = get_proper_type(type_of(checker, owner, name, context.context))
        found = get_proper_type(checker.expr_checker.accept(value, wanted))
    if not isinstance(wanted, CallableType) or not isinstance(found, CallableType):
        return
    asked = get_proper_type(context.arg_types[0][0])
    if isinstance(asked, CallableType) and asked.is_type_obj() and wanted.arg_types:  # `self` may be of a base class
        wanted = wanted.copy_modified(arg_types=[AnyType(TypeOfAny.special_form), *wanted.arg_types[1:]])
    if not is_subtype(found, wanted, ignore_pos_arg_names=True, options=checker.options):
        told = f"{format_type(found, checker.options)} does not pass for {name}, which is "
        checker.fail(f"{told}{format_type(wanted, checker.options)}", context.context, code=STAND_IN)


def type_of(checker: TypeChecker, owner: Expression, name: str, where: Context) -> Type | None:
    """The type of the attribute; None if a module does not define it."""
    if isinstance(owner, RefExpr) and isinstance(owner.node, MypyFile):
        symbol = owner.node.names.get(name)
        return None if symbol is None else symbol.type
    place = MemberExpr(owner, name)
    place.set_line(where)
    return checker.expr_checker.analyze_ordinary_member_access(place, is_lvalue=False)


def plugin(_version: str) -> type[Plugin]:
    return StandIns
