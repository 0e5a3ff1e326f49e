"""Errors that end a run (a user's mistake, a deliberate stop), and the bounds that single settings must keep.

Every number is finite and has an upper limit, where values stop making sense; the few that may be inf say so in words.
"""

import difflib
import errno
import re
import resource
import shlex
import stat
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

# exit codes of sysexits.h, so that schedulers know what to retry
NON_FINITE, COLLAPSED, REWARDS_FAILED, STALLED = 65, 68, 69, 70
SERVER_FAILED = 69  # a service is not available, as of rewards
FOLDER_IN_USE, STORAGE_FULL, INTERRUPTED = 73, 74, 75
LONGEST_MESSAGE, LONGEST_PATH, LONGEST_LIST = 1000, 160, 200
"""characters of an error as it is printed, and of a path and of a list of names in it"""


class InputError(ValueError):
    """A user's mistake; the message says what was found, what is needed and how to fix it.

    Launches print the message without a traceback and exit with 2; any other exception is a bug of lmgym.
    """

    exit_code = 2
    outcome = "failed"
    alone = False
    """True if only this rank has the error, so that this rank prints it rather than rank 0"""
    details: Sequence[str] = ()
    """further lines, such as one on each of several unknown flags"""


class TooLong(InputError):
    """A conversation has more tokens than the model's context."""


class ServerError(RuntimeError):
    """A server gave no usable answer in any try. The message names the server and the last failure.

    Launches print it as an InputError; where several replies are asked for, those of other requests may be kept.
    """

    exit_code = 2
    outcome = "failed"
    alone = True
    """as long as no other rank has the error: see `InputError`"""


class RunStopped(Exception):
    """A run stopped deliberately before its end, with the reason, the outcome for run.json and the exit code."""

    alone = False
    follows = False
    """True if another rank has ended, whose exit code a launcher is to see first"""

    def __init__(self, why: str, outcome: str, exit_code: int) -> None:
        super().__init__(why, outcome, exit_code)  # all of them: ranks send it to each other
        self.why, self.outcome, self.exit_code = why, outcome, exit_code

    def __str__(self) -> str:
        return self.why


def too_many_files() -> InputError:
    """The error of a process that may open no more files."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return InputError(
        f"more files are open than the {most:,} that this process may have; raise it with ulimit -n 65536"
    )


def shown(value: object, limit: int = 80) -> str:
    """A value as one printable line for a message: at most `limit` characters of it, with the length if it is cut.

    Text is quoted and its control characters are escaped; lists, objects and bytes are given by their size.
    """
    if isinstance(value, str):
        return _quoted(value, limit)
    if isinstance(value, dict):
        return f"an object with {len(value):,} field{'s' * (len(value) != 1)}"
    if isinstance(value, list | tuple | set | frozenset):
        return f"a list of {len(value):,} item{'s' * (len(value) != 1)}"
    if isinstance(value, bytes | bytearray | memoryview):
        return f"{len(value):,} bytes"
    if isinstance(value, int) and value.bit_length() > 256:  # Python refuses to write integers of 4,300 digits
        return f"an integer of {value.bit_length():,} bits"
    return one_line(str(value), limit)


def one_line(text: str, limit: int = 200) -> str:
    """Text as one printable line without quotes, such as another library's error: white space joined, the rest cut."""
    words = " ".join(text[: 4 * limit].split())
    line = _escaped(words)
    if len(text) <= 4 * limit and len(line) <= limit:
        return line
    return f"{_cut(words, limit)}… ({len(text):,} characters)"


def listed(names: Iterable[str], most: int = 12) -> str:
    """Names as one printable line, such as the columns of a file: the first ones, and how many others there are."""
    found = [one_line(str(name), 40) for name in names]
    if not found:
        return "none"
    kept = found[:most]
    while len(kept) > 1 and len(", ".join(kept)) > LONGEST_LIST:
        kept.pop()
    rest = f" and {len(found) - len(kept):,} more" if len(found) > len(kept) else ""
    return ", ".join(kept) + rest


def nearest(name: str, known: Iterable[str], cutoff: float = 0.5) -> str | None:
    """The known name that is spelt most like `name`, in either case; None if their similarity is below `cutoff`."""
    by_lower = {one.lower(): one for one in known}
    found = difflib.get_close_matches(name[:80].lower(), by_lower, n=1, cutoff=cutoff)
    return by_lower[found[0]] if found else None


ONE_SLIP, TWO_SLIPS = 4, 8
"""letters of a word in which one may be wrong, and of one in which two may be"""


def misspelt(name: str, known: Iterable[str]) -> str | None:
    """The known name of which `name` is a misspelling; None if there is none, or several are as near.

    The words of both, between underscores, hyphens and dots, are the same but for slips: one letter that is wrong, left
    out, added or swapped with the next in a word of 4 to 7 letters, two in longer ones; or the words are joined
    otherwise. Shorter words and numbers are the same: min is no slip for max, nor beta1 for beta2.
    """
    slips = {one: found for one in known if (found := _slips(name[:80].lower(), one.lower())) is not None}
    fewest = min(slips.values(), default=0)
    nearest_names = [one for one, found in slips.items() if found == fewest]
    return nearest_names[0] if len(nearest_names) == 1 else None


def _slips(name: str, known: str) -> int | None:
    """The number of slips between two names; None if one is no misspelling of the other."""
    if name == known:
        return 0
    words, others = (re.findall(r"[a-z]+|[0-9]+", one) for one in (name, known))
    if "".join(words) == "".join(others):
        return 1
    if len(words) != len(others):
        return None
    total = 0
    for word, other in zip(words, others, strict=True):
        if word == other:
            continue
        found = _distance(word, other)
        most = 0 if other.isdigit() or len(other) < ONE_SLIP else 1 if len(other) < TWO_SLIPS else 2
        if found > most:
            return None
        total += found
    return total if total <= 2 else None


def _distance(word: str, other: str) -> int:
    """Letters to change, leave out, add or swap with the next (optimal string alignment)."""
    if abs(len(word) - len(other)) > 2:
        return 3
    before, last = [0] * (len(other) + 1), list(range(len(other) + 1))
    for i, letter in enumerate(word, 1):
        row = [i]
        for j, its in enumerate(other, 1):
            row.append(min(last[j] + 1, row[-1] + 1, last[j - 1] + (letter != its)))
            if i > 1 and j > 1 and letter == other[j - 2] and word[i - 2] == its:
                row[j] = min(row[j], before[j - 2] + 1)
        before, last = last, row
    return last[-1]


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The part of a message that suggests the nearest known name, with a space behind it; empty without one."""
    near = nearest(name, known)
    return f"did you mean {near}? " if near else ""


def shown_path(path: object) -> str:
    """A path or hub id for a message: of one that is longer than most, the beginning and the end."""
    return _without_middle(_escaped(str(path)), LONGEST_PATH)


def found_from(name: object) -> str:
    """The end of a message on a path that is not here: the folder from which it is found, a parent of this one or that
    of this library, and the command that goes there; empty without one.
    """
    path = Path(str(name)).expanduser()
    with suppress(OSError, ValueError):
        for folder in [] if path.is_absolute() else [*Path.cwd().parents, Path(__file__).parents[1]]:
            if (folder / path).exists():
                return f"; it is found from another folder: cd {shlex.quote(str(folder))}"
    return ""


def regular(path: Path) -> Path:
    """The path of a file. Raises OSError for one that is absent, and for a pipe or a device, which may never end."""
    mode = path.stat().st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise OSError(errno.EINVAL, "a pipe or a device, not a file", str(path))
    return path


def bounded(message: str) -> str:
    """A message of at most LONGEST_MESSAGE characters: what was found, and how to fix it, stand at its two ends."""
    return _without_middle(message, LONGEST_MESSAGE)


def _without_middle(text: str, limit: int) -> str:
    """Text of at most `limit` characters, of which a longer one has its beginning and its end."""
    if len(text) <= limit:
        return text
    end = limit // 3
    return f"{text[: limit - end - 3]} … {text[-end:]}"


def _quoted(text: str, limit: int) -> str:
    if len(text) <= limit and len(_escaped(text)) <= limit:
        return repr(text)
    kept = _cut(text, limit)
    return f"'{kept}…' ({len(text):,} characters)"


def _escaped(text: str) -> str:
    """Text whose characters without a glyph (controls, lone surrogates, bidirectional marks) are escapes."""
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def _cut(text: str, limit: int) -> str:
    """As many leading characters, escaped, as `limit` holds; no escape is cut in two."""
    kept: list[str] = []
    for character in text[:limit]:
        kept.append(_escaped(character))
        if sum(map(len, kept)) > limit:
            kept.pop()
            break
    return "".join(kept)


def outcome_of(error: BaseException | None) -> tuple[str, int]:
    """(outcome of the run, exit code of its process)."""
    if error is None:
        return "finished", 0
    if isinstance(error, KeyboardInterrupt):
        return "interrupted", 130
    if isinstance(error, RunStopped | InputError | ServerError):
        return error.outcome, error.exit_code
    if isinstance(error, SystemExit):
        # a number is itself, and anything else 1: nothing and 0 too, since the run did not come to its end
        return "failed", error.code if isinstance(error.code, int) and error.code else 1
    return "failed", 1


MOST_STEPS = 10**9
"""updates, iterations and rows"""


MOST_TOGETHER = 1 << 20
"""rows of a batch, replies of an iteration, and tokens of a reply"""


MOST_TOKENS = 1 << 24
"""of a text, and words of a vocabulary"""


FEWEST_TOKENS = 8
"""that can hold a conversation"""


MOST_SCORE = 1e6
"""absolute value of a reward, and of what is added to it or multiplied with it"""


MOST_SECONDS = 30 * 24 * 3600


MOST_GB = 1e6


MOST_TEMPERATURE = 100


MOST_SEED = 2**32 - 1


NAME = re.compile(r"(?=.*[^.])[A-Za-z0-9_.-]{1,200}")
