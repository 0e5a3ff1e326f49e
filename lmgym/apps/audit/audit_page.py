"""The page of an audit: effects with intervals, and the edits that moved the score most."""

from collections.abc import Sequence
from dataclasses import replace

from lmgym.apps.audit.measuring import Audit, Change
from lmgym.apps.audit.verdicts import Effect
from lmgym.report.charts import bars
from lmgym.report.page import render
from lmgym.report.panels import Card, Panel, Section, Table, figure
from lmgym.report.run_files import Row
from lmgym.report.samples import shown

EXAMPLES = 4  # of each bias
MOST_BARS = 12
ABOUT_TABLE = (
    "p is two-sided and adjusted for all rows (Holm); detectable is the effect that these prompts find with power .9. "
    "A gain is a bias whatever is expected; a loss is one where no change is expected."
)


def audit_page(scorer: str, audit: Audit, replies: str, below: Sequence[str] = ()) -> str:
    """The report of an audit as HTML; `replies` says whose replies were edited, and `below` stands below the tables."""
    named = audit.biased
    shown_biases = named or list(audit.effects[:3])
    examples = [_examples(audit, effect) for effect in shown_biases]
    title = "Worst examples of each bias" if named else "No bias is named: examples of the largest effects"
    count = f"{len(named)} biases named" if len(named) != 1 else "1 bias named"
    return render(
        title=shown(scorer),
        badge={"kind": "bad" if named else "good", "words": count},
        lead=[
            shown(f"An audit of a scorer on {replies}: {audit.replies:,} replies to {audit.prompts:,} prompts."),
            "Each effect compares two versions of a reply that differ in one thing, in units of the spread of the "
            "scores of replies to one prompt. Intervals are of 95%, over prompts, and of biases that rest on words "
            "over wordings too.",
            *map(shown, below),
        ],
        cards=[
            Card("biases named", str(len(named))),
            Card("spread of the scores", figure(audit.spread), about="standard deviation of replies to one prompt"),
            Card("prompts", f"{audit.prompts:,}"),
            Card(
                "rows that can be decided",
                f"{sum(n is not None and n <= audit.prompts for n in audit.needed)} of {len(audit.effects)}",
                about="in which the smallest effect of interest would be found, with power .9",
            ),
        ],
        sections=[
            Section("effects", "Effects", [_chart(audit), *_tables(audit)]),
            Section("wordings", "Wordings", _wordings(audit)),
            Section("examples", title, examples),
        ],
    )


def _chart(audit: Audit) -> Panel:
    known = [effect for effect in audit.effects if effect.effect.value is not None]
    largest = sorted(known, key=lambda effect: -abs(effect.effect.value or 0))[:MOST_BARS]
    rows = [(one.bias, float(one.effect.value or 0), one.effect.low, one.effect.high) for one in largest]
    about = f"The {len(rows)} largest, in spreads of the scorer. Above 0: the edit is rewarded."
    return Panel("effects_chart", "Largest effects", about, chart=bars(rows, "effect", base=0), wide=True)


def _tables(audit: Audit) -> list[Panel]:
    """The rows that are named, those of losses that are right, and the others."""
    named = [effect for effect in audit.effects if effect.moves]
    losses = [effect for effect in audit.effects if effect.verdict.startswith("loses")]
    others = [effect for effect in audit.effects if effect not in (*named, *losses)]
    titles = (
        "What is named: biases, each above the effects that it explains, and wordings",
        "Losses, as it may or should be",
        "No bias found, or too few prompts or wordings to tell",
    )
    groups = zip(("named", "losses", "others"), titles, (named, losses, others), strict=True)
    panels = [_table(name, title, effects) for name, title, effects in groups if effects]
    return [replace(panels[0], about=ABOUT_TABLE), *panels[1:]]


def _table(name: str, title: str, effects: Sequence[Effect]) -> Panel:
    columns = ("bias", "what is changed", "a sound scorer", "prompts", "effect", "p", "detectable", "verdict")
    rows = [
        (
            f"– {one.bias}" if one.explained_by else one.bias,
            one.about,
            one.expected,
            f"{one.units:,}",
            f"{one.effect:+.2f}",
            "–" if one.units < 2 else f"{one.p:.3f}",
            figure(one.detectable),
            one.verdict,
        )
        for one in effects
    ]
    table = Table(columns, [tuple(map(shown, row)) for row in rows], numbers=frozenset({3, 4, 5, 6}))
    return Panel(f"table_{name}", title, table=table, wide=True)


def _wordings(audit: Audit) -> list[Panel]:
    """The wordings of the biases that are named, and those that pay by themselves."""
    rows = [
        (
            effect.bias,
            one.text or "(nothing)",
            f"{one.effect.units:,}",
            f"{one.effect:+.2f}",
            "–" if one.p is None else f"{one.p:.3f}",
            "this wording pays" if one.pays else "",
        )
        for effect in audit.effects
        for one in sorted(effect.wordings, key=lambda one: -(one.effect.value or 0))
        if effect.moves or one.pays
    ]
    if not rows:
        return []
    about = "Over prompts alone; p is adjusted for all wordings (Holm). – where too few prompts drew it to tell."
    columns = ("bias", "wording", "prompts", "effect", "p", "verdict")
    table = Table(columns, [tuple(map(shown, row)) for row in rows], numbers=frozenset({2, 3, 4}))
    return [Panel("wordings", "Wordings of what is named", about, table=table, wide=True)]


def _examples(audit: Audit, effect: Effect) -> Panel:
    changes = audit.examples(effect.bias, EXAMPLES)
    about = f"{effect.about}: {effect.effect:+.2f} spreads; {effect.verdict}. Those that moved the score most."
    return Panel(
        effect.bias.replace(" ", "_"),
        shown(effect.bias),
        shown(about),
        pairs=[_pair(change, audit.spread) for change in changes],
        wide=True,
    )


def _pair(change: Change, spread: float) -> Row:
    plain, tested, _ = change.versions
    same = plain.prompt == tested.prompt and plain.conversation.persona == tested.conversation.persona
    prompts = [" ".join(filter(None, [one.conversation.persona, one.prompt])) for one in (plain, tested)]
    return {
        "prompt": shown(prompts[0] if same else f"without: {prompts[0]} — with: {prompts[1]}"),
        "sides": [
            {"name": name, "text": shown(one.reply), "scores": [("score", score)], "notes": ""}
            for name, one, score in zip(("without", "with"), (plain, tested), change.scores, strict=False)
        ],
        "changes": [{"name": "score", "of": "in spreads", "by": change.by / spread}],
    }
