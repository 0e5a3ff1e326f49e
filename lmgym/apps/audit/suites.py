"""The rows of published suites, from files or the hub, in the columns that they are published in; and anyone's rows."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from lmgym.apps.audit.protocols import JUDGEBENCH, LLMBAR, REWARDBENCH, REWARDBENCH2, RM_BENCH
from lmgym.data.mixing import DataSet
from lmgym.data.pairs import COLUMNS, NEEDED, RANKED, read_pair, read_ranked, reads_pair
from lmgym.data.reading import USUAL, Wanted, interpret
from lmgym.data.records import Record, read_records
from lmgym.data.rejections import NO_REPLY, WRONG_TYPE, Rejection, RowError, tally
from lmgym.data.rows import prompt_key, read_prompt, read_rows
from lmgym.errors import InputError, did_you_mean, found_from, listed, one_line, shown
from lmgym.messages import from_messages
from lmgym.text import Conversation, Turn, words_of

NO_SUBSET = "no subset"
OWN = "own"
"""the form of anyone's rows"""


@dataclass(frozen=True)
class Item:
    """A row of a suite: a conversation with its right and its wrong replies."""

    subset: str
    id: str
    conversation: Conversation
    chosen: tuple[str, ...]
    rejected: tuple[str, ...]

    @property
    def prompt(self) -> str:
        """The independent unit: equal for prompts that differ only in case and white space."""
        return prompt_key(self.conversation)


@dataclass(frozen=True)
class Suite:
    """A published suite, or anyone's rows."""

    name: str
    form: str
    """of its rows: see `protocols.observe`"""
    hub: str
    splits: tuple[str, ...]
    columns: tuple[str, ...]
    read: Callable[[Record], Item]
    subsets: tuple[str, ...] = ()
    judge_tie: float = 0.5
    """what equal scores of a generative judge count; of a classifier they are wrong"""
    notes: tuple[str, ...] = ()
    anchors: Mapping[str, float] = field(default_factory=dict)
    """published overall figures in percent, by model"""
    anchors_from: str = ""


@dataclass(frozen=True)
class Read:
    """The rows of a suite, and what was not read."""

    suite: Suite
    source: str
    items: list[Item]
    rejections: list[Rejection]
    notes: list[str]


def find_suite(name: str) -> Suite | None:
    """A published suite by its name; None for a path or hub id. Raises InputError for an unknown name."""
    if name.lower() in SUITES:
        return SUITES[name.lower()]
    if "/" not in name and not Path(name).expanduser().exists():
        known = f"{did_you_mean(name, SUITES)}available: {', '.join(SUITES)}, or a file of pairs"
        raise InputError(f"--suite {shown(name)} is neither a suite nor a file; {known}{found_from(name)}")
    return None


def read_suite(name: str, dataset: str | None = None, max_rows: int | None = None) -> Read:
    """The rows of a suite, of `dataset` or the hub, or of a FILE; of each subset the first `max_rows`.

    Raises InputError for an unknown suite, for rows of another form, and where the hub is out of reach.
    """
    suite = find_suite(name)
    if suite is None:
        if dataset is not None:
            raise InputError(f"--dataset {shown(dataset)} beside --suite {shown(name)}, which names rows itself; one")
        found = _read_own(name)
    else:
        found = _read_published(suite, dataset)
    if max_rows is not None:
        found = replace(found, items=_first(found.items, max_rows))
    return found


def _first(items: Sequence[Item], most: int) -> list[Item]:
    number: Counter[str] = Counter()
    kept = []
    for item in items:
        number[item.subset] += 1
        if number[item.subset] <= most:
            kept.append(item)
    return kept


def _read_published(suite: Suite, dataset: str | None) -> Read:
    records = _records(suite, dataset)
    source = dataset or suite.hub
    items, rejections = read_rows(records, suite.read)
    if not items:
        raise InputError(_misfit(suite, source, records, rejections))
    known = [item for item in items if not suite.subsets or item.subset in suite.subsets]
    notes = list(suite.notes)
    if not known:
        subsets = listed(dict.fromkeys(item.subset for item in items), 6)
        needed = f"{listed(suite.subsets, 6)}{_fitting(records)}"
        raise InputError(
            f"{one_line(source)} has the subsets {subsets}, none of them of {suite.name}; needed: {needed}"
        )
    if others := Counter(item.subset for item in items if suite.subsets and item.subset not in suite.subsets):
        notes.append(
            f"left out, since the suite has no such subsets: {listed(f'{n} ({c:,})' for n, c in others.items())}"
        )
    if suite.name == "judgebench":
        known = _one_response_model(known, records)
    return Read(suite, source, known, rejections, notes)


def _records(suite: Suite, dataset: str | None) -> list[Record]:
    if dataset is not None:
        return read_records(dataset, suite.splits[0])
    try:
        return [record for split in suite.splits for record in read_records(suite.hub, split)]
    except InputError as error:
        columns = ", ".join(suite.columns)
        raise InputError(f"{error}; give its rows by --dataset FILE (JSONL, JSON or Parquet of {columns})") from error


def _misfit(suite: Suite, source: str, records: Sequence[Record], rejections: Sequence[Rejection]) -> str:
    """The reason that no row is of the suite, with the suite that the rows are of."""
    first = next((record for record in records if record.fault is None), None)
    columns = ", ".join(suite.columns)
    if first is not None and (absent := [name for name in suite.columns if name not in first.fields]):
        found = f"lacks the column(s) {', '.join(absent)}; found: {listed(first.fields)}"
    else:
        found = f"has no row of {suite.name}: {rejections[0] if rejections else 'it holds 0 rows'}"
    return f"{one_line(source)} {found}; needed: {columns}{_fitting(records)}"


def _fitting(records: Sequence[Record]) -> str:
    """The suites of which the first row is, for a message; empty if there is none."""
    first = next((record for record in records if record.fault is None), None)
    fits = [suite.name for suite in SUITES.values() if first is not None and _is_read(suite, first)]
    return f"; these rows are of --suite {' or '.join(fits)}" if fits else ""


def _is_read(suite: Suite, record: Record) -> bool:
    try:
        item = suite.read(record)
    except RowError:
        return False
    return not suite.subsets or item.subset in suite.subsets


def _read_own(source: str) -> Read:
    """Anyone's rows: pairs, or several replies with their ranks or in two lists; subsets by their column `subset`."""
    notes: list[str] = []
    records = DataSet(source, "train")
    wanted = Wanted("rows", NEEDED, (COLUMNS, RANKED), lambda fields: (*reads_pair(fields), "subset"))
    items, rejections = read_rows(interpret([records], wanted, USUAL, notes), _own_row)
    if not items:
        raise InputError(f"{one_line(source)} has no row to judge: {tally(rejections, len(rejections)).line}")
    suite = Suite(Path(source).name, OWN, "", (), (), _own_row)
    return Read(suite, source, items, rejections, notes)


def _own_row(record: Record) -> Item:
    subset = record.fields.get("subset")
    name = NO_SUBSET if subset in (None, "") else str(subset)
    if record.fields.get("ranks") is None:
        pair = read_pair(record)
        return Item(name, str(record.line), pair.conversation, (words_of(pair.chosen),), (words_of(pair.rejected),))
    replies, ranks = read_ranked(record)
    best = tuple(reply for reply, rank in zip(replies, ranks, strict=True) if rank == min(ranks))
    rest = tuple(reply for reply, rank in zip(replies, ranks, strict=True) if rank != min(ranks))
    if not rest:
        raise RowError("ranks", f"all {len(ranks)} replies tied; needed: one that is better than another")
    return Item(name, str(record.line), read_prompt(record, "prompt"), best, rest)


# columns as published; texts are taken as they are, without stripping


def _pair(record: Record) -> Item:
    fields = record.fields
    chosen, rejected = (_text(fields, name) for name in COLUMNS)
    return Item(_text(fields, "subset"), _id(fields), _asked(fields, "prompt"), (chosen,), (rejected,))


def _best_of_4(record: Record) -> Item:
    fields = record.fields
    subset = _text(fields, "subset")
    item = Item(subset, _id(fields), _asked(fields, "prompt"), _texts(fields, "chosen"), _texts(fields, "rejected"))
    kind, _, number = item.id.partition(":")
    if subset == "Ties" and (kind not in ("ref", "tied") or not number):
        raise RowError("id", f"{shown(item.id)} of a row of Ties; needed: ref:NUMBER or tied:NUMBER", WRONG_TYPE)
    return item


def _styles(record: Record) -> Item:
    fields = record.fields
    sides = [_texts(fields, name) for name in COLUMNS]
    for name, side in zip(COLUMNS, sides, strict=True):
        if len(side) != 3:
            raise RowError(
                name, f"{len(side)} replies; needed: 3, concise, detailed, and detailed in markdown", NO_REPLY
            )
    return Item(_text(fields, "domain"), _id(fields), _asked(fields, "prompt"), *sides)


def _judgebench_pair(record: Record) -> Item:
    fields = record.fields
    label, source = _text(fields, "label"), _text(fields, "source")
    if label not in ("A>B", "B>A"):
        raise RowError("label", f"{shown(label)}; needed: A>B or B>A", WRONG_TYPE)
    sides = (_text(fields, "response_A"),), (_text(fields, "response_B"),)
    category = next((name for start, name in JUDGEBENCH.items() if source.startswith(start)), None)
    if category is None:
        raise RowError("source", f"{shown(source)}; needed: one that begins with {', '.join(JUDGEBENCH)}", WRONG_TYPE)
    chosen, rejected = sides if label == "A>B" else sides[::-1]
    return Item(category, str(fields.get("pair_id", record.line)), _asked(fields, "question"), chosen, rejected)


def _one_response_model(items: list[Item], records: Sequence[Record]) -> list[Item]:
    """Of pairs of several response models, those of GPT-4o by category, as published, and the others by their model."""
    models = {str(r.fields.get("pair_id", r.line)): str(r.fields.get("response_model", "")) for r in records}
    main = next((model for model in models.values() if model.startswith("gpt-4o")), None)
    if main is None or len(set(models.values())) == 1:
        return items
    return [i if models[i.id] == main else replace(i, subset=f"pairs of {models[i.id]}") for i in items]


def _llmbar_pair(record: Record) -> Item:
    """A row of RewardBench's copy (prompt, chosen, rejected, subset), or of LLMBar's dataset.json in its folders."""
    fields = record.fields
    if "chosen" in fields or "label" not in fields:
        return _pair(record)
    outputs = [(_text(fields, f"output_{number}"),) for number in (1, 2)]
    label = fields["label"]
    if label not in (1, 2):
        raise RowError("label", f"{shown(label)}; needed: 1 or 2", WRONG_TYPE)
    folder = Path(record.file).parent.name
    subset = "llmbar-natural" if folder == "Natural" else f"llmbar-adver-{folder[:1].lower() + folder[1:]}"
    subset = next((name for name in LLMBAR if name.lower() == subset.lower()), folder)
    return Item(subset, str(record.line), _asked(fields, "input"), outputs[label - 1], outputs[2 - label])


def _asked(fields: Mapping[str, Any], name: str) -> Conversation:
    value = fields.get(name)
    if isinstance(value, list):
        try:
            return from_messages(value)
        except ValueError as error:
            raise RowError(name, str(error), WRONG_TYPE) from None
    return Conversation((Turn("user", _text(fields, name)),))


def _id(fields: Mapping[str, Any]) -> str:
    return str(fields.get("id", ""))


def _text(fields: Mapping[str, Any], name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str):
        raise RowError(name, "missing" if value is None else f"{shown(value)}; needed: text", WRONG_TYPE)
    return value


def _texts(fields: Mapping[str, Any], name: str) -> tuple[str, ...]:
    value = fields.get(name)
    if not isinstance(value, list) or not value or not all(isinstance(one, str) for one in value):
        raise RowError(name, "missing" if value is None else f"{shown(value)}; needed: a list of texts", WRONG_TYPE)
    return tuple(value)


SKYWORK = "Skywork-Reward-V2-"
MODEL_CARDS = "the model cards of Skywork-Reward-V2, INF-ORM and ArmoRM"
ANCHORS = {
    f"{SKYWORK}Qwen3-0.6B": (85.2, 61.3),
    f"{SKYWORK}Qwen3-1.7B": (90.3, 68.3),
    f"{SKYWORK}Qwen3-4B": (93.4, 75.5),
    f"{SKYWORK}Qwen3-8B": (93.7, 78.2),
    f"{SKYWORK}Llama-3.2-1B": (89.9, 64.3),
    f"{SKYWORK}Llama-3.2-3B": (93.0, 74.7),
    f"{SKYWORK}Llama-3.1-8B": (96.4, 84.1),
    f"{SKYWORK}Llama-3.1-8B-40M": (97.8, 86.5),
    "INF-ORM-Llama3.1-70B": (95.1, 76.5),
    "ArmoRM-Llama3-8B-v0.1": (90.4, 66.5),
}
JUDGEBENCH_ANCHORS = {
    "Skywork-Reward-Gemma-2-27B": 64.29,
    "internlm2-20b-reward": 63.43,
    "Skywork-Reward-Llama-3.1-8B": 62.29,
    "internlm2-7b-reward": 59.43,
    "GRM-Gemma-2B-rewardmodel-ft": 59.43,
}
PAIR_COLUMNS = ("prompt", "chosen", "rejected", "subset")
SUITES = {
    suite.name: suite
    for suite in (
        Suite(
            "rewardbench",
            "pairs",
            "allenai/reward-bench",
            ("filtered",),
            PAIR_COLUMNS,
            _pair,
            tuple(name for subsets in REWARDBENCH.values() for name in subsets),
            notes=("Prior Sets, a fifth section of the first leaderboard with half a weight, are left out.",),
            anchors={name: first for name, (first, _) in ANCHORS.items()},
            anchors_from=MODEL_CARDS,
        ),
        Suite(
            "rewardbench2",
            "rewardbench2",
            "allenai/reward-bench-2",
            ("test",),
            PAIR_COLUMNS,
            _best_of_4,
            tuple(REWARDBENCH2),
            anchors={name: second for name, (_, second) in ANCHORS.items()},
            anchors_from=MODEL_CARDS,
        ),
        Suite(
            "rm-bench",
            "styles",
            "THU-KEG/RM-Bench",
            ("train",),
            ("prompt", "chosen", "rejected", "domain"),
            _styles,
            tuple(half for halves in RM_BENCH.values() for half in halves),
            anchors={f"{SKYWORK}Llama-3.1-8B-40M": 96.0},
            anchors_from="its model card",
        ),
        Suite(
            "judgebench",
            "pairs",
            "ScalerLab/JudgeBench",
            ("gpt",),
            ("question", "response_A", "response_B", "label", "source"),
            _judgebench_pair,
            judge_tie=0.0,
            notes=("Published overall figures are of the 350 pairs of GPT-4o.",),
            anchors=JUDGEBENCH_ANCHORS,
            anchors_from="the verdicts that ScalerLab/JudgeBench publishes",
        ),
        Suite("llmbar", "pairs", "allenai/reward-bench", ("filtered",), PAIR_COLUMNS, _llmbar_pair, LLMBAR),
    )
}
