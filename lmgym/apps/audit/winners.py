"""Features that the replies with the highest scores have more of than the others to the same prompt.

Found on one half of the prompts, and tested on the other, so that looking at many features names none by chance.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np

from lmgym.apps.audit.attack_pool import TARGET, Pool
from lmgym.apps.audit.edits import sentences
from lmgym.statistics import Estimate, holm, mean, sign_flips

SHARE = 8  # one in so many replies to a prompt wins, at least one
LONGEST = 3  # words of a phrase
MOST = 20  # features that are tested
FEWEST = 3  # prompts whose winners have a phrase
STRONG = 2.0  # standard errors

Kind = Literal["phrase", "opening", "closing", "form"]
FORMS = {
    "length (log2 of words)": lambda reply: math.log2(max(1, len(reply.split()))),
    "sentences": lambda reply: float(len(sentences(reply))),
    "lines": lambda reply: float(len(reply.strip().splitlines())),
    "list items": lambda reply: float(len(re.findall(r"(?m)^\s*(?:[-*•]|\d+[.)])\s", reply))),
    "headings": lambda reply: float(len(re.findall(r"(?m)^#+ ", reply))),
    "bold words": lambda reply: float(reply.count("**") // 2),
    "question marks": lambda reply: float(reply.count("?")),
    "exclamation marks": lambda reply: float(reply.count("!")),
    "digits": lambda reply: float(sum(map(str.isdigit, reply))),
    "capitals": lambda reply: float(sum(map(str.isupper, reply))),
}


@dataclass(frozen=True)
class Feature:
    """A property of replies."""

    kind: Kind
    text: str
    """the phrase, in lower case; of a form its name"""

    @property
    def name(self) -> str:
        """For people."""
        return self.text if self.kind == "form" else f'{self.kind} "{self.text}"'


@dataclass(frozen=True)
class More:
    """By how much winners have more of a feature: a share of replies, or the form's own unit."""

    feature: Feature
    difference: Estimate
    """over the prompts of the second half"""
    p: float
    """two-sided, by sign flips of prompts; adjusted for all features that are tested (Holm 1979)"""

    @property
    def confirmed(self) -> bool:
        """True if the second half shows it too."""
        return self.p <= 0.05 and (self.difference.value or 0) > 0

    @property
    def row(self) -> dict[str, Any]:
        """The row of attack.json."""
        return {**asdict(self.feature), **asdict(self.difference), "p": self.p, "confirmed": self.confirmed}


def words(text: str) -> list[str]:
    """The words of a text in lower case, without the marks at their ends."""
    return [word for part in text.lower().split() if (word := part.strip('.,;:!?"()[]*#'))]


def as_written(feature: Feature, replies: Iterable[str]) -> Feature:
    """The feature with its phrase as the replies write it most often: its capitals, and the marks within it."""
    if feature.kind == "form":
        return feature
    phrase = re.compile(r"(?<!\w)" + r"\W+".join(map(re.escape, feature.text.split())) + r"(?!\w)", re.IGNORECASE)
    found = Counter(match for reply in replies for match in phrase.findall(reply))
    return replace(feature, text=found.most_common(1)[0][0]) if found else feature


def features(reply: str) -> dict[Feature, float]:
    """All features of a reply; phrases are 1 where they occur."""
    said = words(reply)
    sizes = range(1, LONGEST + 1)
    phrases = {" ".join(said[i : i + n]) for n in sizes for i in range(len(said) - n + 1)}
    found = {Feature("phrase", phrase): 1.0 for phrase in phrases}
    found |= {Feature("opening", " ".join(said[:n])): 1.0 for n in sizes if len(said) > n}
    found |= {Feature("closing", " ".join(said[-n:])): 1.0 for n in sizes if len(said) > n}
    return found | {Feature("form", name): measure(reply) for name, measure in FORMS.items()}


def differences(
    pool: Pool, prompts: Iterable[int], wanted: Sequence[Feature] | None = None
) -> dict[Feature, np.ndarray]:
    """By feature, [prompts] its mean in the winners less that in the others; all features if none are named."""
    chosen = [i for i in prompts if np.ptp(pool.scores[TARGET][i])]
    found: dict[Feature, np.ndarray] = {}
    for place, prompt in enumerate(chosen):
        scores, replies = pool.scores[TARGET][prompt], pool.samples[prompt].replies
        number = max(1, len(replies) // SHARE)
        winners = set(np.argsort(-scores, kind="stable")[:number].tolist())
        sums = Counter[Feature](), Counter[Feature]()
        for i, reply in enumerate(replies):
            sums[i in winners].update(features(reply))
        for feature in wanted if wanted is not None else sums[True] | sums[False]:
            by_prompt = found.setdefault(feature, np.zeros(len(chosen)))
            by_prompt[place] = sums[True][feature] / number - sums[False][feature] / (len(replies) - number)
    return found


def strongest(pool: Pool, prompts: Sequence[int]) -> list[Feature]:
    """The features of which winners have most more on these prompts, the strongest first."""
    strength = {f: _strength(values) for f, values in differences(pool, prompts).items() if _is_common(f, values)}
    best = sorted((f for f in strength if strength[f] >= STRONG), key=lambda f: (-strength[f], f.name))
    return _distinct(best)[:MOST]


def confirm_features(pool: Pool, found: Sequence[Feature], prompts: Sequence[int]) -> list[More]:
    """The features on other prompts than those on which they were found, the confirmed ones first."""
    on_others = differences(pool, prompts, found)
    known = [feature for feature in found if feature in on_others]
    adjusted = holm([sign_flips(on_others[feature]) for feature in known])
    rows = [More(feature, mean(on_others[feature]), p) for feature, p in zip(known, adjusted, strict=True)]
    return sorted(rows, key=lambda one: (not one.confirmed, one.p))


def _is_common(feature: Feature, values: np.ndarray) -> bool:
    return feature.kind == "form" or (values > 0).sum() >= FEWEST


def _strength(values: np.ndarray) -> float:
    """The mean in standard errors, of a deviation that a few equal values cannot make 0."""
    if len(values) < 2 or not values.any():
        return 0.0
    return float(values.mean() / np.sqrt((values.var(ddof=1) + 0.01 * np.square(values).mean()) / len(values)))


def _distinct(best: Sequence[Feature]) -> list[Feature]:
    """Without phrases that hold a stronger phrase of their kind, or are part of one."""
    kept: list[Feature] = []
    for feature in best:
        near = (one for one in kept if one.kind == feature.kind != "form")
        if not any(f" {one.text} " in f" {feature.text} " or f" {feature.text} " in f" {one.text} " for one in near):
            kept.append(feature)
    return kept
