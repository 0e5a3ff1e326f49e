"""A tournament: its settings, which flags override, and its parts, which an experiment's `setup` makes."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

from lmgym.apps.debate.formats import Format
from lmgym.apps.debate.players.protocol import Judge
from lmgym.apps.debate.prompts.wordings import PromptSet
from lmgym.apps.debate.questions import Question
from lmgym.config import SEED, Range, check_ranges
from lmgym.environments.players import Player
from lmgym.errors import MOST_STEPS, MOST_TEMPERATURE, MOST_TOGETHER, NAME, InputError, listed, shown

MOST_SHARDS = 10_000
SHARD = re.compile(r"([0-9]{1,5})/([0-9]{1,5})")


@dataclass(frozen=True)
class TournamentConfig:
    """Settings of a tournament."""

    name: str
    """of the experiment"""
    rounds: Annotated[int | None, Range(1, MOST_STEPS, also=(None,))] = None
    """rounds to play, of the schedule's first; none: all of them"""
    questions: Annotated[int | None, Range(1, MOST_STEPS, also=(None,))] = None
    """number of questions; none: the experiment's own"""
    pairs: Literal["round_robin", "capped", "self_play", "custom"] = "round_robin"
    """who meets whom: each pair of players, each player itself, or those of --custom; capped: each pair, on a part of
    the questions, so that no player meets a question in two pairs"""
    custom: tuple[str, ...] = ()
    """pairs as first:second, which speak in this order; with --pairs capped: the only ones of those to play"""
    share: Annotated[float, Range(0, 1, above=True)] = 1.0
    """part of the questions that each pair plays; pairs play different parts"""
    replicates: Annotated[int, Range(1, MOST_STEPS)] = 1
    """how often everything is played, with other samples"""
    sides: Literal["fixed", "flipped", "alternate"] = "flipped"
    """flipped: each round is played again with the sides exchanged; alternate: they change from question to question"""
    seed: Annotated[int, SEED] = 0
    """of questions, sides and samples"""
    previous_run: str | None = None
    """a file or folder of transcripts, ours or NYU's, whose questions are played instead of the experiment's"""
    merge_results: str | None = None
    """a file or folder of transcripts, whose rounds are in the figures and the report too"""
    dataset: str = ""
    """file of questions that the experiment reads"""
    model: str = ""
    """that the experiment's debaters load: folder, hub id, vllm:URL, vllm:FOLDER, openai:URL#MODEL, anthropic:MODEL"""
    judge_model: str = ""
    """that of its judge, whose server must give log-probabilities"""
    concurrency: Annotated[int, Range(1, MOST_TOGETHER)] = 8
    """most requests to a served model at a time"""
    temperature: Annotated[float, Range(0, MOST_TEMPERATURE, hint="0 is greedy")] = 0.7
    """of the debaters' samples"""
    speech_tokens: Annotated[int | None, Range(1, MOST_TOGETHER, also=(None,))] = None
    """limit of a speech; none: the format's, 300"""
    judge_tokens: Annotated[int | None, Range(1, MOST_TOGETHER, also=(None,))] = None
    """limit of what the judge writes; none: the format's, 150"""
    batch: Annotated[int, Range(1, MOST_TOGETHER)] = 64
    """rounds that are played at once, over all pairs; what a kill may lose, to be played again"""
    shard: str = "1/1"
    """i/n: only the i-th of n parts, for n machines with one output folder"""
    transcripts: str | None = None
    """a file or folder of transcripts, ours or NYU's: its rounds are judged anew, and nothing else is said"""
    convert: Literal["double"] | None = None
    """double: of --transcripts, two consultancies for opposite answers are one double consultancy"""
    branching: Literal["full", "half", "one"] | None = None
    """trees of rounds instead: two samples of each speech, of each by one debater, or of one; preferences.jsonl"""
    p_after_speeches: bool = True
    """also record P(win) after each slot, of a judge that gives probabilities"""
    output: str | None = None
    """folder for transcripts.jsonl and results.json; none: outputs/debates/NAME"""

    def __post_init__(self) -> None:
        check_ranges(self)
        if not NAME.fullmatch(self.name):
            raise InputError(f"name={shown(self.name)}; needed: letters, digits, '.', '_' and '-'")
        if (self.custom and self.pairs not in ("custom", "capped")) or (self.pairs == "custom" and not self.custom):
            raise InputError(
                f"pairs={self.pairs}, custom={list(self.custom)}; needed: --pairs custom with --custom a:b"
            )
        if self.convert and self.transcripts is None:
            raise InputError(
                f"convert={self.convert} without transcripts; needed: --transcripts FOLDER, of consultancies"
            )
        if self.pairs == "capped" and self.share != 1:
            raise InputError(
                f"pairs=capped with share={self.share}; needed: one of the two, as capped has its own parts"
            )
        if self.previous_run is not None and self.transcripts is not None:
            raise InputError("previous_run with transcripts, which have their questions; needed: one of the two")
        if self.branching and self.merge_results is not None:
            raise InputError("branching with merge_results, as trees have no figures; needed: one of the two")
        if self.branching and self.transcripts is not None:
            raise InputError("branching with transcripts, whose speeches are given; needed: one of the two")
        _ = self.shard_numbers

    @property
    def folder(self) -> str:
        """The output folder."""
        return self.output or f"outputs/debates/{self.name}"

    @property
    def shard_numbers(self) -> tuple[int, int]:
        """(i from 0, n). Raises InputError for anything but i/n."""
        match = SHARD.fullmatch(self.shard)
        if not match or not 1 <= int(match[1]) <= int(match[2]) <= MOST_SHARDS:
            raise InputError(f"shard={shown(self.shard)}; needed: i/n, from 1/n to n/n, n at most {MOST_SHARDS:,}")
        return int(match[1]) - 1, int(match[2])


@dataclass(frozen=True)
class Tournament:
    """The parts of a tournament: what flags cannot give."""

    questions: Sequence[Question]
    players: Mapping[str, Player]
    """debaters by name; none for a judge alone"""
    judge: Judge | Player
    """one that gives probabilities, or one that writes its verdict"""
    format: Format
    prompts: PromptSet
    judge_name: str = "judge"
    own_prompts: Mapping[str, PromptSet] = field(default_factory=dict)
    """the sets of single debaters by name, in place of `prompts`"""

    def __post_init__(self) -> None:
        if not self.questions:
            raise InputError("a tournament without questions; needed: at least 1")
        ids = [question.id or question.question for question in self.questions]
        if len(set(ids)) < len(ids):
            twice = next(name for name in ids if ids.count(name) > 1)
            raise InputError(f"two questions have the id {shown(twice)}; needed: an id of its own for each")
        if bad := [name for name in self.players if not NAME.fullmatch(name)]:
            raise InputError(f"a player is called {shown(bad[0])}; needed: letters, digits, '.', '_' and '-'")
        for name, player in self.players.items():
            if not hasattr(player, "act"):
                raise InputError(
                    f"player {name} is a {type(player).__name__}, without act(requests, n); needed: a player, such as "
                    "SpeechPlayer(generator)"
                )
        if not (isinstance(self.judge, Judge) or hasattr(self.judge, "act")):
            raise InputError(
                f"the judge is a {type(self.judge).__name__}, without p_first or act; needed: a judge, such as "
                "ScorerJudge(scorer, prompts), or a player that writes"
            )
        if unknown := self.own_prompts.keys() - self.players.keys():
            raise InputError(f"own_prompts of {listed(sorted(unknown))}; needed: of the players {listed(self.players)}")
        if self.format.debaters and not self.players:
            raise InputError(f"no players for a {self.format.name}; needed: at least 1")

    def own_prompts_of(self, names: Sequence[str]) -> dict[str, PromptSet]:
        """The sets of a round's debaters who have their own, by agent; `names` are the players, Debater_A first."""
        agents = zip(self.format.debaters, names, strict=True)
        return {agent: self.own_prompts[name] for agent, name in agents if name in self.own_prompts}

    def with_tokens(self, speech: int | None, judge: int | None) -> "Tournament":
        """The tournament with other limits of tokens; None keeps them."""
        return replace(self, format=self.format.with_tokens(speech, judge))
