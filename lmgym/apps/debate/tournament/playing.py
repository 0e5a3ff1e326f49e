"""Rounds played at once: what a player is asked for in one step, over rounds and pairs, is one request."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

from lmgym.apps.debate.debate import Debate
from lmgym.apps.debate.formats import JUDGE
from lmgym.apps.debate.players.judges import JudgePlayer
from lmgym.apps.debate.players.protocol import Judge
from lmgym.apps.debate.prompts.wordings import PromptSet
from lmgym.apps.debate.tournament.config import Tournament
from lmgym.apps.debate.tournament.schedule import ScheduledRound, hash_seed
from lmgym.apps.debate.transcript import Speech, Transcript
from lmgym.environments.engine import SeedOf, play
from lmgym.environments.episodes import RunningEpisode
from lmgym.environments.players import Player
from lmgym.errors import InputError


def play_rounds(
    tournament: Tournament, rounds: Sequence[ScheduledRound], seed: int = 0, p_after_speeches: bool = True
) -> list[Transcript]:
    """The transcripts of the rounds, in order. A round's samples depend on the seed and its number alone."""
    judge = _as_player(tournament.judge)
    names = [dict(zip(tournament.format.debaters, scheduled.players, strict=True)) for scheduled in rounds]
    players = [{agent: tournament.players[name] for agent, name in own.items()} | {JUDGE: judge} for own in names]
    begun = [
        Transcript(
            question=tournament.questions[scheduled.question],
            format=tournament.format,
            flipped=scheduled.flipped,
            seed=scheduled.seed,
            players=own | {JUDGE: tournament.judge_name},
            number=scheduled.number,
        )
        for scheduled, own in zip(rounds, names, strict=True)
    ]
    own_prompts = [tournament.own_prompts_of(scheduled.players) for scheduled in rounds]
    played = play_on(begun, tournament.prompts, players, slot_seeds(seed), own_prompts=own_prompts)
    return add_p_first(played, tournament.judge) if p_after_speeches else played


def judge_anew(
    tournament: Tournament, transcripts: Sequence[Transcript], seed: int = 0, p_after_speeches: bool = True
) -> list[Transcript]:
    """The rounds with the tournament's judge: debaters and the former judge's questions are as they were.

    Their formats are the transcripts' own. Notes and probabilities of the former judge are left out; a judge that gives
    probabilities makes no notes.
    """
    begun, slots = [], []
    for transcript in transcripts:
        spoken = [speech.slot for speech in transcript.speeches if speech.speaker != JUDGE]
        writes = not isinstance(tournament.judge, Judge)
        slot = max(spoken, default=-1) + 1 if writes else len(transcript.format.slots) - 1
        kept = [
            replace(s, p_first=None)
            for s in transcript.up_to(slot).speeches
            if not (s.speaker == JUDGE and s.kind == "reasoning")
        ]
        players = {**transcript.players, JUDGE: tournament.judge_name}
        begun.append(replace(transcript, speeches=tuple(kept), verdict=None, players=players))
        slots.append(slot)
    players_by_agent = {JUDGE: _as_player(tournament.judge)}
    played = play_on(begun, tournament.prompts, players_by_agent, slot_seeds(seed), slots)
    return add_p_first(played, tournament.judge) if p_after_speeches else played


def play_on(
    transcripts: Sequence[Transcript],
    prompts: PromptSet,
    players: Mapping[str, Player] | Sequence[Mapping[str, Player]],
    seed_of: SeedOf,
    slots: Sequence[int] | None = None,
    verdict: Literal["agent", "scorer"] = "agent",
    own_prompts: Sequence[Mapping[str, PromptSet]] | None = None,
) -> list[Transcript]:
    """The rounds played to their ends from these slots (None: after their last speeches).

    `players` are those of all rounds, or a mapping for each; `own_prompts` are those of agents in each round. Samples
    that players note are kept with the speeches. An exception of a player or a round ends the play; so does an action
    that failed, as an InputError.
    """
    places = [None] * len(transcripts) if slots is None else slots
    tasks = [{"transcript": t, "slot": slot} for t, slot in zip(transcripts, places, strict=True)]
    own = own_prompts or [{}] * len(transcripts)
    rounds = [
        Debate(transcript.format, prompts, verdict=verdict, own_prompts=sets)
        for transcript, sets in zip(transcripts, own, strict=True)
    ]
    seeds = [transcript.seed for transcript in transcripts]
    episodes = play(rounds, tasks, seeds, players, seed_of=seed_of, watch=_refuse_failed, stops=(Exception,))
    return [_with_samples(round, episode) for round, episode in zip(rounds, episodes, strict=True)]


def slot_seeds(seed: int) -> SeedOf:
    """Seeds by a hash of (the seed, the round's number, its slot, the agent)."""

    def seed_of(episode: RunningEpisode, agent: str) -> int:
        round = episode.environment
        assert isinstance(round, Debate)
        return hash_seed(seed, round.transcript.number, round.slot, agent)

    return seed_of


def add_p_first(transcripts: Sequence[Transcript], judge: Judge | Player) -> list[Transcript]:
    """The transcripts with P(Debater_A wins) after each slot of speeches, by one call of a judge that gives it.

    If the judge decided right after the last of them, that is its verdict.
    """
    if not isinstance(judge, Judge):
        return list(transcripts)
    known = {
        (i, t.speeches[-2].slot): t.verdict.p_first
        for i, t in enumerate(transcripts)
        if t.verdict is not None and len(t.speeches) > 1 and t.speeches[-2].kind == "speech"
    }
    places = [(i, s) for i, t in enumerate(transcripts) for s in _speech_slots(t) if (i, s) not in known]
    p_first = judge.p_first([transcripts[i].up_to(slot + 1) for i, slot in places]) if places else []
    known |= zip(places, p_first, strict=True)
    return [
        replace(t, speeches=tuple(replace(s, p_first=known.get((i, s.slot))) for s in t.speeches))
        for i, t in enumerate(transcripts)
    ]


def _as_player(judge: Judge | Player) -> Player:
    return JudgePlayer(judge) if isinstance(judge, Judge) else judge


def _refuse_failed(episode: RunningEpisode) -> None:
    """Raises InputError for a round that failed, which would be a hole in the tournament."""
    if episode.error:
        raise InputError(episode.error)


def _with_samples(round: Debate, episode: RunningEpisode) -> Transcript:
    """The transcript of a round, with the samples that its players noted in this play."""
    first = round.slot - len(episode.said)  # a step is a slot

    def noted(speech: Speech) -> Speech:
        if speech.slot < first:
            return speech
        notes = episode.said[speech.slot - first][speech.speaker].notes
        return replace(
            speech, candidates=notes.get("candidates", ()), opponent_samples=notes.get("opponent_samples", ())
        )

    return replace(round.transcript, speeches=tuple(map(noted, round.transcript.speeches)))


def _speech_slots(transcript: Transcript) -> list[int]:
    return sorted({speech.slot for speech in transcript.speeches if speech.kind == "speech"})
