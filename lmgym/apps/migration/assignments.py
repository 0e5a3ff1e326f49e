"""Values of the names of a script, where its text alone says them: no value of a branch, a loop or a parameter."""

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.Lambda)
UNKNOWN: ast.expr = ast.Name("")
"""the value of a parameter, of a loop's variable, of `x += 1`"""


@dataclass(frozen=True)
class Place:
    """Where a statement stands."""

    position: tuple[int, int]
    """line and column"""
    scope: tuple[ast.AST, ...] = ()
    """the functions around it, the outermost first"""
    branches: tuple[tuple[ast.AST, str], ...] = ()
    """bodies within its function that may not run, or more than once, the outermost first"""

    def comes_after(self, other: "Place") -> bool:
        """True if `other` has always run, and once, when this statement runs."""
        return other.position < self.position and self.branches[: len(other.branches)] == other.branches

    def may_come_before(self, other: "Place") -> bool:
        """True if this statement runs before `other`, perhaps only in a loop's next turn."""
        shared = {branch for branch in self.branches if isinstance(branch[0], ast.For | ast.While | ast.AsyncFor)}
        return self.position < other.position or bool(shared & set(other.branches))


@dataclass(frozen=True)
class Binding:
    """A value that a name, or an attribute of one, gets."""

    place: Place
    value: ast.expr


class Assignments:
    """Where each name of a script gets its values, and where each expression stands."""

    def __init__(self, tree: ast.Module) -> None:
        self.places: dict[ast.AST, Place] = {}
        self.names: dict[tuple[tuple[ast.AST, ...], str], list[Binding]] = {}
        self.attributes: dict[str, list[tuple[str, Binding]]] = {}
        self._visit(tree.body, (), ())

    def value(self, name: ast.Name) -> ast.expr:
        """The expression whose value a name has, UNKNOWN if that depends on what runs."""
        place = self.places.get(name)
        if place is None:
            return UNKNOWN
        for depth in range(len(place.scope), -1, -1):
            found = self.names.get((place.scope[:depth], name.id))
            inside = place.scope[:depth]
            if not found or (depth < len(place.scope) and inside and isinstance(inside[-1], ast.ClassDef)):
                continue  # a class's names are not those of its methods
            if depth < len(place.scope):  # of a scope outside: a function may run at any time
                return found[0].value if len(found) == 1 and not found[0].place.branches else UNKNOWN
            before = [one for one in found if one.place.may_come_before(place)]
            last = max(before, key=lambda one: one.place.position, default=None)
            return last.value if last and place.comes_after(last.place) else UNKNOWN
        return UNKNOWN

    def attributes_of(self, name: ast.Name) -> dict[str, ast.expr]:
        """Values that the attributes of a name were set to, between its assignment and the place where it is read."""
        place = self.places[name]
        found: dict[str, ast.expr] = {}
        own = [one.place for one in self.names.get((place.scope, name.id), []) if place.comes_after(one.place)]
        begin = max((one.position for one in own), default=(0, 0))
        for attribute, one in self.attributes.get(name.id, []):
            if one.place.scope != place.scope:
                if (one.place.scope, name.id) not in self.names:
                    found[attribute] = UNKNOWN
            elif begin < one.place.position and one.place.may_come_before(place):
                found[attribute] = one.value if place.comes_after(one.place) else UNKNOWN
        return found

    def _visit(self, body: Sequence[ast.stmt], scope: tuple[ast.AST, ...], branches: tuple) -> None:
        for statement in body:
            place = Place((statement.lineno, statement.col_offset), scope, branches)
            for node in _own_nodes(statement):
                self.places[node] = place
            self._bind(statement, place)
            for name, statements in _bodies(statement):
                if isinstance(statement, (*FUNCTIONS, ast.ClassDef)):
                    self._visit(statements, (*scope, statement), ())
                elif isinstance(statement, ast.With | ast.AsyncWith) or _is_main(statement):
                    self._visit(statements, scope, branches)
                else:
                    self._visit(statements, scope, (*branches, (statement, name)))

    def _bind(self, statement: ast.stmt, place: Place) -> None:
        match statement:
            case ast.Assign():
                for target in statement.targets:
                    self._assign(target, statement.value, place)
            case ast.AnnAssign(value=ast.expr() as value):
                self._assign(statement.target, value, place)
            case ast.AugAssign() | ast.For() | ast.AsyncFor():
                self._assign(statement.target, UNKNOWN, place)
            case ast.With() | ast.AsyncWith():
                for item in statement.items:
                    if item.optional_vars:
                        self._assign(item.optional_vars, UNKNOWN, place)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                self._name(statement.name, UNKNOWN, place)
            case ast.Global() | ast.Nonlocal():
                for name in statement.names:
                    for depth in range(len(place.scope) + 1):  # it may be set whenever the function runs
                        outer = Place(place.position, place.scope[:depth], ((statement, "global"),))
                        self._name(name, UNKNOWN, outer)
        if isinstance(statement, FUNCTIONS):
            inner = Place(place.position, (*place.scope, statement))
            given = statement.args
            for argument in (*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg):
                if argument:
                    self._name(argument.arg, UNKNOWN, inner)
        for node in _own_nodes(statement):
            if isinstance(node, ast.NamedExpr):
                self._assign(node.target, UNKNOWN, place)

    def _assign(self, target: ast.expr, value: ast.expr, place: Place) -> None:
        match target:
            case ast.Name():
                self._name(target.id, value, place)
            case ast.Attribute(value=ast.Name() as owner):
                self.attributes.setdefault(owner.id, []).append((target.attr, Binding(place, value)))
            case ast.Starred():
                self._assign(target.value, UNKNOWN, place)
            case ast.Tuple() | ast.List():
                given = value.elts if isinstance(value, ast.Tuple | ast.List) else []
                apart = len(given) == len(target.elts) and not any(isinstance(one, ast.Starred) for one in target.elts)
                for index, one in enumerate(target.elts):
                    self._assign(one, given[index] if apart else UNKNOWN, place)

    def _name(self, name: str, value: ast.expr, place: Place) -> None:
        self.names.setdefault((place.scope, name), []).append(Binding(place, value))


def _bodies(statement: ast.AST) -> Iterator[tuple[str, list[ast.stmt]]]:
    """The lists of statements in a statement, by name."""
    for name, value in ast.iter_fields(statement):
        if isinstance(value, list) and value and isinstance(value[0], ast.stmt):
            yield name, value
        elif isinstance(value, list):
            for number, part in enumerate(value):
                if isinstance(part, ast.ExceptHandler | ast.match_case):
                    yield f"{name}{number}", part.body


def _own_nodes(statement: ast.stmt) -> Iterator[ast.AST]:
    """The expressions of a statement, without those of statements in it and of comprehensions' own names."""
    left: list[Any] = [statement]
    while left:
        node = left.pop()
        yield node
        if not isinstance(node, COMPREHENSIONS):
            left += [one for one in ast.iter_child_nodes(node) if not isinstance(one, ast.stmt)]


def _is_main(statement: ast.stmt) -> bool:
    """True for `if __name__ == "__main__"`, which runs whenever the script does."""
    return isinstance(statement, ast.If) and ast.unparse(statement.test).replace("'", '"') == '__name__ == "__main__"'
