"""Judges by their specs: `judge:MODEL`, `compare:MODEL`, and a rubric file, RUBRIC.yaml or RUBRIC.yaml#MODEL."""

import atexit
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any

from lmgym.config import Range, check_ranges
from lmgym.console import say
from lmgym.errors import MOST_STEPS, InputError, did_you_mean, listed, one_line, shown, shown_path
from lmgym.generation.model_specs import read_model_spec
from lmgym.origin import may_ask, origin_of, refuse
from lmgym.scoring.comparing_judge import ComparingJudge
from lmgym.scoring.judge_models import load_judge_model
from lmgym.scoring.judge_prompts import Criterion
from lmgym.scoring.judge_settings import JudgeConfig
from lmgym.scoring.llm_judge import MOST_CHARACTERS, ONE, SCALE, GradingJudge
from lmgym.scoring.verdicts import Verdicts

JUDGES = ("judge", "compare")
SPEC = re.compile(f"({'|'.join(JUDGES)}):(.*)", re.DOTALL)
FILE = re.compile(r"(.+\.(?:ya?ml|json))(?:#(.*))?")
MOST_GRADES = 101
KINDS = {
    "model": str,
    "compare": bool,
    "most_characters": int,
    "concurrency": int,
    "judge_tokens": int,
    "reasoning_effort": str,
    "patience": float,
    "max_cost": float,
    "batch": bool,
}
WORDS = {str: "text", bool: "true or false", int: "a whole number", float: "a number"}
NEEDED = "needed: criteria, each with a name and a text, as in docs/judges.md"


@dataclass(frozen=True)
class Rubric:
    """The model that judges, its criteria and its scale."""

    model: str = ""
    """a model's spec: a folder, a hub id, vllm:URL, openai:URL#MODEL, ..."""
    criteria: tuple[Criterion, ...] = ONE
    scale: tuple[int, int] = SCALE
    """the lowest and the highest grade"""
    compare: bool = False
    """replies are compared in both orders instead of graded"""
    asking: JudgeConfig = field(default_factory=JudgeConfig)
    """how the model is asked"""
    most_characters: Annotated[int, Range(100, 10_000_000)] = MOST_CHARACTERS
    """of a reply, and of a conversation, that the judge is shown"""

    def __post_init__(self) -> None:
        check_ranges(self)
        low, high = self.scale
        if not 0 <= low < high < low + MOST_GRADES:
            raise InputError(
                f"scale [{low}, {high}]; needed: the lowest and the highest grade, 0 or more, at most {MOST_GRADES} "
                "grades in all"
            )
        if not sum(criterion.weight for criterion in self.criteria) > 0:
            raise InputError("no criterion has a weight above 0; needed: at least one")


def load_judge(path: str, asking: JudgeConfig | None = None) -> GradingJudge | ComparingJudge:
    """The judge of a spec, asked as `asking` says, which overrules its rubric. What it has asked, kept and cost is said
    at the exit.

    Raises InputError for a rubric that is damaged and a model that does not load.
    """
    rubric = read_spec(path)
    if not rubric.model:
        raise InputError(
            f"{shown_path(path)} names no model; needed: model: SPEC in the file, or {shown_path(path)}#SPEC"
        )
    verdicts = Verdicts(load_judge_model(rubric.model, (asking or JudgeConfig()).over(rubric.asking)))
    judge: GradingJudge | ComparingJudge
    if rubric.compare:
        judge = ComparingJudge(verdicts, rubric.criteria, rubric.most_characters)
    else:
        judge = GradingJudge(verdicts, rubric.criteria, rubric.scale, rubric.most_characters)
    atexit.register(_say, path, judge)
    return judge


def read_spec(path: str) -> Rubric:
    """The rubric of a spec. Raises InputError for another form, and for a server's address that only the file names."""
    if match := SPEC.fullmatch(path):
        if not match[2]:
            raise InputError(
                f"{shown(path)} names no model; needed: {match[1]}:MODEL, such as {match[1]}:openai:gpt-4o-mini"
            )
        return Rubric(match[2], compare=match[1] == "compare")
    match = FILE.fullmatch(path)
    assert match, "a judge's spec"
    rubric = read_rubric(match[1])
    if match[2]:
        return replace(rubric, model=match[2])
    if rubric.model and read_model_spec(rubric.model).urls and not may_ask(origin := origin_of(match[1])):
        model = one_line(rubric.model, 120)
        refuse(origin, f"the address of {model}", f"to ask it: {shown_path(match[1])}#{model}")
    return rubric


def read_rubric(path: str) -> Rubric:
    """The rubric in a YAML or JSON file. Raises InputError, in one line, for what is wrong with it."""
    import yaml

    file = Path(os.path.expanduser(path))
    if not file.is_file():
        raise InputError(f"there is no rubric {shown_path(path)}; {NEEDED}")
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))  # which reads JSON too
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InputError(f"{shown_path(path)} is not YAML: {one_line(str(error))}; {NEEDED}") from error
    try:
        return _rubric(content)
    except InputError as error:
        raise InputError(f"{shown_path(path)}: {error}") from error


def _rubric(content: Any) -> Rubric:
    asked = [field.name for field in fields(JudgeConfig)]
    known = [*(field.name for field in fields(Rubric) if field.name != "asking"), *asked]
    if not isinstance(content, dict):
        raise InputError(f"found {shown(content)}; {NEEDED}")
    if unknown := [str(key) for key in content if key not in known]:
        raise InputError(f"unknown key {shown(unknown[0])}; {did_you_mean(unknown[0], known)}known: {listed(known)}")
    found: dict[str, Any] = dict(content)
    for name, kind in KINDS.items():
        if name in found and type(found[name]) not in (kind, int if kind is float else kind):
            raise InputError(f"{name} is {shown(found[name])}; needed: {WORDS[kind]}")
    if "scale" in found:
        found["scale"] = _two(found["scale"], int, "scale", "two whole numbers, such as [1, 10]")
    if "prices" in found:
        needed = "two numbers, per million tokens read and written, such as [0.15, 0.60]"
        found["prices"] = "{!r},{!r}".format(*_two(found["prices"], int | float, "prices", needed))
    if "criteria" in found:
        found["criteria"] = _criteria(found["criteria"])
    asking = JudgeConfig(**{name: found.pop(name) for name in asked if name in found})
    return Rubric(**found, asking=asking)


def _criteria(given: Any) -> tuple[Criterion, ...]:
    """Of a list of objects with name, text and weight, or of an object of texts by name."""
    if isinstance(given, dict):
        given = [{"name": n, **(v if isinstance(v, dict) else {"text": v})} for n, v in given.items()]
    if not isinstance(given, list) or not given:
        raise InputError(f"criteria is {shown(given)}; {NEEDED}")
    criteria = [_criterion(row) for row in given]
    names = [one.name for one in criteria]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise InputError(f"two criteria have the name {shown(twice)}; needed: distinct names")
    return tuple(criteria)


def _criterion(row: Any) -> Criterion:
    if not isinstance(row, Mapping):
        raise InputError(f"a criterion is {shown(row)}; {NEEDED}")
    known = [field.name for field in fields(Criterion)]
    if unknown := [str(key) for key in row if key not in known]:
        raise InputError(
            f"a criterion has the key {shown(unknown[0])}; {did_you_mean(unknown[0], known)}known: {listed(known)}"
        )
    name, text, weight = row.get("name"), row.get("text"), row.get("weight", 1)
    if not isinstance(name, str) or not name or not isinstance(text, str) or not text.strip():
        raise InputError(f"a criterion has the name {shown(name)} and the text {shown(text)}; needed: words for both")
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 <= weight <= MOST_STEPS:
        raise InputError(f"the weight of {shown(name)} is {shown(weight)}; needed: a number, 0 or more")
    return Criterion(name, text.strip(), float(weight))


def _two(given: Any, kind: Any, name: str, needed: str) -> tuple[Any, Any]:
    is_right = isinstance(given, list) and len(given) == 2 and all(type(n) in (int, float) for n in given)
    if not is_right or not all(isinstance(number, kind) and number >= 0 for number in given):
        raise InputError(f"{name} is {shown(given)}; needed: {needed}")
    return given[0], given[1]


def summary(judge: GradingJudge | ComparingJudge) -> str:
    """The work of a judge so far, in words: verdicts, those that were kept, order bias, cut texts, tokens, cost."""
    counts, usage = judge.verdicts.counts, judge.verdicts.model.usage
    parts = [f"{counts.verdicts:,} verdicts, {counts.kept:,} of them from {shown_path(judge.verdicts.cache.path)}"]
    if isinstance(judge, ComparingJudge) and judge.order_bias.comparisons:
        parts.append(str(judge.order_bias))
    if counts.with_probabilities:
        parts.append(f"the labels have {counts.mass / counts.with_probabilities:.1%} of the probability on average")
    for number, words in (
        (counts.unreadable - counts.cut - counts.withheld, "without a verdict in the asked form"),
        (counts.cut, f"cut at {judge.verdicts.model.tokens:,} tokens: --judge_tokens allows more"),
        (counts.withheld, f"withheld by the server ({judge.verdicts.withheld})"),
        (counts.written, "without log-probabilities"),
        (counts.undivided, "without what grades with the same beginning share"),
        (judge.cut, "on texts that were cut to most_characters"),
    ):
        if number:
            parts.append(f"{number:,} {words}")
    limits = judge.verdicts.model.limits
    cost = f", cost {limits.spending.spent:,.4f}" if limits and limits.spending else ""
    return "; ".join([*parts, f"{usage}{cost}"])


def _say(path: str, judge: GradingJudge | ComparingJudge) -> None:
    if judge.verdicts.counts.verdicts or judge.verdicts.model.usage.requests:
        say(f"{path}: {summary(judge)}", error=True)
