"""The commands of a shell script with the values of its variables, where its text alone says them. Nothing is run."""

import ast
import operator
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from lmgym.apps.migration.trl_scripts import Code

NAME = re.compile(r"[A-Za-z_]\w*")
ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=")
BRACED = re.compile(r"([A-Za-z_]\w*)(?:\[[@*]\])?(?:(:?[-=])(.*))?", re.DOTALL)
HEREDOC = re.compile(r"<<-?\s*(['\"]?)(\w+)\1")
OPENING, CLOSING = {"if", "for", "while", "until", "case", "select"}, {"fi", "done", "esac"}
ARITHMETIC = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
DEEPEST, LONGEST = 50, 100_000
"""expansions within expansions, and characters or words of a variable"""
UNKNOWN = "\0"
"""before a variable in a text whose value is not known"""
Word = str | Code


@dataclass
class Shell:
    """A reader of a script: its variables as they stand, and the commands that it has passed."""

    variables: dict[str, str | list[Word]] = field(default_factory=dict)
    commands: list[list[Word]] = field(default_factory=list)
    depth: int = 0
    """of ifs, loops and functions around: what is set there may not be"""

    def read(self, text: str) -> list[list[Word]]:
        """The commands of a script, each a list of words."""
        text = re.sub(r"\\[ \t]*\n", " ", text.replace("\r\n", "\n"))
        lines = iter(text.split("\n"))
        for line in lines:
            if heredoc := HEREDOC.search(line):
                body = []
                for inner in lines:
                    if inner.strip() == heredoc[2]:
                        break
                    body.append(inner)
                self._heredoc(line[: heredoc.start()], "\n".join(body), bool(heredoc[1]))
                continue
            while _is_open(line) and (more := next(lines, None)) is not None:
                line += "\n" + more
            for command in _split(line):
                self._command(command)
        return self.commands

    def _heredoc(self, before: str, body: str, literal: bool) -> None:
        words = before.split()
        if words[:1] == ["read"]:
            self._set(words[-1], body if literal else self._expand(re.sub(r"\s+", " ", body)))

    def _command(self, text: str) -> None:
        text = text.strip()
        first = text.partition(" ")[0]
        if first in OPENING or re.match(r"(function\s+)?\w+\s*\(\)", text):
            self.depth += 1
        elif first in CLOSING or text == "}":
            self.depth = max(0, self.depth - 1)
        for keyword in ("then", "do", "else", "export", "local", "{", "time", "nohup"):
            if first == keyword:
                return self._command(text[len(keyword) :])
        assigned = ASSIGNMENT.match(text)
        if assigned and text[assigned.end() :].startswith("("):
            words = self._words(text[assigned.end() + 1 :].rpartition(")")[0])
            old = self.variables.get(assigned[1], []) if assigned[2] else []
            self._set(assigned[1], [*(old if isinstance(old, list) else [old]), *words])
        elif assigned and len(pieces := _pieces(text)) == 1:
            self._set(assigned[1], self._unquoted(pieces[0][assigned.end() :]))
        elif text:
            self.commands.append(self._words(text))
        return None

    def _set(self, name: str, value: str | list[Word]) -> None:
        is_unknown = self.depth > 0 or len(value) > LONGEST
        self.variables[name] = f"{UNKNOWN}${name}" if is_unknown else value

    def _words(self, text: str) -> list[Word]:
        """The words of a command, with their variables' values: those outside quotes are split."""
        found: list[Word] = []
        for piece in _pieces(text):
            array = re.fullmatch(r'"?\$\{?(\w+)(?:\[[@*]\])?\}?"?', piece)
            value = self.variables.get(array[1]) if array else None
            if isinstance(value, list):
                found += value
            elif array and isinstance(value, str) and not piece.startswith('"'):
                found += [self._one(one) for one in _pieces(value)]
            elif piece in ("$@", "$*", '"$@"', "${@}", '"${@}"'):
                continue
            else:
                found.append(self._one(piece))
        return found

    def _one(self, piece: str) -> Word:
        """A word without its quotes, with its variables' values; Code if they are not known."""
        text = self._unquoted(piece)
        return Code(text.replace(UNKNOWN, "")) if UNKNOWN in text else text

    def _unquoted(self, piece: str, depth: int = 0) -> str:
        return "".join(part if quote == "'" else self._expand(part, depth) for quote, part in _quoted(piece))

    def _expand(self, text: str, depth: int = 0) -> str:
        """A text with the values of its variables and sums; UNKNOWN stands before those that are not known."""
        parts: list[str] = []
        while (at := text.find("$")) >= 0 and at < len(text) - 1:
            body, rest = _substitution(text[at + 1 :])
            value = self._value(body, depth) if depth < DEEPEST and not text[:at].endswith(UNKNOWN) else None
            parts += [text[:at], f"{UNKNOWN}${body}" if value is None else value]
            text = rest
        return "".join([*parts, text]).replace("`", f"{UNKNOWN}`")

    def _value(self, body: str, depth: int) -> str | None:
        """The value of what follows a dollar sign; None if only running it would tell."""
        if body.startswith("((") and body.endswith("))"):
            return _sum(self._expand(re.sub(r"\$?\{?\b([A-Za-z_]\w*)\b\}?", r"${\1}", body[2:-2]), depth + 1))
        braced = BRACED.fullmatch(body[1:-1] if body.startswith("{") else body)
        if not braced:
            return None
        value = self.variables.get(braced[1])
        if value is None and braced[2]:
            value = self._unquoted(braced[3], depth + 1)
        return value if isinstance(value, str) else None


def _substitution(text: str) -> tuple[str, str]:
    """(what a dollar sign stands for, with its brackets, the rest)."""
    pairs = {"{": "}", "(": ")"}
    if text[0] in pairs:
        depth = 0
        for at, letter in enumerate(text):
            depth += (letter == text[0]) - (letter == pairs[text[0]])
            if depth == 0:
                return text[: at + 1], text[at + 1 :]
        return text, ""
    name = NAME.match(text)
    end = name.end() if name else 1
    return text[:end], text[end:]


def _sum(text: str) -> str | None:
    """The value of arithmetic on whole numbers."""

    def value(node: ast.AST) -> int:
        match node:
            case ast.Expression():
                return value(node.body)
            case ast.Constant(value=int() as number):
                return number
            case ast.BinOp() if type(node.op) in ARITHMETIC:
                left, right = value(node.left), value(node.right)
                if max(abs(left), abs(right)) < 1 << 40:
                    return ARITHMETIC[type(node.op)](left, right)
        raise ValueError

    try:
        return str(value(ast.parse(text.strip().replace("/", "//"), mode="eval")))
    except (ValueError, SyntaxError, ZeroDivisionError, RecursionError, MemoryError):
        return None


def _quoted(piece: str) -> list[tuple[str, str]]:
    """(quote or none, text) of the parts of a word."""
    found: list[tuple[str, str]] = []
    quote, part, at = "", "", 0
    while at < len(piece):
        letter = piece[at]
        if letter == "\\" and quote != "'" and at + 1 < len(piece):
            if part:
                found.append((quote, part))
            found.append(("'", piece[at + 1]))
            part, at = "", at + 1
        elif letter in "\"'" and (not quote or quote == letter):
            if part:
                found.append((quote, part))
            quote, part = "" if quote else letter, ""
        else:
            part += letter
        at += 1
    return [*found, (quote, part)] if part else found


def _scan(text: str) -> tuple[list[tuple[int, str]], bool]:
    """(places of letters outside quotes and brackets, True if a quote or bracket is still open at the end)."""
    outside: list[tuple[int, str]] = []
    quote, depth, at = "", 0, 0
    while at < len(text):
        letter = text[at]
        if letter == "\\" and quote != "'":
            at += 1
        elif quote:
            quote = "" if letter == quote else quote
        elif letter in "\"'`":
            quote = letter
        elif letter == "#" and (at == 0 or text[at - 1] in " \t\n;("):
            at = text.find("\n", at) if "\n" in text[at:] else len(text)
            continue
        elif letter in "({" and (letter == "(" or text[at - 1 : at] == "$"):
            depth += 1
        elif letter in ")}" and depth:
            depth -= 1
        elif not depth:
            outside.append((at, letter))
        at += 1
    return outside, bool(quote or depth)


def _is_open(line: str) -> bool:
    return _scan(line)[1]


def _split(text: str) -> list[str]:
    """The commands of a line."""
    return _cut(text, ";&|\n", 1)


def _pieces(text: str) -> list[str]:
    """The words of a command as they are written, without what redirects it."""
    found: list[str] = []
    skip = False
    for piece in _cut(text, " \t\n"):
        if skip or re.match(r"\d?[<>]", piece):
            skip = bool(re.fullmatch(r"\d?[<>]+&?", piece)) and not skip
            continue
        found.append(piece)
    return found


def _cut(text: str, separators: Sequence[str], empty: int = 0) -> list[str]:
    """Text cut at letters outside quotes and brackets, without comments and empty parts."""
    text = _without_comments(text)
    found, begin = [], 0
    for at, letter in [*_scan(text)[0], (len(text), separators[0])]:
        if letter in separators:
            if text[begin:at].strip():
                found.append(text[begin:at])
            begin = at + 1
    return found


def _without_comments(text: str) -> str:
    """Text without what follows a # that begins a word."""
    kept, quote, at = "", "", 0
    while at < len(text):
        letter = text[at]
        if letter == "\\" and quote != "'":
            kept += text[at : at + 2]
            at += 2
            continue
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "\"'":
            quote = letter
        elif letter == "#" and (at == 0 or text[at - 1] in " \t\n;("):
            at = text.find("\n", at) if "\n" in text[at:] else len(text)
            continue
        kept += letter
        at += 1
    return kept
