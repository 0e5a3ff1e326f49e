"""Tournaments: batches, kills, shards, and judging anew; the files are the same however rounds were played."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from lmgym.apps.debate.formats import FIRST, JUDGE, SECOND, debate, interactive_debate, judge_alone
from lmgym.apps.debate.players.best_of_n import BestOfNPlayer
from lmgym.apps.debate.players.judges import LetterJudge, RandomJudge
from lmgym.apps.debate.players.protocol import slot_of
from lmgym.apps.debate.players.scripted import SCRIPTED, ScriptedPlayer, say_letters, say_position
from lmgym.apps.debate.prompts.debate import PROMPTS
from lmgym.apps.debate.synthetic import synthetic_questions
from lmgym.apps.debate.tournament.config import Tournament, TournamentConfig
from lmgym.apps.debate.tournament.files import read_transcripts
from lmgym.apps.debate.tournament.playing import judge_anew, play_rounds
from lmgym.apps.debate.tournament.results import tournament_results
from lmgym.apps.debate.tournament.running import run_tournament, write_results
from lmgym.apps.debate.tournament.schedule import hash_seed, make_schedule
from lmgym.apps.debate.transcript import Verdict
from lmgym.environments.players import ActionRequest
from lmgym.environments.protocol import Action
from lmgym.errors import InputError
from lmgym.generation.protocol import ScriptedGenerator

CONFIG = TournamentConfig("test", batch=4)


def setup(config: TournamentConfig) -> Tournament:
    players = {name: SCRIPTED[name] for name in ("quotes", "letters", "repeats")}
    return Tournament(synthetic_questions(3, facts=4), players, LetterJudge("e"), debate(2), PROMPTS)


def lines(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "transcripts.jsonl").read_text().splitlines()]


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    run_tournament(replace(CONFIG, output=str(tmp_path / "whole")), setup)
    return tmp_path / "whole"


def test_every_round_is_played_once_with_p_after_each_slot(whole: Path) -> None:
    rows = lines(whole)
    assert [row["number"] for row in rows] == list(range(18))
    row = rows[0]
    assert row["players"] == {"Debater_A": "quotes", "Debater_B": "letters", "Judge": "judge"}
    first = [speech["p_first"] for speech in row["speeches"] if speech["kind"] == "speech"]
    assert first[0] == first[1]  # one number for a slot
    assert first[3] == pytest.approx(row["verdict"]["p_first"])
    results = json.loads((whole / "results.json").read_text())
    assert (results["rounds"], results["questions"]) == (18, 3)


def test_a_previous_run_gives_its_questions(whole: Path, tmp_path: Path) -> None:
    def others(config: TournamentConfig) -> Tournament:
        return replace(setup(config), questions=synthetic_questions(5, facts=4, seed=9))

    again = replace(CONFIG, previous_run=str(whole), questions=2, output=str(tmp_path / "again"))
    run_tournament(again, others)
    assert [row["question"] for row in lines(tmp_path / "again")][::6] == [row["question"] for row in lines(whole)][
        :12:6
    ]
    assert len(lines(tmp_path / "again")) == 12
    with pytest.raises(InputError, match="has rounds with other settings: questions changed"):
        run_tournament(replace(again, questions=1), others)


@pytest.mark.parametrize("shards", [1, 2])
def test_merged_results_are_over_the_rounds_of_both_folders(shards: int, whole: Path, tmp_path: Path) -> None:
    merging = replace(CONFIG, output=str(tmp_path / "both"), questions=1, rounds=4, merge_results=str(whole))
    for shard in range(shards):
        run_tournament(replace(merging, shard=f"{shard + 1}/{shards}"), setup)
    own = read_transcripts(tmp_path / "both")
    assert [t.number for t in own] == [0, 1, 2, 3]
    results = json.loads((tmp_path / "both/results.json").read_text())
    expected = tournament_results([*own, *(replace(t, number=t.number + 4) for t in read_transcripts(whole))])
    assert (results["rounds"], results["judge"]) == (22, json.loads(json.dumps(expected["judge"])))
    (tmp_path / "both/results.json").unlink()
    assert write_results(tmp_path / "both")["rounds"] == 22
    with pytest.raises(InputError, match="merge_results changed"):
        run_tournament(replace(merging, shard=f"1/{shards}", merge_results=None), setup)
    with pytest.raises(InputError, match="absent has no transcripts"):
        run_tournament(replace(merging, output=str(tmp_path / "none"), merge_results=str(tmp_path / "absent")), setup)
    assert not (tmp_path / "none").exists()
    with pytest.raises(InputError, match="trees have no figures"):
        replace(merging, branching="full")


@pytest.mark.parametrize("branching", [None, "full"])
def test_a_debater_with_wordings_of_its_own_reads_them_on_either_side(branching, tmp_path: Path) -> None:
    read: list[str] = []

    def note(round, agent, rng) -> str:
        asked = round.observation(agent).prompt.turns[-1].text
        read.append(f"{round.transcript.players.get(agent, 'tree')}: {asked.rpartition('. ')[2]}")
        return "e" * int(rng.integers(1, 99))

    def own(config: TournamentConfig) -> Tournament:
        players = dict.fromkeys(("plain", "sings"), ScriptedPlayer(note))
        prompts = {"sings": PROMPTS | {"opening": "Now. Sing"}}
        return replace(setup(config), players=players, format=debate(1), own_prompts=prompts)

    run_tournament(replace(CONFIG, output=str(tmp_path / "own"), branching=branching), own)
    sung = [line for line in read if line.endswith(": Sing")]
    assert len(sung) == len(read) / 2 > 0
    assert set(sung) == ({"tree: Sing"} if branching else {"sings: Sing"})
    with pytest.raises(InputError, match="own_prompts of nobody; needed: of the players quotes"):
        replace(setup(CONFIG), own_prompts={"nobody": PROMPTS})


@pytest.mark.parametrize("batch", [1, 5, 100])
def test_batches_change_nothing(whole: Path, tmp_path: Path, batch: int) -> None:
    other = tmp_path / "other"
    run_tournament(replace(CONFIG, output=str(other), batch=batch), setup)
    assert lines(other) == lines(whole)
    assert (other / "results.json").read_text() == (whole / "results.json").read_text()


@pytest.mark.parametrize("cut", [0, 1, 17, -30])
def test_a_killed_run_goes_on_without_a_lost_or_doubled_round(whole: Path, tmp_path: Path, cut: int) -> None:
    killed = tmp_path / "killed"
    run_tournament(replace(CONFIG, output=str(killed), rounds=10), setup)
    file = killed / "transcripts.jsonl"
    content = file.read_bytes()
    kept = content.split(b"\n")
    # whole lines, and the beginning of another one, as a kill in the middle of a batch leaves them
    file.write_bytes(b"\n".join(kept[:6]) + b"\n" + kept[6][:cut] if cut >= 0 else content[:cut])
    run_tournament(replace(CONFIG, output=str(killed)), setup)
    assert sorted(lines(killed), key=lambda row: row["number"]) == lines(whole)
    assert (killed / "results.json").read_text() == (whole / "results.json").read_text()


def test_shards_are_parts_of_the_whole_in_one_folder(whole: Path, tmp_path: Path) -> None:
    parts = tmp_path / "parts"
    for shard in ("2/3", "1/3", "3/3"):
        run_tournament(replace(CONFIG, output=str(parts), shard=shard), setup)
    assert read_transcripts(parts) == read_transcripts(whole)
    assert (parts / "results.json").read_text() == (whole / "results.json").read_text()
    run_tournament(replace(CONFIG, output=str(parts), shard="1/3"), setup)  # again: nothing is left to play
    assert len(read_transcripts(parts)) == 18
    run_tournament(replace(CONFIG, output=str(tmp_path / "x"), rounds=3), setup)
    (parts / "transcripts.jsonl").write_text((tmp_path / "x/transcripts.jsonl").read_text())
    with pytest.raises(InputError, match="has round 0 twice"):
        read_transcripts(parts)


def test_rounds_of_other_settings_are_not_mixed(whole: Path) -> None:
    with pytest.raises(InputError, match="has rounds with other settings: seed changed; needed"):
        run_tournament(replace(CONFIG, output=str(whole), seed=1), setup)

    def other(config: TournamentConfig) -> Tournament:
        return replace(setup(config), questions=synthetic_questions(4, facts=4))

    with pytest.raises(InputError, match="questions changed"):
        run_tournament(replace(CONFIG, output=str(whole)), other)
    (whole / "tournament.json").write_text("{")
    with pytest.raises(InputError, match="is not JSON"):
        run_tournament(replace(CONFIG, output=str(whole)), setup)


def test_a_prompt_that_is_missing_is_reported_before_the_first_speech(tmp_path: Path) -> None:
    def lacking(config: TournamentConfig) -> Tournament:
        prompts = {tag: text for tag, text in PROMPTS.items() if tag != "speech"}
        return replace(setup(config), prompts=prompts)

    with pytest.raises(InputError, match="no wording for speech "):
        run_tournament(replace(CONFIG, output=str(tmp_path / "none")), lacking)
    assert not (tmp_path / "none").exists()


def test_rounds_are_judged_anew_by_another_judge(whole: Path, tmp_path: Path) -> None:
    def random(config: TournamentConfig) -> Tournament:
        return replace(setup(config), judge=RandomJudge(5), judge_name="random")

    anew = tmp_path / "anew"
    run_tournament(replace(CONFIG, output=str(anew), transcripts=str(whole), p_after_speeches=False), random)
    before, after = read_transcripts(whole), read_transcripts(anew)
    assert [t.players[JUDGE] for t in after] == ["random"] * 18
    assert [t.verdict.p_first for t in after] == pytest.approx(RandomJudge(5).p_first([t.up_to(2) for t in before]))
    spoken = [[(s.speaker, s.text) for s in t.speeches if s.kind == "speech"] for t in before]
    assert [[(s.speaker, s.text) for s in t.speeches if s.kind == "speech"] for t in after] == spoken
    with pytest.raises(InputError, match="has no transcripts"):
        run_tournament(replace(CONFIG, output=str(anew), transcripts=str(tmp_path / "absent")), random)


def test_samples_that_were_not_said_stand_with_their_speeches_and_stay_when_judged_anew() -> None:
    judge = LetterJudge("e")
    letters = ScriptedPlayer(say_letters)
    players = {"best": BestOfNPlayer(letters, judge, n=3, opponent_n=2), "letters": letters}
    tournament = Tournament(synthetic_questions(2), players, judge, debate(2), PROMPTS)
    rounds = play_rounds(tournament, make_schedule(CONFIG, ["best", "letters"], 2, tournament.format))
    for transcript in rounds:
        for speech in transcript.speeches:
            compared = transcript.players[speech.speaker] == "best"
            assert len(speech.candidates) == 3 * compared
            assert len(speech.opponent_samples) == 2 * compared
            if compared:
                best = max(speech.candidates, key=lambda candidate: candidate["score"])
                assert speech.text == best["text"].strip()
    anew = judge_anew(replace(tournament, judge=RandomJudge(1)), rounds, p_after_speeches=False)
    debaters = [[replace(s, p_first=None) for s in t.speeches if s.speaker != JUDGE] for t in rounds]
    assert [[replace(s, p_first=None) for s in t.speeches if s.speaker != JUDGE] for t in anew] == debaters
    assert [t.verdict for t in anew] != [t.verdict for t in rounds]


@dataclass
class Fails:
    """Speaks, and fails from the second batch on: by an exception, or by an action that says so."""

    error: Exception | None
    asked: int = 0

    def act(self, requests: Sequence[ActionRequest], n: int = 1) -> list[list[Action]]:
        self.asked += 1
        if self.asked > 2 and self.error:
            raise self.error
        return [[Action("well", error="no answer" if self.asked > 2 else "")] * n for _ in requests]


@pytest.mark.parametrize("error", [None, ValueError("no answer")])
def test_a_player_that_fails_ends_the_tournament_after_the_batches_before(error, tmp_path: Path) -> None:
    def failing(config: TournamentConfig) -> Tournament:
        return replace(setup(config), players={"fails": Fails(error)})

    with pytest.raises(ValueError, match="no answer") as raised:
        run_tournament(replace(CONFIG, output=str(tmp_path / "failed")), failing)
    assert isinstance(raised.value, InputError) == (error is None)
    assert [row["number"] for row in lines(tmp_path / "failed")] == [0, 1, 2, 3]


@dataclass
class Writes:
    """A judge that writes, and records what it was asked."""

    text: str
    kinds: list[str] = field(default_factory=list)

    def act(self, requests: Sequence[ActionRequest], n: int = 1) -> list[list[Action]]:
        self.kinds += [slot_of(request).kind for request in requests]
        return [[Action(self.text)] * n for _ in requests]


def test_the_seed_of_a_speech_is_a_hash_of_seed_number_slot_and_agent() -> None:
    class SaysSeed:
        def act(self, requests, n=1):
            return [[Action(str(request.seed))] * n for request in requests]

    tournament = replace(setup(CONFIG), players={"seeds": SaysSeed()})
    rounds = play_rounds(tournament, make_schedule(CONFIG, ["seeds"], 3, tournament.format))
    spoken = [(t.number, s) for t in rounds for s in t.speeches if s.speaker != JUDGE]
    assert [s.text for _, s in spoken] == [str(hash_seed(0, number, s.slot, s.speaker)) for number, s in spoken]
    assert hash_seed(0, 3, 1, SECOND) == 5_481_633_957_209_610_422  # recorded debates are played again to the letter


def test_an_exception_within_a_round_ends_the_play_as_it_is() -> None:
    tournament = replace(setup(CONFIG), players={"none": Writes(None)})  # type: ignore[arg-type]
    with pytest.raises(AttributeError, match="NoneType") as raised:
        play_rounds(tournament, make_schedule(CONFIG, ["none"], 1, tournament.format))
    assert "in episode 0" in "".join(raised.value.__notes__)


def test_a_judge_that_writes_judges_anew_with_notes_of_its_own() -> None:
    format = interactive_debate(2).with_reasoning()
    tournament = Tournament(
        synthetic_questions(1), {"a": SCRIPTED["quotes"]}, Writes("Debater_A | 60%"), format, PROMPTS
    )
    scheduled = make_schedule(CONFIG, ["a"], 1, format)
    rounds = play_rounds(tournament, scheduled)
    assert [s.kind for s in rounds[0].speeches if s.speaker == JUDGE] == ["question", "reasoning", "verdict"]
    other = Writes("Debater_B | 90%")
    [anew, _] = judge_anew(replace(tournament, judge=other), rounds)
    assert other.kinds == ["reasoning"] * 2 + ["verdict"] * 2
    assert anew.verdict == Verdict(pytest.approx(0.1), "Debater_B | 90%")
    assert [s.text for s in anew.speeches if s.kind == "question"] == ["Debater_A | 60%"]
    [by_letter, _] = judge_anew(replace(tournament, judge=LetterJudge("e")), rounds)
    assert [s.kind for s in by_letter.speeches if s.speaker == JUDGE] == ["question", "verdict"]


def test_what_a_player_is_asked_over_all_pairs_is_one_request_a_slot() -> None:
    @dataclass
    class Counting:
        player: ScriptedPlayer
        requests: list[int] = field(default_factory=list)

        def act(self, requests, n=1):
            self.requests.append(len(requests))
            return self.player.act(requests, n)

    first, second = Counting(ScriptedPlayer(say_letters)), Counting(ScriptedPlayer(say_position))
    tournament = Tournament(
        synthetic_questions(3), {"a": first, "b": second, "c": SCRIPTED["repeats"]}, LetterJudge(), debate(2), PROMPTS
    )
    play_rounds(tournament, make_schedule(CONFIG, ["a", "b", "c"], 3, tournament.format))
    # of 18 rounds, 12 have the player, in two slots
    assert first.requests == second.requests == [12, 12]


def test_a_judge_alone_needs_no_players() -> None:
    tournament = Tournament(synthetic_questions(2), {}, Writes("Debater_A"), judge_alone(), PROMPTS)
    [first, *_] = play_rounds(tournament, make_schedule(CONFIG, [], 2, judge_alone()))
    assert first.verdict.winner == FIRST


def test_parts_of_a_tournament_are_checked() -> None:
    questions = synthetic_questions(1)
    with pytest.raises(InputError, match="without questions"):
        Tournament([], {}, LetterJudge(), judge_alone(), PROMPTS)
    with pytest.raises(InputError, match="two questions have the id"):
        Tournament(questions * 2, {}, LetterJudge(), judge_alone(), PROMPTS)
    with pytest.raises(InputError, match="a player is called 'a:b'"):
        Tournament(questions, {"a:b": SCRIPTED["quotes"]}, LetterJudge(), debate(1), PROMPTS)
    with pytest.raises(InputError, match="no players for a debate"):
        Tournament(questions, {}, LetterJudge(), debate(1), PROMPTS)
    generator = ScriptedGenerator(["x"])
    with pytest.raises(InputError, match=r"player a is a ScriptedGenerator, .* needed: .* SpeechPlayer\(generator\)"):
        Tournament(questions, {"a": generator}, LetterJudge(), debate(1), PROMPTS)
    with pytest.raises(InputError, match=r"the judge is a ScriptedGenerator, .* needed: .* ScorerJudge"):
        Tournament(questions, {"a": SCRIPTED["quotes"]}, generator, debate(1), PROMPTS)


def test_figures_and_report_follow_from_the_transcripts_alone(whole: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy" / "whole"
    copy.mkdir(parents=True)
    (copy / "transcripts.jsonl").write_bytes((whole / "transcripts.jsonl").read_bytes() + b'{"schema": "cut by a k')
    write_results(copy)
    for name in ("results.json", "report.html"):
        assert (copy / name).read_text() == (whole / name).read_text(), name


def test_the_judge_is_not_asked_again_after_the_last_speeches() -> None:
    asked: list[int] = []

    class CountingJudge:
        def p_first(self, transcripts):
            asked.append(len(transcripts))
            return LetterJudge("e").p_first(transcripts)

    tournament = replace(setup(CONFIG), judge=CountingJudge())
    rounds = play_rounds(tournament, make_schedule(CONFIG, list(tournament.players), 3, tournament.format)[:4])
    assert asked == [4, 4]  # verdicts, and after the first of two slots
    for transcript in rounds:
        assert transcript.speeches[-2].p_first == transcript.verdict.p_first
