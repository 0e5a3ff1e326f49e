"""A tournament from its settings to its results: played in batches, resumed where it was killed."""

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from lmgym.apps.debate.prompts.wordings import read_prompts
from lmgym.apps.debate.rendering import needed_tags
from lmgym.apps.debate.report.figures import elo_of, estimate_of, interval
from lmgym.apps.debate.report.page import debate_page
from lmgym.apps.debate.tournament.config import Tournament, TournamentConfig
from lmgym.apps.debate.tournament.files import (
    RESULTS,
    TRANSCRIPTS,
    append,
    check_settings,
    read_played,
    read_transcripts,
    shard_folder,
)
from lmgym.apps.debate.tournament.playing import judge_anew, play_rounds
from lmgym.apps.debate.tournament.results import tournament_results
from lmgym.apps.debate.tournament.schedule import ScheduledRound, make_schedule
from lmgym.apps.debate.transcript import Transcript
from lmgym.console import CleanConsole, say
from lmgym.report.page import REPORT
from lmgym.runs.files import write_json, write_text
from lmgym.runs.locks import FolderLock
from lmgym.statistics import notes

Setup = Callable[[TournamentConfig], Tournament]


def run_tournament(config: TournamentConfig, setup: Setup) -> None:
    """Plays what is missing of this shard's rounds, writes transcripts and results, and prints a table.

    Raises InputError for a folder with rounds of other settings, for prompts that lack a tag, and for bad questions,
    all before the first speech.
    """
    recorded = read_transcripts(config.transcripts) if config.transcripts is not None else None
    tournament = setup(config)
    tournament = tournament.with_tokens(config.speech_tokens, config.judge_tokens)
    for format in {t.format for t in recorded or ()} or {tournament.format}:
        read_prompts(tournament.prompts, needed_tags(format))
    if recorded is None:
        rounds: Sequence[Any] = make_schedule(
            config, list(tournament.players), len(tournament.questions), tournament.format
        )
    else:
        rounds = recorded[: config.rounds]
    folder, (shard, shards) = Path(config.folder), config.shard_numbers
    own = shard_folder(folder, shard, shards)
    lock = FolderLock(own)
    try:
        check_settings(own, _settings(config, tournament, recorded))
        _play_missing(config, tournament, [r for r in rounds if r.number % shards == shard], own / TRANSCRIPTS)
    finally:
        lock.release()
    print_results(write_results(folder))
    say(f"{folder / RESULTS}: these figures; {folder / REPORT}: to read in a browser; rounds: {own / TRANSCRIPTS}")


def write_results(folder: Path) -> dict[str, Any]:
    """Writes results.json and report.html of a folder, from its transcripts alone; the content of results.json.

    Raises InputError for a folder without transcripts.
    """
    transcripts = read_transcripts(folder)
    results = tournament_results(transcripts)
    write_json(folder / RESULTS, results)
    write_text(folder / REPORT, debate_page(folder.resolve().name, transcripts, results))
    return results


def _play_missing(config: TournamentConfig, tournament: Tournament, rounds: Sequence[Any], path: Path) -> None:
    """Plays the rounds that the file does not have, `config.batch` at a time."""
    played = {transcript.number for transcript in read_played(path)}
    missing = [r for r in rounds if r.number not in played]
    if played:
        say(f"{path} has {len(played):,} rounds; {len(missing):,} are left to play")
    began = time.monotonic()
    for start in range(0, len(missing), config.batch):
        batch = missing[start : start + config.batch]
        append(path, _play(config, tournament, batch))
        done, seconds = start + len(batch), time.monotonic() - began
        say(f"{done:,} of {len(missing):,} rounds, {seconds:.1f} s", error=True)


def _play(
    config: TournamentConfig, tournament: Tournament, batch: Sequence[ScheduledRound | Transcript]
) -> list[Transcript]:
    recorded = [r for r in batch if isinstance(r, Transcript)]
    if recorded:
        return judge_anew(tournament, recorded, config.seed, config.p_after_speeches)
    scheduled = [r for r in batch if isinstance(r, ScheduledRound)]
    return play_rounds(tournament, scheduled, config.seed, config.p_after_speeches)


def _settings(
    config: TournamentConfig, tournament: Tournament, recorded: Sequence[Transcript] | None
) -> dict[str, Any]:
    """The settings that the rounds depend on, for resumption: models are known by the names of their players."""
    questions = [question.task for question in tournament.questions] if recorded is None else len(recorded)
    digest = hashlib.sha256(json.dumps(questions, sort_keys=True).encode()).hexdigest()
    names = ("pairs", "share", "sides", "seed", "model", "judge_model", "temperature", "shard", "transcripts")
    return {
        **{name: getattr(config, name) for name in names},
        "custom": list(config.custom),
        "questions": digest,
        "format": tournament.format.name,
        "slots": [[*slot.speakers, slot.kind, slot.max_tokens] for slot in tournament.format.slots],
        "players": list(tournament.players),
        "judge": tournament.judge_name,
    }


def print_results(results: dict[str, Any]) -> None:
    """Prints the judge's figures and each player's, with their intervals."""
    from rich.table import Table

    judge = results["judge"]
    say(f"rounds: {results['rounds']:,}, questions: {results['questions']:,}")
    say(f"judge: accuracy {interval(judge['accuracy'])}, P(right answer) {interval(judge['probability_of_right'])}")
    say(f"Debater_A wins {interval(results['sides']['first_wins'])}")
    table = Table(title="wins, with 95% intervals over questions", title_justify="left")
    for name in ("player", "all", "with the right answer", "with the wrong one", "valid quotes", "words"):
        table.add_column(name, justify="left" if name == "player" else "right", overflow="fold")
    for name, player in results["players"].items():
        speeches = [player["speeches_correct"], player["speeches_incorrect"]]
        quotes, valid = (sum(s[key] for s in speeches) for key in ("quotes", "valid"))
        count = sum(s["speeches"] for s in speeches)
        words = sum((s["words"] or 0) * s["speeches"] for s in speeches) / count if count else 0
        cells = [interval(player[key]) for key in ("wins", "wins_correct", "wins_incorrect")]
        table.add_row(name, *cells, f"{valid} of {quotes}", f"{words:.0f}")
    if results["players"]:
        CleanConsole(width=120).print(table)
    if rated := results["ratings"]["players"]:
        say("Elo: " + ", ".join(f"{r['player']} {elo_of(r):+.0f}" for r in rated))
    found = [judge["accuracy"], *(player["wins"] for player in results["players"].values())]
    for note in notes([*map(estimate_of, found), *map(elo_of, rated)], "question"):
        say(note)
