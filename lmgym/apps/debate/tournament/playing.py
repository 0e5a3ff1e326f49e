"""Rounds played together: all that a player is asked for in one step, over rounds and pairs, is one request."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from lmgym.apps.debate.debate import Debate
from lmgym.apps.debate.formats import DEBATERS, JUDGE, other
from lmgym.apps.debate.players.judges import JudgePlayer
from lmgym.apps.debate.players.protocol import Call, Judge, Player, Spoken
from lmgym.apps.debate.tournament.config import Tournament
from lmgym.apps.debate.tournament.schedule import ScheduledRound, hash_seed
from lmgym.apps.debate.transcript import Transcript
from lmgym.environments.protocol import Observation


def play_rounds(
    tournament: Tournament, rounds: Sequence[ScheduledRound], seed: int = 0, p_after_speeches: bool = True
) -> list[Transcript]:
    """The transcripts of the rounds, in order. A round's samples depend on the seed and its number alone."""
    return _played([_begin(tournament, scheduled, seed) for scheduled in rounds], tournament.judge, p_after_speeches)


def judge_anew(
    tournament: Tournament, transcripts: Sequence[Transcript], seed: int = 0, p_after_speeches: bool = True
) -> list[Transcript]:
    """The rounds with the tournament's judge: debaters and the former judge's questions are as they were.

    Their formats are the transcripts' own. Notes of the former judge are left out; a judge that gives probabilities
    makes none.
    """
    playing = []
    for transcript in transcripts:
        debate = Debate(transcript.format, tournament.prompts)
        numbers = has_probabilities(tournament.judge)
        last = len(transcript.format.slots) - 1
        slot = last if numbers else max((s.slot + 1 for s in transcript.speeches if s.speaker != JUDGE), default=0)
        kept = tuple(s for s in transcript.up_to(slot).speeches if not (s.speaker == JUDGE and s.kind == "reasoning"))
        players = {**transcript.players, JUDGE: tournament.judge_name}
        debate.begin(replace(transcript, speeches=kept, verdict=None, players=players))
        debate.slot = slot
        playing.append(_RunningRound(debate, {JUDGE: _as_player(tournament.judge)}, seed))
    return _played(playing, tournament.judge, p_after_speeches)


def add_p_first(transcripts: Sequence[Transcript], judge: Judge) -> list[Transcript]:
    """The transcripts with P(Debater_A wins) after each slot of speeches, by one call of the judge.

    If the judge decided right after the last of them, that is its verdict.
    """
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


def has_probabilities(judge: Judge | Player) -> bool:
    """True for a judge that gives probabilities, and writes nothing."""
    return hasattr(judge, "p_first")


class _RunningRound:
    """A round while it is played, from where its debate is."""

    def __init__(self, debate: Debate, players: Mapping[str, Player], seed: int) -> None:
        self.debate, self.players, self.seed = debate, players, seed
        self.observations: Mapping[str, Observation] = debate.observations()

    def call(self, agent: str) -> Call:
        """The request for what an agent says next."""
        read = self.observations[agent].prompt
        assert not isinstance(read, str)
        seed = hash_seed(self.seed, self.debate.transcript.number, self.debate.slot, agent)
        return Call(self.debate, agent, read, seed, self.players.get(other(agent)) if agent in DEBATERS else None)

    def step(self, said: Mapping[str, Spoken]) -> None:
        """Take what all agents of the slot have said."""
        before = len(self.debate.transcript.speeches)
        self.observations = self.debate.step({agent: spoken.text for agent, spoken in said.items()}).observations
        speeches = self.debate.transcript.speeches
        samples = [
            replace(s, candidates=said[s.speaker].candidates, opponent_samples=said[s.speaker].opponent_samples)
            for s in speeches[before:]
        ]
        self.debate.transcript = replace(self.debate.transcript, speeches=(*speeches[:before], *samples))


def _begin(tournament: Tournament, scheduled: ScheduledRound, seed: int) -> _RunningRound:
    names = dict(zip(tournament.format.debaters, scheduled.players, strict=True))
    debate = Debate(tournament.format, tournament.prompts)
    debate.begin(
        Transcript(
            tournament.questions[scheduled.question], tournament.format, scheduled.flipped, scheduled.seed,
            players=names | {JUDGE: tournament.judge_name}, number=scheduled.number,
        )
    )  # fmt: skip
    players = {agent: tournament.players[name] for agent, name in names.items()}
    return _RunningRound(debate, players | {JUDGE: _as_player(tournament.judge)}, seed)


def _as_player(judge: Judge | Player) -> Player:
    return JudgePlayer(judge) if has_probabilities(judge) else judge  # type: ignore[arg-type, return-value]


def _played(rounds: Sequence[_RunningRound], judge: Judge | Player, p_after_speeches: bool) -> list[Transcript]:
    """The rounds played to their ends."""
    while pending := [running for running in rounds if not running.debate.ended]:
        _step(pending)
    transcripts = [running.debate.transcript for running in rounds]
    if p_after_speeches and has_probabilities(judge):
        return add_p_first(transcripts, judge)  # type: ignore[arg-type]
    return transcripts


def _step(rounds: Sequence[_RunningRound]) -> None:
    """The next slot of each round: one request to each player."""
    asked: dict[int, list[tuple[_RunningRound, str]]] = {}
    players: dict[int, Player] = {}
    for running in rounds:
        for agent in running.observations:
            player = running.players[agent]
            # judges are wrapped for each round; what they wrap is the player
            key = id(player.judge) if isinstance(player, JudgePlayer) else id(player)
            players[key] = player
            asked.setdefault(key, []).append((running, agent))
    said: dict[int, dict[str, Spoken]] = {id(running): {} for running in rounds}
    for key, requests in asked.items():
        spoken = players[key].speak([running.call(agent) for running, agent in requests])
        for (running, agent), [speech] in zip(requests, spoken, strict=True):
            said[id(running)][agent] = speech
    for running in rounds:
        running.step(said[id(running)])


def _speech_slots(transcript: Transcript) -> list[int]:
    return sorted({speech.slot for speech in transcript.speeches if speech.kind == "speech"})
