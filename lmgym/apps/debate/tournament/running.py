"""A tournament from its settings to its results: played in batches, resumed where it was killed."""

import hashlib
import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lmgym.apps.debate.formats import Format
from lmgym.apps.debate.prompts.wordings import read_prompts
from lmgym.apps.debate.rendering import needed_tags
from lmgym.apps.debate.report.figures import elo_of, estimate_of, interval
from lmgym.apps.debate.report.page import debate_page
from lmgym.apps.debate.tournament.config import Tournament, TournamentConfig
from lmgym.apps.debate.tournament.consultancies import join_consultancies
from lmgym.apps.debate.tournament.files import (
    MERGED,
    RESULTS,
    TRANSCRIPTS,
    append,
    check_settings,
    merged_with,
    questions_of,
    read_played,
    read_transcripts,
    shard_folder,
)
from lmgym.apps.debate.tournament.playing import judge_anew, play_rounds
from lmgym.apps.debate.tournament.results import tournament_results
from lmgym.apps.debate.tournament.schedule import ScheduledRound, make_schedule
from lmgym.apps.debate.training.branching import branch_rows, grow_rounds
from lmgym.apps.debate.training.preferences import log_prob
from lmgym.apps.debate.transcript import Transcript
from lmgym.console import CleanConsole, say
from lmgym.errors import InputError, shown_path
from lmgym.report.page import REPORT
from lmgym.runs.files import write_json, write_lines, write_text
from lmgym.runs.locks import FolderLock
from lmgym.shell import command
from lmgym.statistics import notes

PREFERENCES = "preferences.jsonl"

Setup = Callable[[TournamentConfig], Tournament]


def run_tournament(config: TournamentConfig, setup: Setup) -> None:
    """Plays what is missing of this shard's rounds, writes transcripts and results, and prints a table.

    With `config.branching` it grows trees of the rounds instead, and writes preference rows.

    Raises InputError for a folder with rounds of other settings, for prompts that lack a tag, and for bad questions,
    all before the first speech.
    """
    recorded = _recorded(config)
    tournament = setup(config)
    tournament = tournament.with_tokens(config.speech_tokens, config.judge_tokens)
    if config.previous_run is not None:
        questions = questions_of(read_transcripts(config.previous_run))[: config.questions]
        tournament = replace(tournament, questions=questions)
    if recorded and not config.convert:
        _check_speakers(recorded, tournament.format)
    for format in {t.format for t in recorded or ()} or {tournament.format}:
        for prompts in (tournament.prompts, *tournament.own_prompts.values()):
            read_prompts(prompts, needed_tags(format))
    if recorded is None:
        rounds: Sequence[Any] = make_schedule(
            config, list(tournament.players), len(tournament.questions), tournament.format
        )
    else:
        rounds = recorded[: config.rounds]
    if config.merge_results is not None:
        read_transcripts(config.merge_results)  # refused before anything is played
    folder, (shard, shards) = Path(config.folder), config.shard_numbers
    own = shard_folder(folder, shard, shards)
    lock = FolderLock(own)
    try:
        check_settings(own, _settings(config, tournament, recorded))
        if config.branching:
            _grow(config, tournament, [r for r in rounds if r.number % shards == shard], own / PREFERENCES)
            return
        _play_missing(config, tournament, [r for r in rounds if r.number % shards == shard], own / TRANSCRIPTS)
    finally:
        lock.release()
    print_results(write_results(folder))
    say(f"{folder / RESULTS}: these figures; {folder / REPORT}: to read in a browser; rounds: {own / TRANSCRIPTS}")


def _recorded(config: TournamentConfig) -> list[Transcript] | None:
    """The rounds to judge anew; none if they are to be played. Raises InputError for transcripts without a round."""
    if config.transcripts is None:
        return None
    found = read_transcripts(config.transcripts)
    if not found:
        raise InputError(f"{shown_path(config.transcripts)} has no round; needed: rounds that have been played")
    return join_consultancies(found) if config.convert else found


def _check_speakers(recorded: Sequence[Transcript], format: Format) -> None:
    """Raises InputError for a round with as many debaters as the experiment's format does not have."""
    wanted = len(format.debaters)
    for transcript in recorded:
        if (found := len(transcript.format.debaters)) != wanted:
            joined = "--convert double, which joins two consultancies, or " if (found, wanted) == (1, 2) else ""
            raise InputError(
                f"round {transcript.number} of the transcripts has {found} debater(s), and the experiment's format, "
                f"{format.name}, has {wanted}; needed: {joined}an experiment with the rounds' format"
            )


def _grow(config: TournamentConfig, tournament: Tournament, rounds: Sequence[ScheduledRound], path: Path) -> None:
    """Writes the preference rows of trees of these rounds, all of which are grown at once."""
    assert config.branching, "trees have a kind"
    branches, leaves = grow_rounds(tournament, rounds, config.branching, config.seed)
    rows = list(branch_rows(branches, log_prob))
    if not rows:
        raise InputError(
            f"{len(branches):,} branches have no sample that is better than the other for judge "
            f"{tournament.judge_name}; needed: a judge that tells them apart"
        )
    write_lines(path, rows)
    say(f"{len(rows):,} preference rows of {len(branches):,} branches and {len(leaves):,} rounds: {shown_path(path)}")
    start = ("lmgym", "train", "preference", "dpo", "--dataset", shown_path(path))
    say(f"next: {command(*start, '--model', config.model or 'MODEL')}")


def write_results(folder: Path) -> dict[str, Any]:
    """Writes results.json and report.html of a folder, from its transcripts alone; the content of results.json.

    A tournament with `merge_results` has the rounds named there too, numbered after its own. Raises InputError for a
    folder without transcripts.
    """
    transcripts = read_transcripts(folder)
    if merged := merged_with(folder):
        first = 1 + max((transcript.number for transcript in transcripts), default=-1)
        transcripts += [replace(t, number=first + place) for place, t in enumerate(read_transcripts(merged))]
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
    names = [
        "branching",
        "pairs",
        "share",
        "sides",
        "seed",
        "model",
        "judge_model",
        "temperature",
        "shard",
        "transcripts",
        "convert",
    ]
    return {
        **{name: getattr(config, name) for name in names},
        MERGED: config.merge_results and os.path.abspath(os.path.expanduser(config.merge_results)),
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
    if unknown := results["rounds"] - judge["accuracy"]["rounds"]:
        say(f"{unknown:,} rounds have no known right answer, and are not in these two figures")
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
