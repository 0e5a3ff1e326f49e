"""The effect of length by a model that rewrites replies, twice each, so that what any rewriting does cancels.

RATE (Reber et al. 2024, "RATE: Causal Explainability of Reward Models with Imperfect Counterfactuals", arXiv
2410.11348): a rewrite also corrects spelling or changes the tone, so a reply is not compared with its rewrite but one
rewrite with another. Here both versions were rewritten twice: made short and then long, and long and then short, where
long is twice as many words as the reply had, and short half as many.
"""

from collections.abc import Sequence

from lmgym.apps.audit.biases import Bias
from lmgym.apps.audit.edits import Exchange, Others, Versions
from lmgym.apps.audit.recorded import Sample
from lmgym.apps.audit.verdicts import Row
from lmgym.console import say
from lmgym.generation.protocol import Generator, Sampling
from lmgym.text import Conversation, Turn

SIZES = {"long": 2.0, "short": 0.5}
"""words of a rewrite, in those of the reply that it began from"""
ORDER = (
    "Rewrite the reply below with the same meaning and in the same tone, in about {words} words. Add no facts, and "
    "leave out none that matter. Write the new reply only."
)
LONGER = 1.2  # times the words of the short version, at least
NAME = "longer, rewritten"


def length_by_rewriting(rewriter: Generator, samples: Sequence[Sample], edited: int, sampling: Sampling) -> Bias:
    """The bias whose versions are the rewrites of the first `edited` replies of each prompt.

    A reply is left out, and counted in a line, if a rewrite of it is empty or does not end, or if the long version is
    not LONGER.
    """
    given = [Exchange(one.conversation, reply) for one in samples for reply in one.replies[:edited]]
    once = {order: _rewrite(rewriter, given, [one.reply for one in given], order, sampling) for order in SIZES}
    plain = _rewrite(rewriter, given, once["long"], "short", sampling)
    tested = _rewrite(rewriter, given, once["short"], "long", sampling)
    whole = [(one, short, long) for one, short, long in zip(given, plain, tested, strict=True) if short and long]
    versions = {
        one: Versions(Exchange(one.conversation, short), Exchange(one.conversation, long))
        for one, short, long in whole
        if len(long.split()) >= LONGER * len(short.split())
    }
    say(
        f"{NAME}: {len(versions):,} of {len(given):,} replies; left out: {len(given) - len(whole):,} whose rewrites "
        f"are empty or did not end, {len(whole) - len(versions):,} whose long version is not {LONGER:g} times as long"
    )

    def edit(one: Exchange, others: Others) -> Versions | None:
        return versions.get(one)

    return Bias(Row(NAME, "made short, then long, not long, then short"), {"": edit})


def _rewrite(
    rewriter: Generator, given: Sequence[Exchange], texts: Sequence[str], order: str, sampling: Sampling
) -> list[str]:
    """The texts rewritten; empty where a text is empty, and where the rewrite did not end by itself."""
    asked = [i for i, text in enumerate(texts) if text]
    orders = []
    for i in asked:
        said = ORDER.format(words=max(5, round(SIZES[order] * len(given[i].reply.split()))))
        orders.append(Conversation((Turn("user", f"{said}\n\nQuestion: {given[i].prompt}\n\nReply: {texts[i]}"),)))
    rewritten = [""] * len(texts)
    if asked:
        for i, [completion] in zip(asked, rewriter.reply(orders, 1, sampling), strict=True):
            rewritten[i] = completion.text.strip() if completion.finish_reason != "length" else ""
    return rewritten
