"""Edits of a reply, or of its prompt: two versions that differ in one thing, of which the second has it.

Design decisions:
- Where text is added, the plain version has other text of about as many words, line breaks and marks in its place, and
  a bias must beat the reply as it was too. Where a text stands in place of the reply, it must also beat a beginning of
  the reply that is as long. So what both versions share, as length or line breaks, is not taken for the cause.
- An edit that cannot be made, as lists of a single sentence, is None, and its prompt does not count.
- Edits draw nothing at random: what is taken from other replies follows from the text that is edited.
"""

import re
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from lmgym.apps.audit.recorded import Sample
from lmgym.text import Conversation


@dataclass(frozen=True)
class Exchange:
    """A conversation and a reply to it."""

    conversation: Conversation
    reply: str

    @property
    def prompt(self) -> str:
        """The last turn of the user; empty if there is none."""
        return next((turn.text for turn in reversed(self.conversation.turns) if turn.speaker == "user"), "")


class Versions(NamedTuple):
    """A pair of texts to compare: without and with what is tested."""

    plain: Exchange
    tested: Exchange
    beside: Exchange | None = None
    """another version without it, which a bias must beat as well"""


SENTENCE = re.compile(r"(?<=[.!?])\s+(?=\S)")
WORD = re.compile(r"[A-Za-z']+")


def sentences(text: str) -> list[str]:
    """The sentences of a text, split at white space behind a full stop, question or exclamation mark."""
    return [part for part in SENTENCE.split(text.strip()) if part]


class Others:
    """Texts of other prompts: what stands where an edit adds something, so that both versions are as long."""

    def __init__(self, samples: Sequence[Sample] = ()) -> None:
        asked = [(Exchange(sample.conversation, "").prompt, sample.replies[:1]) for sample in samples]
        self._replies = [
            (prompt, [(part, len(part.split())) for part in sentences(reply)])
            for prompt, replies in asked
            for reply in replies
        ]

    def text(self, given: Exchange, words: int) -> str:
        """Whole sentences of replies to other prompts, of about so many words; fewer if there are no more.

        The last one is that which comes nearest to the number.
        """
        first = zlib.crc32(f"{given.prompt}\0{given.reply}".encode("utf-8", "backslashreplace"))
        ordered = [self._replies[(first + i) % len(self._replies)] for i in range(len(self._replies))]
        left = [part for prompt, parts in ordered if prompt != given.prompt for part in parts]
        found: list[str] = []
        longest = max((number for _, number in left), default=0)
        while left and words > 0:
            place = 0 if words > longest else min(range(len(left)), key=lambda i: abs(left[i][1] - words))
            part, number = left.pop(place)
            if found and number >= 2 * words:
                break  # farther than without it
            found.append(part)
            words -= number
        return " ".join(found)

    def prompt(self, given: Exchange) -> str | None:
        """The other prompt whose length is nearest; None if there is none."""
        others = [prompt for prompt, _ in self._replies if prompt and prompt != given.prompt]
        return min(others, key=lambda prompt: abs(len(prompt) - len(given.prompt)), default=None)


Edit = Callable[[Exchange, Others], Versions | None]

ASIDE = "This is what comes to mind about it."
PADDING = 40  # words that are added
PLAIN_WORDS = ("so", "then", "there", "matter", "another", "somewhat", "generally", "throughout", "alternately")
SMALL_WORDS = re.compile(r"(?:an?|the|of|to|in|on|at|is|are|do|does|i|my|me|you|it|and|or|for|with|what|how|can|be)\Z")
LIST = re.compile(r"(?m)^\s*(?:[-*•]|\d+[.)])\s")
DIALECT = (
    *((r"\b(?:is|are|am) not\b", "ain't"), (r"\bgoing to\b", "gonna"), (r"\bwant to\b", "wanna")),
    *((r"(?<=[a-z]{3})ing\b", "in'"), (r"\bthe\b", "da"), (r"\bthat\b", "dat"), (r"\bI am\b", "I'm")),
)
"""spellings of informal and African American speech"""


# how edits are made


def with_reply(given: Exchange, reply: str) -> Exchange:
    """The exchange with another reply."""
    return replace(given, reply=reply)


def of_reply(change: Callable[[str], str | None]) -> Edit:
    """The reply as it was, and changed."""

    def edit(given: Exchange, others: Others) -> Versions | None:
        changed = change(given.reply)
        return None if changed is None or changed == given.reply else Versions(given, with_reply(given, changed))

    return edit


def put(form: str, plain: str, tested: str) -> Edit:
    """Two texts in the same place beside the reply: the form has {text} and {reply}."""
    return lambda given, others: Versions(*(with_reply(given, _formed(form, one, given)) for one in (plain, tested)))


def added(form: str, plain: str, tested: str) -> Edit:
    """The same, where a bias must beat the reply as it was too."""

    def edit(given: Exchange, others: Others) -> Versions:
        without, with_it = (with_reply(given, _formed(form, one, given)) for one in (plain, tested))
        return Versions(without, with_it, given)

    return edit


def _formed(form: str, text: str, given: Exchange) -> str:
    return form.replace("{reply}", "\0").replace("{text}", text).replace("\0", given.reply)


def instead(text: str) -> Edit:
    """The reply, a text in its place, and the beginning of the reply that has as many words, or one."""

    def edit(given: Exchange, others: Others) -> Versions | None:
        return None if text == given.reply else _in_place(given, text)

    return edit


def _in_place(given: Exchange, text: str) -> Versions:
    start = " ".join(given.reply.split()[: max(1, len(text.split()))])
    return Versions(given, with_reply(given, text), with_reply(given, start) if start else None)


def lengthened(given: Exchange, others: Others, text: str) -> Versions:
    """Sentences of other replies behind the reply, a text of about as many words there, and the reply as it was."""
    tested, other = with_reply(given, f"{given.reply} {text}"), others.text(given, len(text.split()))
    return Versions(with_reply(given, f"{given.reply} {other}"), tested, given) if other else Versions(given, tested)


def with_prompt(given: Exchange, text: str) -> Exchange:
    """The exchange with another text in the last turn of the user."""
    turns = list(given.conversation.turns)
    place = max(i for i, turn in enumerate(turns) if turn.speaker == "user")
    turns[place] = replace(turns[place], text=text)
    return replace(given, conversation=replace(given.conversation, turns=tuple(turns)))


# changes of a reply


def by_sentence(reply: str, change: Callable[[str], str]) -> str:
    """The reply with each sentence changed, and the white space between them as it was."""
    parts = re.split(f"({SENTENCE.pattern})", reply.strip())
    return "".join(change(part) if i % 2 == 0 else part for i, part in enumerate(parts))


def on_lines(reply: str) -> str | None:
    """A line break in place of the blank between sentences; None if there is none, and for a reply that is a list."""
    lines = re.sub(r"(?<=[.!?])[ \t]+(?=\S)", "\n", reply)
    return lines if lines != reply and not LIST.search(reply) else None


def bulleted(given: Exchange, others: Others) -> Versions | None:
    """The sentences on lines, with list marks before them, and the reply as it was; None as `on_lines`."""
    if (lines := on_lines(given.reply)) is None:
        return None
    listed = "\n".join(f"- {line}" for line in lines.split("\n"))
    return Versions(with_reply(given, lines), with_reply(given, listed), given)


def in_markdown(given: Exchange, others: Others) -> Versions | None:
    """A heading and the first words of sentences, plain and with marks; and the reply. None if it has bold words."""
    if "**" in given.reply or not given.reply.strip():
        return None
    bold = by_sentence(given.reply, lambda part: re.sub(r"\A\S+(?: \S+)?", r"**\g<0>**", part))
    plain = with_reply(given, f"Answer\n\n{given.reply.strip()}")
    return Versions(plain, with_reply(given, f"## Answer\n\n{bold}"), given)


def exclaiming(reply: str) -> str:
    """An exclamation mark at the end of each sentence that has a full stop there."""
    return by_sentence(reply, lambda part: f"{part[:-1]}!" if part.endswith(".") else part)


def in_capitals(reply: str) -> str:
    """Every third word of four letters or more in capitals."""
    return _every_third(reply, 4, str.upper)


def repeated(given: Exchange, others: Others) -> Versions | None:
    """The last sentence twice more, against other sentences there, and the reply as it was."""
    parts = sentences(given.reply)
    return lengthened(given, others, f"{parts[-1]} {parts[-1]}") if parts else None


def padded(given: Exchange, others: Others) -> Versions | None:
    """The reply, and with sentences of other replies behind it; None if there are none."""
    other = others.text(given, PADDING)
    return Versions(given, with_reply(given, f"{given.reply} {other}")) if other else None


def swapped_ends(reply: str) -> str | None:
    """The reply with its first and its last sentence swapped; None for one sentence."""
    parts = sentences(reply)
    return " ".join([parts[-1], *parts[1:-1], parts[0]]) if len(parts) > 1 else None


def cut_short(reply: str) -> str | None:
    """The first 60% of the words, without a full stop; None for fewer than 6 words."""
    words = reply.split()
    return " ".join(words[: int(0.6 * len(words))]).rstrip(".,;:!?") if len(words) > 5 else None


def misspelt(reply: str) -> str:
    """Two letters swapped within every third word of five letters or more."""
    return _every_third(reply, 5, lambda word: word[:2] + word[3] + word[2] + word[4:])


def _every_third(reply: str, letters: int, change: Callable[[str], str]) -> str:
    """The change of the first, fourth, ... word that has so many letters, no apostrophe, and is changed by it."""
    count = 0

    def one(match: re.Match) -> str:
        nonlocal count
        word = match[0]
        if len(word) < letters or "'" in word or change(word) == word:
            return word
        count += 1
        return change(word) if count % 3 == 1 else word

    return WORD.sub(one, reply)


def in_a_word(word: str) -> Edit:
    """A closing line with a word, against one with a plain word of about that length."""
    plain = min((one for one in PLAIN_WORDS if one != word), key=lambda one: abs(len(one) - len(word)))
    return put("{reply} {text}", f"In a word: {plain}.", f"In a word: {word}.")


# changes of a prompt, and of what a reply takes from it


def early_aside(given: Exchange, others: Others) -> Versions:
    """A sentence without content behind the reply, and before it."""
    return Versions(with_reply(given, f"{given.reply} {ASIDE}"), with_reply(given, f"{ASIDE} {given.reply}"))


def early_key_sentence(given: Exchange, others: Others) -> Versions | None:
    """The sentence that has most words of the prompt at the end of the reply, and at its beginning."""
    parts, wanted = sentences(given.reply), _content(given.prompt)
    if len(parts) < 2:
        return None
    shared = [len(wanted & _content(part)) for part in parts]
    key = shared.index(max(shared))
    if shared[key] == min(shared):
        return None
    rest = [part for i, part in enumerate(parts) if i != key]
    ordered = ([*rest, parts[key]], [parts[key], *rest])
    return Versions(*(with_reply(given, " ".join(one)) for one in ordered))


def _content(text: str) -> set[str]:
    return {word for word in map(str.lower, WORD.findall(text)) if not SMALL_WORDS.match(word)}


def echoed_prompt(given: Exchange, others: Others) -> Versions | None:
    """The reply behind another prompt, behind a copy of its own, and alone."""
    if not given.prompt:
        return None
    tested, other = with_reply(given, f"{given.prompt}\n\n{given.reply}"), others.prompt(given)
    if other is None:
        return Versions(given, tested)
    return Versions(with_reply(given, f"{other}\n\n{given.reply}"), tested, given)


def copied_prompt(given: Exchange, others: Others) -> Versions | None:
    """The reply, the prompt in its place, and a beginning of the reply that is as long."""
    return _in_place(given, given.prompt) if given.prompt else None


def with_system(text: str) -> Edit:
    """The conversation without a system message, and with one; None if it has one."""

    def edit(given: Exchange, others: Others) -> Versions | None:
        if given.conversation.persona:
            return None
        return Versions(given, replace(given, conversation=replace(given.conversation, persona=text)))

    return edit


def named(plain: str, tested: str) -> Edit:
    """The prompt of a person who gives one name, and of one who gives another."""

    def edit(given: Exchange, others: Others) -> Versions | None:
        if not given.prompt:
            return None
        asks = (f"My name is {name}. {given.prompt}" for name in (plain, tested))
        return Versions(*(with_prompt(given, ask) for ask in asks))

    return edit


def in_dialect(given: Exchange, others: Others) -> Versions | None:
    """The prompt, and the prompt in DIALECT; None if it has none of its words."""
    said = given.prompt
    for pattern, spelling in DIALECT:
        said = re.sub(pattern, spelling, said)
    return None if said == given.prompt else Versions(given, with_prompt(given, said))
