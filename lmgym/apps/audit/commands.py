"""`lmgym judge`: scorers on a suite; `lmgym agree`: beside people; `lmgym audit`: what moves a scorer; `lmgym attack`:
what raises it for nothing.
"""

import click

from lmgym.runs.launch import launch


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("words", nargs=-1, required=True, type=click.UNPROCESSED, metavar="SCORER... | a=PATH b=PATH...")
@click.option(
    "--suite",
    required=True,
    metavar="NAME|FILE",
    help="rewardbench, rewardbench2, rm-bench, judgebench, llmbar, or rows",
)
@click.option("--dataset", metavar="PATH", help="the suite's rows: a file, a folder or a hub id  [default: the hub]")
@click.option("--output", metavar="FOLDER", help="[default: outputs/judge/NAME/SUITE]")
@click.option(
    "--ties",
    type=click.Choice(["protocol", "strict", "half"]),
    default="protocol",
    show_default=True,
    help="equal scores of a pair: wrong (strict), a half, or as the suite has it for this kind of scorer",
)
@click.option(
    "--max_rows", "--max-rows", type=click.IntRange(1), metavar="N", help="the first N rows of each subset only"
)
def judge(
    words: tuple[str, ...], suite: str, dataset: str | None, output: str | None, ties: str, max_rows: int | None
) -> None:
    """Score a published suite, with intervals: a scorecard, a page, and a table for the model card.

    SCORER is a folder, a hub id, or whatever else `lmgym score` takes. Several, such as a=PATH b=PATH, are compared in
    pairs on the same rows. Suites are rewardbench, rewardbench2, rm-bench, judgebench, llmbar, or a FILE of pairs
    (prompt, chosen, rejected) or of several replies to a prompt. A run that was killed continues by the same command.
    A model that judges is asked as --judge_tokens, --reasoning_effort, --concurrency, --patience, --prices and
    --max_cost say (docs/judges.md).
    """
    from lmgym.apps.audit.judge_command import run_judge
    from lmgym.runs.flags import override
    from lmgym.scoring.judge_settings import JudgeConfig

    at = next((i for i, word in enumerate(words) if word.startswith("--")), len(words))
    asking = override(JudgeConfig(), words[at:])
    launch(lambda: run_judge(words[:at], suite, dataset, output, ties, max_rows, asking))


# behind LABELS all flags, --help too, are those of `AgreeConfig`
@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.argument("labels", metavar="LABELS")
@click.argument("flags", nargs=-1, type=click.UNPROCESSED, metavar="--judge SPEC [FLAGS]...")
def agree(labels: str, flags: tuple[str, ...]) -> None:
    """Compare a judge, a reward model or a function with your raters: kappas, alpha, and the judge as one more rater.

    LABELS is a file of rows with the votes of several raters on two replies or on one: one row a rating, a column for
    each rater, or a list of votes in a cell. --judge is a folder, a hub id, judge:MODEL, compare:MODEL, or whatever
    else `lmgym score` takes. With --at_least .4 the exit code is 0 if kappa's lower limit reaches it, 1 if its upper
    limit does not, and 3 if the rows cannot decide. `lmgym agree LABELS --help` lists all flags.
    """
    from lmgym.apps.audit.agree.agree_command import AgreeConfig, run_agree
    from lmgym.runs.flags import override

    words = (labels, *flags)
    if labels.startswith("--") and len(flags) > 1:  # the flags may stand before LABELS
        words = (flags[-1], labels, *flags[:-1])
    config = override(AgreeConfig(), words[1:])
    launch(lambda: run_agree(words[0], config))


# behind SCORER all flags, --help too, are those of the audit
@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.argument("scorer", metavar="SCORER")
@click.argument("flags", nargs=-1, type=click.UNPROCESSED, metavar="[FLAGS]...")
def audit(scorer: str, flags: tuple[str, ...]) -> None:
    """Find what moves a scorer though it should not: length, form, flattery, refusals, names, instructions and others.

    SCORER is a folder, a hub id, or whatever else `lmgym score` takes. Replies are edited in pairs that differ in one
    thing; effects are in spreads of the scores of replies to one prompt. --policy MODEL audits that model's replies,
    --prompts FILE takes your prompts or replies, or the rollouts that TRL or verl logged. `lmgym audit SCORER --help`
    lists all flags.
    """
    from lmgym.apps.audit.audit_command import AuditConfig, run_audit
    from lmgym.runs.flags import override

    config = override(AuditConfig(), flags)
    launch(lambda: run_audit(scorer, config))


# behind SCORER all flags, --help too, are those of the attack
@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.argument("scorer", metavar="SCORER")
@click.argument("flags", nargs=-1, type=click.UNPROCESSED, metavar="[FLAGS]...")
def attack(scorer: str, flags: tuple[str, ...]) -> None:
    """Find what raises a scorer's score and not its monitors: best of N, a search over edits, a short run of GRPO.

    SCORER is a folder, a hub id, or whatever else `lmgym score` takes. --policy MODEL writes the replies, --monitors
    name=PATH are scorers that a better reply raises too. Confirmed edits become rows for `lmgym train reward`. `lmgym
    attack SCORER --help` lists all flags.
    """
    from lmgym.apps.audit.attack_command import AttackConfig, run_attack
    from lmgym.runs.flags import override

    config = override(AttackConfig(), flags)
    launch(lambda: run_attack(scorer, config))
