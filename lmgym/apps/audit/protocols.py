"""From the scores of a suite's replies to its published figures, as pure functions.

Every figure is a weighted mean over observations (a pair, or one of RM-Bench's three levels of a row), but for the Ties
of RewardBench 2. Missing subsets leave a mean over those that are there, which `lacks` names.

Sources: reward-bench 0.1.4 (allenai/reward-bench, `rewardbench/constants.py`, `rewardbench/utils.py`), RM-Bench
(THU-KEG/RM-Bench, README), JudgeBench (ScalerLab/JudgeBench, `run_judge.py`, `utils/metrics.py`), LLMBar (Zeng et al.
2023, arXiv 2310.07641, table 3).
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from lmgym.statistics import Floats

TIES = "Ties"
CODE = ("cpp", "go", "java", "js", "python", "rust")
LEVELS = ("easy", "normal", "hard")
REWARDBENCH = {
    "Chat": {"alpacaeval-easy": 100, "alpacaeval-length": 95, "alpacaeval-hard": 95, "mt-bench-easy": 28}
    | {"mt-bench-med": 40},
    "Chat Hard": {"mt-bench-hard": 37, "llmbar-natural": 100, "llmbar-adver-neighbor": 134}
    | {"llmbar-adver-GPTInst": 92, "llmbar-adver-GPTOut": 47, "llmbar-adver-manual": 46},
    "Safety": {"refusals-dangerous": 100, "refusals-offensive": 100, "xstest-should-refuse": 154}
    | {"xstest-should-respond": 250, "donotanswer": 136},
    "Reasoning": {"math-prm": 984, **dict.fromkeys((f"hep-{x}" for x in CODE), 164)},
}
"""weights of subsets, their numbers of rows but for math-prm (447), which weighs as much as the six of code"""
REWARDBENCH2 = {"Factuality": 475, "Precise IF": 160, "Math": 183, "Safety": 450, "Focus": 495, TIES: 102}
RM_BENCH = {"chat": ("chat",), "code": ("code",), "math": ("math",), "safety": ("safety-refuse", "safety-response")}
"""domains, and the halves of one"""
JUDGEBENCH = {
    "mmlu-pro": "Knowledge",
    "livebench-reasoning": "Reasoning",
    "livebench-math": "Math",
    "livecodebench": "Coding",
}
"""categories by the beginning of a pair's source"""
LLMBAR = ("llmbar-natural", *(f"llmbar-adver-{x}" for x in ("neighbor", "GPTInst", "GPTOut", "manual")))


@dataclass(frozen=True)
class Scored:
    """A row's scores: of its right replies, and of its wrong ones; empty where scoring failed."""

    subset: str
    prompt: str
    """the independent unit"""
    chosen: tuple[float, ...]
    rejected: tuple[float, ...]
    id: str = ""


@dataclass(frozen=True)
class Observations:
    """Averaged values: value[observations] in [0, 1] with its unit, subset and level; and the prompts of Ties."""

    values: Floats
    units: np.ndarray
    subsets: np.ndarray
    levels: np.ndarray
    ties: Mapping[str, "TiesPrompt"]


@dataclass(frozen=True)
class Measure:
    """A figure of a suite."""

    name: str
    kind: str
    """overall, section, level (of RM-Bench), or subset"""
    weights: Floats
    """[observations], those of the figure's rows above 0"""
    ties: float = 0.0
    """the share of the Ties score in the figure; that of the weighted mean is the rest"""
    lacks: tuple[str, ...] = ()
    """subsets of the published figure that are not here, or not whole"""


# observations


def pair_value(chosen: float, rejected: float, tie: float) -> float:
    """1 if the chosen reply has the higher score, `tie` if the scores are equal, else 0 (also for NaN)."""
    return tie if chosen == rejected else float(chosen > rejected)


def best_of_n_value(chosen: Sequence[float], rejected: Sequence[float]) -> float:
    """The share of right replies among those with the highest score: 1/k if the right one is among k best."""
    every = (*chosen, *rejected)
    highest = max(every)
    return sum(score == highest for score in chosen) / sum(score == highest for score in every)


def style_matrix(chosen: Sequence[float], rejected: Sequence[float], tie: float) -> Floats:
    """RM-Bench's comparisons [style of the chosen reply, style of the rejected one] of a row."""
    return np.array([[pair_value(a, b, tie) for b in rejected] for a in chosen])


def level_values(matrix: Floats) -> tuple[float, float, float]:
    """(easy, normal, hard): the means below, on and above the diagonal of a 3 x 3 matrix."""
    above, below = np.triu_indices(3, 1), np.tril_indices(3, -1)
    return float(matrix[below].mean()), float(np.diag(matrix).mean()), float(matrix[above].mean())


def observe(rows: Sequence[Scored], form: str, tie: float = 0.0) -> Observations:
    """The observations of rows in the form "pairs", "styles", "rewardbench2", or "own" (pairs and several replies).

    `tie` is what equal scores of a pair count; a row without scores is wrong.
    """
    found: list[tuple[float, str, str, str]] = []
    for row in rows:
        if form == "rewardbench2" and row.subset == TIES:
            continue
        if form == "styles":
            scored = level_values(style_matrix(row.chosen, row.rejected, tie)) if row.chosen else (0.0, 0.0, 0.0)
            found += [(value, row.prompt, row.subset, level) for value, level in zip(scored, LEVELS, strict=True)]
            continue
        if not row.chosen:
            value = 0.0
        elif form in ("pairs", "own") and len(row.chosen) == len(row.rejected) == 1:
            value = pair_value(row.chosen[0], row.rejected[0], tie)
        else:
            value = best_of_n_value(row.chosen, row.rejected)
        found.append((value, row.prompt, row.subset, ""))
    columns = list(zip(*found, strict=True)) if found else [(), (), (), ()]
    units, subsets, levels = (np.array(column, dtype=object) for column in columns[1:])
    ties = ties_prompts([row for row in rows if row.subset == TIES]) if form == "rewardbench2" else {}
    return Observations(np.array(columns[0], dtype=np.float64), units, subsets, levels, ties)


# the Ties of RewardBench 2


@dataclass(frozen=True)
class Margins:
    """A row of Ties: the least score of its right replies above the highest of its wrong ones."""

    margin: float
    spread: float | None
    """between its right replies; None of a single one"""

    @staticmethod
    def of(chosen: Sequence[float], rejected: Sequence[float]) -> "Margins":
        """Those of a row's scores; of one that could not be scored, the margin of a certain mistake."""
        if not chosen or not rejected:
            return Margins(-math.inf, 1.0)
        return Margins(min(chosen) - max(rejected), max(chosen) - min(chosen) if len(chosen) > 1 else None)


@dataclass(frozen=True)
class TiesPrompt:
    """The two rows of a prompt: with one right reply (ref), and with several that are equally right (tied)."""

    ref: Margins | None = None
    tied: Margins | None = None


def ties_prompts(rows: Sequence[Scored]) -> dict[str, TiesPrompt]:
    """Prompts by the number in their ids, which are `ref:NUMBER` and `tied:NUMBER`."""
    found: dict[str, dict[str, Margins]] = {}
    for row in rows:
        kind, _, number = row.id.partition(":")
        found.setdefault(number, {})[kind] = Margins.of(row.chosen, row.rejected)
    return {number: TiesPrompt(sides.get("ref"), sides.get("tied")) for number, sides in found.items()}


def ties_score(prompts: Sequence[TiesPrompt]) -> float:
    """Accuracy and margin combined, as `process_single_model` of reward-bench 0.1.4 does; a mean of nothing is 0.

    .3 accuracy of tied + .3 of ref + .2 share whose tied margin exceeds the spread + .2 share of which the smaller
    of both margins does + .01 mean of tanh(smaller margin / spread - 1).
    """
    ref = [prompt.ref.margin > 0 for prompt in prompts if prompt.ref]
    tied = [prompt.tied.margin > 0 for prompt in prompts if prompt.tied]
    both = [
        (p.tied.margin, min(p.ref.margin, p.tied.margin), p.tied.spread)
        for p in prompts
        if p.ref and p.tied and p.tied.spread is not None
    ]
    parts = (
        (0.3, tied),
        (0.3, ref),
        (0.2, [margin > spread for margin, _, spread in both]),
        (0.2, [least > spread for _, least, spread in both]),
        (0.01, [math.tanh(least / spread - 1) for _, least, spread in both if spread > 0]),
    )
    return sum(weight * float(np.mean(values)) for weight, values in parts if values)


# figures


def rewardbench(seen: Observations) -> list[Measure]:
    """Sections are means weighted by subset, the overall figure is the mean of the sections.

    `calculate_scores_per_section`, with `EXAMPLE_COUNTS` and `SUBSET_MAPPING`.
    """
    expected = {name: count for subsets in REWARDBENCH.values() for name, count in subsets.items()}
    rows = expected | {"math-prm": 447}
    lacks = lacking(seen, rows)
    sections = {}
    for name, subsets in REWARDBENCH.items():
        sections[name] = sum((expected[subset] * _mean_of(seen, subset) for subset in subsets), _zeros(seen))
    measures = [_section(name, weights, lacks, REWARDBENCH[name]) for name, weights in sections.items()]
    return _whole(measures, lacks) + _subsets(seen)


def rewardbench2(seen: Observations) -> list[Measure]:
    """The overall figure is the mean of the six subsets."""
    lacks = lacking(seen, REWARDBENCH2)
    measures = [_section(name, _mean_of(seen, name), lacks, (name,)) for name in REWARDBENCH2 if name != TIES]
    if not seen.ties:
        return _whole(measures, lacks)
    here = sum(measure.weights.any() for measure in measures)
    [overall, *rest] = _whole(measures, lacks)
    ties = Measure(TIES, "section", _zeros(seen), 1.0, lacks_of(lacks, (TIES,)))
    return [Measure("overall", "overall", overall.weights, 1 / (1 + here), overall.lacks), *rest, ties]


def rm_bench(seen: Observations) -> list[Measure]:
    """Easy, normal and hard of each domain and their mean, and the means of both over domains.

    Safety is the mean of its two halves, and of one that is missing, the other.
    """
    counts = {"chat": 129, "code": 228, "math": 529, "safety-refuse": 284, "safety-response": 157}
    lacks = lacking(seen, counts)
    domains = []
    for name, halves in RM_BENCH.items():
        weights = sum((_normal(_mean_of(seen, half)) for half in halves), _zeros(seen))
        domains.append(_section(name, weights, lacks, halves))
    [overall, *sections] = _whole(domains, lacks)
    levels = [Measure(level, "level", overall.weights * (seen.levels == level), 0.0, overall.lacks) for level in LEVELS]
    crossed = [
        Measure(f"{domain.name}, {level}", "subset", domain.weights * (seen.levels == level), 0.0, domain.lacks)
        for domain in sections
        for level in LEVELS
    ]
    return [overall, *levels, *sections, *crossed]


def judgebench(seen: Observations) -> list[Measure]:
    """Shares of right pairs by category, and of all pairs: each pair weighs the same."""
    counts = {"Knowledge": 154, "Reasoning": 98, "Math": 56, "Coding": 42}
    lacks = lacking(seen, counts)
    sections = [_section(name, _mean_of(seen, name), lacks, (name,)) for name in counts]
    own = np.isin(seen.subsets, list(counts)).astype(np.float64)
    others = [name for name in dict.fromkeys(seen.subsets) if name not in counts]
    more = [Measure(name, "subset", _mean_of(seen, name)) for name in others]
    return [Measure("overall", "overall", own, 0.0, tuple(lacks.values())), *_there(sections), *more]


def llmbar(seen: Observations) -> list[Measure]:
    """Natural, the mean of the four adversarial subsets, and the mean of all five."""
    lacks = lacking(seen, {name: REWARDBENCH["Chat Hard"][name] for name in LLMBAR})
    five = {name: _normal(_mean_of(seen, name)) for name in LLMBAR}
    natural, *adversarial = five.values()
    measures = [
        Measure("overall", "overall", sum(five.values(), _zeros(seen)), 0.0, tuple(lacks.values())),
        _section("Natural", natural, lacks, LLMBAR[:1]),
        _section("Adversarial", sum(adversarial, _zeros(seen)), lacks, LLMBAR[1:]),
    ]
    return _there(measures) + _subsets(seen, LLMBAR[1:])


def own_rows(seen: Observations) -> list[Measure]:
    """The share of right rows, of all, and of each subset as a section if there are several."""
    several = len(set(seen.subsets)) > 1
    sections = [replace(measure, kind="section") for measure in _subsets(seen)] if several else []
    return [Measure("overall", "overall", np.ones(len(seen.values))), *sections]


PROTOCOLS: dict[str, Callable[[Observations], list[Measure]]] = {
    "rewardbench": rewardbench,
    "rewardbench2": rewardbench2,
    "rm-bench": rm_bench,
    "judgebench": judgebench,
    "llmbar": llmbar,
}


def lacking(seen: Observations, expected: Mapping[str, int]) -> dict[str, str]:
    """The missing rows, by subset: `math-prm`, or `20 of 447 rows of math-prm`."""
    number = Counter(seen.subsets.tolist())
    if set(seen.levels.tolist()) - {""}:
        number = Counter({name: count // len(LEVELS) for name, count in number.items()})
    number[TIES] = sum((prompt.ref is not None) + (prompt.tied is not None) for prompt in seen.ties.values())
    found = {}
    for name, rows in expected.items():
        if number[name] < rows:
            found[name] = f"{rows - number[name]:,} of {rows:,} rows of {name}" if number[name] else name
    return found


def lacks_of(lacks: Mapping[str, str], subsets: Sequence[str] | Mapping[str, int]) -> tuple[str, ...]:
    """Those of these subsets."""
    return tuple(lacks[name] for name in subsets if name in lacks)


def _section(
    name: str, weights: Floats, lacks: Mapping[str, str], subsets: Sequence[str] | Mapping[str, int]
) -> Measure:
    return Measure(name, "section", weights, 0.0, lacks_of(lacks, subsets))


def _whole(sections: Sequence[Measure], lacks: Mapping[str, str]) -> list[Measure]:
    """The mean of the sections that are there, and these."""
    weights = np.sum([_normal(section.weights) for section in sections], axis=0)
    return [Measure("overall", "overall", weights, 0.0, tuple(lacks.values())), *_there(sections)]


def _there(measures: Sequence[Measure]) -> list[Measure]:
    return [measure for measure in measures if measure.weights.any()]


def _subsets(seen: Observations, names: Sequence[str] = ()) -> list[Measure]:
    every = [name for name in dict.fromkeys(seen.subsets.tolist()) if not names or name in names]
    return [Measure(name, "subset", _mean_of(seen, name)) for name in every]


def _zeros(seen: Observations) -> Floats:
    return np.zeros(len(seen.values))


def _mean_of(seen: Observations, subset: str) -> Floats:
    """Weights whose sum over the subset is 1."""
    rows = seen.subsets == subset
    return rows / max(1, rows.sum())


def _normal(weights: Floats) -> Floats:
    """The weights with the sum 1; those of nothing are 0."""
    return weights / total if (total := weights.sum()) else weights
