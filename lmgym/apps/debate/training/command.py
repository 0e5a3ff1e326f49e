"""`lmgym debate data`: rows to train debaters on, out of transcripts."""

from pathlib import Path

import click

from lmgym.runs.launch import launch


@click.command()
@click.argument("folder")
@click.option(
    "--kind",
    type=click.Choice(["sft", "preferences", "judge"]),
    required=True,
    help="sft: what debaters read and said; preferences: what best-of-n debaters said, and did not say; judge: what "
    "the judge reads, and who is right",
)
@click.option("--output", required=True, help="file for the rows: .jsonl")
@click.option(
    "--speakers",
    type=click.Choice(["all", "right", "won"]),
    default="all",
    show_default=True,
    help="sft: of all debaters, of those with the right answer, or of winners",
)
@click.option(
    "--preference",
    type=click.Choice(["log_prob", "prob", "logit", "sigmoid", "binary"]),
    default="log_prob",
    show_default=True,
    help="preferences: how P(win) of both becomes a preference",
)
@click.option("--prompts", help="Python file with PROMPTS  [default: our set for the format]")
def data(folder: str, kind: str, output: str, speakers: str, preference: str, prompts: str | None) -> None:
    """Write rows for training out of FOLDER, of a tournament, or a file or folder of debates in NYU's shapes."""
    launch(lambda: _write(folder, kind, Path(output), speakers, preference, prompts))


def _write(folder: str, kind: str, output: Path, speakers, preference, prompts: str | None) -> None:
    from lmgym.apps.debate.tournament.files import read_transcripts
    from lmgym.apps.debate.training.preferences import PREFERENCES
    from lmgym.apps.debate.training.rows import judge_rows, preference_rows, read_prompt_file, sft_rows
    from lmgym.console import say
    from lmgym.errors import InputError, shown_path
    from lmgym.runs.files import write_lines

    wordings = read_prompt_file(prompts) if prompts else None
    rounds = read_transcripts(folder)
    if kind == "preferences":
        rows, speakers = list(preference_rows(rounds, PREFERENCES[preference], wordings)), "all"
    elif kind == "judge":
        rows, speakers = list(judge_rows(rounds, wordings)), "right"
    else:
        rows = list(sft_rows(rounds, wordings, speakers))
    unknown = sum(not t.correct if speakers == "right" else not t.verdict for t in rounds) if speakers != "all" else 0
    lack = {
        "right": "no known right answer (correctAnswer, or the judge's probabilities with isJudgeCorrect)",
        "won": "no verdict (the judge's probabilities)",
    }.get(speakers)
    if not rows:
        why = {
            "sft": "speeches by such debaters",
            "preferences": "samples with several scores: play with a BestOfNPlayer",
            "judge": "rounds whose right answer is known",
        }[kind]
        found = f"; {unknown:,} of them have {lack}" if unknown and lack else ""
        raise InputError(f"the {len(rounds)} rounds of {shown_path(folder)} have no row{found}; needed: {why}")
    if unknown and lack:
        say(f"{unknown:,} of {len(rounds):,} rounds have {lack}, and no row", error=True)
    output.parent.mkdir(parents=True, exist_ok=True)
    write_lines(output, rows)
    say(f"{len(rows):,} rows of {len(rounds):,} rounds: {shown_path(output)}")
