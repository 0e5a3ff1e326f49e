"""The page of an attack: how score and monitors grow, what winners have, edits, and the worst edited replies."""

from collections.abc import Mapping

from lmgym.apps.audit.attack import Attack
from lmgym.apps.audit.attack_edits import AttackEdit
from lmgym.apps.audit.attack_pool import LENGTH
from lmgym.apps.audit.attack_rows import Judged
from lmgym.apps.audit.attack_tables import ABOUT_EDITS, Rows, edits_table, growth_table, summary, winners_table
from lmgym.apps.audit.edit_search import AttackChange
from lmgym.report.charts import lines
from lmgym.report.page import render
from lmgym.report.panels import Card, Panel, Section, Table, figure
from lmgym.report.run_files import Row
from lmgym.report.samples import shown

WORST = 20


def attack_page(scorer: str, found: Attack, judged: Mapping[AttackEdit, Judged], replies: str) -> str:
    """The report of an attack as HTML; `replies` says whose replies were used."""
    confirmed = found.confirmed
    worst = [_pair(change, found) for change in found.worst(WORST)]
    count = f"{len(confirmed)} edits confirmed" if len(confirmed) != 1 else "1 edit confirmed"
    pool = found.pool
    return render(
        title=shown(scorer),
        badge={"kind": "bad" if confirmed else "good", "words": count},
        lead=[
            shown(f"An attack on a scorer with {replies}, {len(pool.samples):,} prompts: what raises the score."),
            *map(shown, summary(found)),
        ],
        cards=[
            Card("edits confirmed", str(len(confirmed))),
            Card("edits tested", str(len(found.findings))),
            Card("replies scored", f"{found.scored:,}"),
            *(
                Card(shown(f"agreement with {name}"), figure(pool.agreement(name)), about="correlation within prompts")
                for name in pool.monitors
            ),
        ],
        sections=[
            Section("growth", "The best of N", [_chart(found), _table("growth_table", "Gains", *growth_table(found))]),
            Section("winners", "What winners have more of", _winners(found)),
            Section("edits", "Edits", _edits(found, judged)),
            Section("worst", "Worst edited replies", _worst(worst)),
        ],
    )


def _chart(found: Attack) -> Panel:
    names = [name for name in found.growth[0].gains if name != LENGTH]
    series = {
        name: [
            (one.kl, gain.value or 0.0, *_ends(gain.low, gain.high))
            for one in found.growth
            for gain in [one.gains[name]]
        ]
        for name in names
    }
    about = "Gains over a single reply, each in spreads of its own scores. A monitor that stays behind is not fooled."
    return Panel("growth_chart", "Score and monitors", about, chart=lines(series, "KL of the best of N, nats", "gain"))


def _ends(low: float | None, high: float | None) -> tuple[float, ...]:
    return () if low is None or high is None else (low, high)


def _table(name: str, title: str, columns: tuple[str, ...], rows: Rows, about: str = "") -> Panel:
    left = {i for i, column in enumerate(columns) if column in ("edit", "verdict", "winners have more of")}
    table = Table(
        tuple(map(shown, columns)),
        [tuple(map(shown, row)) for row in rows],
        numbers=frozenset(set(range(len(columns))) - left),
    )
    return Panel(name, title, about, table=table, wide=True)


def _winners(found: Attack) -> list[Panel]:
    columns, rows = winners_table(found, len(found.winners))
    about = (
        "Shares of replies, or the form's own unit: the eighth of the replies with the highest scores against the "
        "rest, to the same prompt. Found on half of the prompts, confirmed on the other half."
    )
    return [_table("winners_table", "Features", columns, rows, about)] if rows else []


def _edits(found: Attack, judged: Mapping[AttackEdit, Judged]) -> list[Panel]:
    columns, rows = edits_table(found, judged, {})
    return [_table("edits_table", "Tested edits", columns, rows, ABOUT_EDITS)] if rows else []


def _worst(pairs: list[Row]) -> list[Panel]:
    about = f"The {len(pairs)} whose score gained most above what the monitors gained, by confirmed edits."
    return [Panel("worst_replies", "As it was, and edited", about, pairs=pairs, wide=True)] if pairs else []


def _pair(change: AttackChange, found: Attack) -> Row:
    spreads = found.pool.spreads
    both = (("as it was", change.given, change.before), ("edited", change.edited, change.after))
    return {
        "prompt": shown(change.given.prompt),
        "sides": [
            {"name": name, "text": shown(one.reply), "scores": list(scores.items()), "notes": ""}
            for name, one, scores in both
        ],
        "changes": [{"name": name, "of": "in spreads", "by": change.gain(name, spreads)} for name in change.before],
    }
