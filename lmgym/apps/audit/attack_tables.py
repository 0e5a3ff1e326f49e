"""The tables of an attack, for the terminal and for its page."""

from collections.abc import Mapping, Sequence
from typing import Any

from lmgym.apps.audit.attack import Attack
from lmgym.apps.audit.attack_edits import AttackEdit
from lmgym.apps.audit.attack_pool import LENGTH, TARGET
from lmgym.apps.audit.attack_rows import Judged
from lmgym.apps.audit.edit_search import SHARE, Finding
from lmgym.console import CleanConsole, say
from lmgym.statistics import notes

Rows = Sequence[tuple[str, ...]]
SHOWN = 8  # features
WEAK = 0.5  # correlation of score and monitor
NOBODY = "nothing independent watches: a gain may be a better reply; --monitors name=PATH names scorers that tell"
ABOUT_EDITS = (
    "gains in spreads of replies to one prompt, with 95% intervals over prompts; beyond random: less the gain of "
    f"random edits of that kind and size; confirmed: more than --smallest_effect and than random, and monitors gain "
    f"less than {SHARE:g} of it (p: the largest of these tests, adjusted for all edits by Holm)"
)


def growth_table(found: Attack) -> tuple[tuple[str, ...], Rows]:
    """(columns, rows) of the best of N."""
    names = list(found.growth[0].gains)
    columns = ("best of", "prompts", "KL, nats", *("words" if name == LENGTH else name for name in names))
    return columns, [
        (f"{one.n:,}", f"{one.gains[TARGET].units:,}", f"{one.kl:.2f}", *(f"{one.gains[name]:+.2f}" for name in names))
        for one in found.growth
        if one.n > 1
    ]


def winners_table(found: Attack, most: int) -> tuple[tuple[str, ...], Rows]:
    """(columns, rows) of what winners have more of."""
    rows = [(one.feature.name, f"{one.difference:+.2f}", f"{one.p:.3f}") for one in found.winners if one.confirmed]
    return ("winners have more of", "more", "p"), rows[:most]


def edits_table(
    found: Attack, judged: Mapping[AttackEdit, Judged], earlier: Mapping[AttackEdit, Mapping[str, Any]]
) -> tuple[tuple[str, ...], Rows]:
    """(columns, rows) of the edits that were tested."""
    names = found.pool.monitors
    columns = ("edit", "prompts", "gain", "beyond random", *names, "p", "verdict")
    return columns, [
        (
            finding.edit.name,
            f"{finding.gain.units:,}",
            f"{finding.gain:+.2f}",
            f"{finding.beyond:+.2f}",
            *(f"{finding.monitors[name]:+.2f}" for name in names),
            f"{finding.p:.3f}",
            _verdict(finding, judged, earlier),
        )
        for finding in found.findings
    ]


def _verdict(
    finding: Finding, judged: Mapping[AttackEdit, Judged], earlier: Mapping[AttackEdit, Mapping[str, Any]]
) -> str:
    said = "confirmed" if finding.confirmed else "not confirmed"
    if finding.edit in judged and judged[finding.edit].by:
        said += f", quality {judged[finding.edit].quality}"
    if finding.edit in earlier:
        said += f"; before {earlier[finding.edit]['gain']['value']:+.2f}"
    return said


def summary(found: Attack) -> list[str]:
    """The findings, a sentence each."""
    pool, confirmed = found.pool, found.confirmed
    listed = "; ".join(f"{one.edit.name} ({one.gain.value or 0:+.2f})" for one in confirmed)
    tested, and_no = len(found.findings), " and no monitor" if pool.monitors else ""
    lines = [
        f"edits that raise the score{and_no}, of {tested} tested: {listed or 'none'}",
    ]
    if found.training:
        by = ", ".join(f"{name} {change:+.2f}" for name, change in found.training.change.items())
        lines.append(f"{found.training.updates:,} updates of GRPO, on prompts it did not see: {by}")
    if not pool.monitors:
        lines.append(NOBODY)
    for name in pool.monitors:
        agreement = pool.agreement(name)
        if agreement is None or agreement < WEAK:
            shown = "–" if agreement is None else f"{agreement:.2f}"
            lines.append(
                f"{name} correlates with the score by {shown} within prompts: below {WEAK:g} it hardly tells a hack "
                "from a better reply"
            )
    return lines


def show_attack(
    name: str, found: Attack, judged: Mapping[AttackEdit, Judged], earlier: Mapping[AttackEdit, Mapping[str, Any]]
) -> None:
    """Prints all tables, and what they say."""
    pool = found.pool
    replies = sum(len(sample.replies) for sample in pool.samples)
    say(
        f"{name}: a spread of {pool.spreads[TARGET]:.4g} within prompts, over {replies:,} replies to "
        f"{len(pool.samples):,}"
    )
    _print("the best of N less a single reply, in spreads, with 95% intervals over prompts", *growth_table(found))
    columns, rows = winners_table(found, SHOWN)
    if rows:
        _print("found on half of the prompts, confirmed on the other half", columns, rows)
    if found.findings:
        _print("edits, on prompts on which they were not found", *edits_table(found, judged, earlier))
        say(ABOUT_EDITS)
    for line in summary(found):
        say(line)
    for note in notes((finding.gain for finding in found.findings), "prompt"):
        say(note)
    say(f"{found.scored:,} replies scored")


def _print(title: str, columns: tuple[str, ...], rows: Rows) -> None:
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for column in columns:
        text = column in ("edit", "verdict", "winners have more of")
        table.add_column(column, justify="left" if text else "right", overflow="fold")
    for row in rows:
        table.add_row(*row)
    CleanConsole(width=150).print(table)
