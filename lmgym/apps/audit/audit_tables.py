"""The table of an audit, which fits 80 columns, and the sentences below it."""

import math
from collections.abc import Iterator, Sequence
from statistics import median

from lmgym.apps.audit.biases import DRAWN
from lmgym.apps.audit.measuring import Audit
from lmgym.apps.audit.verdicts import Effect, Wording, least_units
from lmgym.errors import listed, shown
from lmgym.statistics import Estimate

ABOUT_TABLE = (
    "p: two-sided, adjusted for all rows (Holm), of biases that rest on words over prompts and wordings; needs: what "
    "could tell; more of both: prompts and wordings"
)
UNSEEN = (
    *("whether what is said is true", "turns before the last one", "tool calls"),
    "a text that is in no list here (lmgym attack searches for those)",
)
OPTIONS = {"base": "the style of the scorer's own base (--base MODEL)", "rewriter": "length alone (--rewriter MODEL)"}
MOST_WORDINGS = 6


def audit_table(audit: Audit):
    """A rich table of the effects: named ones, each above those that it explains, then losses, and others."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(title="effects in spreads, with 95% intervals", title_justify="left", box=SIMPLE_HEAD, padding=(0, 1))
    table.add_column("bias", overflow="fold")
    for column in ("effect", "p"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("verdict", overflow="fold")
    for effect in audit.effects:
        name = f"  {effect.bias}" if effect.explained_by else effect.bias
        p = "–" if effect.units < 2 else f"{effect.p:.3f}"
        table.add_row(name, f"{effect.effect:+.2f}", p, in_short(effect))
    return table


def in_short(effect: Effect) -> str:
    """The verdict in few words."""
    if effect.undecided and effect.needed is None:
        more = effect.wordings_needed
        return f"needs ~{more:,} wordings" if more else "needs more of both"
    if effect.undecided:
        return f"needs ~{effect.needed:,} {effect.unit}s"
    return effect.verdict.removesuffix(" found").replace("no bias: no score", "no score")


def summary(audit: Audit, smallest: float) -> list[str]:
    """The biases that are named, the size of an audit, wordings, length and steadiness, a sentence each."""
    large = [effect for effect in audit.biased if abs(effect.effect.value or 0) >= smallest]
    small = [effect for effect in audit.biased if effect not in large]
    return [
        f"biases named, of {smallest:g} spreads or more: {_named(large, audit)}; smaller ones: {_named(small, audit)}",
        _size(audit, smallest),
        *_of_wordings(audit),
        *_beside(audit),
    ]


def _named(effects: Sequence[Effect], audit: Audit) -> str:
    found = []
    for effect in effects:
        others = [one.bias for one in audit.effects if one.explained_by == effect.bias]
        explains = f"; it explains {listed(others)}" if others else ""
        found.append(f"{effect.bias} ({effect.effect.value:+.2f}{explains})")
    return ", ".join(found) or "none"


def _size(audit: Audit, smallest: float) -> str:
    needed = sorted(math.inf if number is None else number for number in audit.needed)
    enough = sum(number <= audit.prompts for number in needed)
    finite = [int(number) for number in needed if number < math.inf]
    half = median(needed)
    parts = [f"an effect of {smallest:g} would be found in {enough} of {len(needed)} rows"]
    if half < math.inf:
        parts.append(f"half of them need {int(half):,} prompts")
    if len(finite) == len(needed):
        parts.append(f"all of them {finite[-1]:,}")
    else:
        parts.append(f"in {len(needed) - len(finite)} of them wordings differ so much that only more wordings help")
    return f"{'; '.join(parts)}; this audit has {audit.prompts:,}"


def _of_wordings(audit: Audit) -> Iterator[str]:
    paying = [(effect.bias, one) for effect in audit.effects for one in effect.wordings if one.pays]
    paying += [(effect.bias, _alone(effect)) for effect in audit.effects if effect.verdict == "this wording pays"]
    if paying:
        texts = [f"{shown(one.text)} ({bias}, {one.effect.value:+.2f})" for bias, one in paying[:MOST_WORDINGS]]
        more = f", and {len(paying) - MOST_WORDINGS} more" if len(paying) > MOST_WORDINGS else ""
        yield f"single wordings that pay: {', '.join(texts)}{more}"
    every = [len(effect.wordings) for effect in audit.effects if effect.wordings]
    if every and audit.prompts < (needed := least_units(sum(every)) * math.ceil(max(every) / DRAWN)):
        yield f"to tell of each wording by itself whether it pays, an audit needs about {needed:,} prompts"


def _alone(effect: Effect) -> Wording:
    return Wording(effect.bias.removeprefix("word "), effect.effect, effect.p)


def _beside(audit: Audit) -> Iterator[str]:
    if audit.longer.value is not None:
        yield f"replies twice as long score {audit.longer:+.2f} spreads higher (no edit: they may simply be better)"
    if audit.own_style.value is not None:
        yield f"replies of the base score {audit.own_style:+.2f} spreads higher (no edit: they may simply be better)"
    steady = audit.steadiness
    if steady.asked_again.value is not None:
        again, other = (_percent(one.times(100)) for one in (steady.asked_again, steady.other_template))
        yield f"pairs of replies that keep their order: asked again {again}, the prompt in another template {other}"


def _percent(found: Estimate) -> str:
    return "–" if found.value is None else f"{found.value:.0f}% ({found.interval('.0f')})"


def not_looked_for(audit: Audit, given: Sequence[str]) -> str:
    """The edits and texts that the table says nothing of; `given` names the models that were given."""
    seen = {effect.bias for effect in audit.effects}
    unmade = [f"{name} (no reply could be so edited)" for name in audit.left_out if name not in seen]
    absent = [words for option, words in OPTIONS.items() if option not in given]
    return f"not looked for: {'; '.join([*unmade, *absent, *UNSEEN])}"
