"""Debaters: scripts, recordings, people, generators, and the best of n in every turn."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest

from lmgym.apps.debate.debate import Debate
from lmgym.apps.debate.formats import FIRST, JUDGE, SECOND, Format, debate, other
from lmgym.apps.debate.players.best_of_n import BestOfNPlayer
from lmgym.apps.debate.players.human import HumanPlayer
from lmgym.apps.debate.players.judges import LetterJudge
from lmgym.apps.debate.players.models import LazyPlayer, model_player
from lmgym.apps.debate.players.protocol import SpeechPlayer, request_for, round_of
from lmgym.apps.debate.players.recorded import RecordedPlayer
from lmgym.apps.debate.players.scripted import (
    ScriptedPlayer,
    invent_quote,
    quote_text,
    repeat_last,
    say_letters,
    say_position,
)
from lmgym.apps.debate.prompts.debate import PROMPTS
from lmgym.environments.players import ActionRequest, GeneratorPlayer, Player
from lmgym.environments.protocol import Action
from lmgym.errors import InputError
from lmgym.generation.protocol import Sampling, ScriptedGenerator

TASK = {
    "question": "Where is the cat?",
    "options": ["on the mat", "in the hat"],
    "correct": 0,
    "text": "It was late. All day the cat sat on the mat. The hat was empty.",
    "flipped": False,
}


def begin(format: Format = debate(1), **task) -> Debate:  # noqa: B008
    round = Debate(format, PROMPTS)
    round.reset(TASK | task, 0)
    return round


def asked(round: Debate, agent: str, seed: int = 0, opponent: Player | None = None) -> ActionRequest:
    return request_for(round, agent, seed, {other(agent): opponent} if opponent else {})


@dataclass
class Listed:
    """Says the given speeches in turn, and records what it was asked."""

    speeches: list[str]
    requests: list[tuple[list[ActionRequest], int]] = field(default_factory=list)

    def act(self, requests: Sequence[ActionRequest], n: int = 1) -> list[list[Action]]:
        self.requests.append((list(requests), n))
        return [[Action(self.speeches[(i + j) % len(self.speeches)]) for j in range(n)] for i in range(len(requests))]


def said(script, round: Debate, agent: str = FIRST, seed: int = 0) -> str:
    [[spoken]] = ScriptedPlayer(script).act([asked(round, agent, seed)])
    return spoken.text


def test_scripts_say_what_they_are_called() -> None:
    round = begin()
    assert said(say_position, round) == "My answer is right: on the mat"
    assert said(quote_text, round) == "The answer is on the mat. <quote>All day the cat sat on the mat</quote>"
    assert said(quote_text, round, SECOND).endswith("<quote>The hat was empty.</quote>")
    checked = round.rules.check(said(quote_text, round), TASK["text"])
    assert [quote.status for quote in checked.quotes] == ["exact"]
    invented = round.rules.check(said(invent_quote, round), TASK["text"])
    assert [quote.status for quote in invented.quotes] == ["invalid"]
    assert said(say_letters, round, seed=1) == said(say_letters, round, seed=1)
    assert said(say_letters, round, seed=1) != said(say_letters, round, seed=2)
    assert said(quote_text, begin(text="")) == "My answer is right: on the mat"


def test_a_repeating_debater_repeats_what_it_heard_last() -> None:
    round = begin(debate(2))
    assert said(repeat_last, round) == "My answer is right: on the mat"
    round.step({FIRST: "first", SECOND: "second"})
    assert said(repeat_last, round) == "second"
    assert said(repeat_last, round, SECOND) == "first"


def test_a_generator_replies_within_the_slots_limit_with_the_requests_seeds() -> None:
    seen = []

    @dataclass
    class Recording:
        def reply(self, conversations, n, sampling, progress=None):
            seen.append((len(conversations), n, sampling.max_new_tokens, sampling.seed))
            return ScriptedGenerator(lambda c, rng: c.turns[-1].text[-9:]).reply(conversations, n, sampling)

    player = SpeechPlayer(Recording(), Sampling(temperature=0.5))
    long, short = begin(), begin(debate(1).with_tokens(speech=7))
    spoken = player.act([asked(long, FIRST, 5), asked(short, FIRST, 6), asked(long, SECOND, 7)], 2)
    assert seen == [(1, 2, 7, (6,)), (2, 2, 300, (5, 7))]
    assert [[s.text for s in own] for own in spoken] == [["the text."] * 2] * 3


def test_a_conversation_that_is_too_long_for_a_model_is_refused_or_cut(small_models) -> None:
    round = begin(debate(1).with_tokens(speech=8), text="the cat " * 600)
    player = model_player(str(small_models["llama"]), temperature=1.0)
    assert len(player.act([asked(round, FIRST)])) == 1
    refusing = replace(player, on_long="refuse")
    with pytest.raises(InputError, match="longer than the model's context less 8 tokens"):
        refusing.act([asked(round, FIRST)])


def test_a_lazy_player_is_loaded_when_it_first_speaks(small_models) -> None:
    round = begin(debate(1).with_tokens(speech=8))
    LazyPlayer("models/absent")  # nothing is loaded
    name = str(small_models["llama"])
    request = [asked(round, FIRST)]
    assert LazyPlayer(name, temperature=1.0).act(request, 2) == model_player(name, temperature=1.0).act(request, 2)
    with pytest.raises(InputError, match="models/absent"):
        LazyPlayer("models/absent").act(request)


def played(first: str, second: str, **fields):
    round = begin()
    round.step({FIRST: first, SECOND: second})
    round.step({JUDGE: "Debater_A"})
    return replace(round.transcript, **fields)


def test_a_recording_says_what_that_side_said_about_the_question() -> None:
    player = RecordedPlayer([played("a", "<quote>b")])
    round = begin()
    [[first], [second]] = player.act([asked(round, FIRST), asked(round, SECOND)])
    assert (first.text, second.text) == ("a", "<quote>b")
    with pytest.raises(InputError, match=r"has 0 recorded speech.* for 'in the hat' in question 'Where is the cat"):
        player.act([asked(begin(flipped=True), FIRST)])
    longer = begin(debate(2))
    longer.step({FIRST: "a", SECOND: "b"})
    with pytest.raises(InputError, match=r"has 1 recorded .* number 2 is asked for"):
        player.act([asked(longer, FIRST)])


def test_recordings_of_one_question_are_told_apart_by_number() -> None:
    player = RecordedPlayer([played("a", "b", number=4), played("c", "d", number=9)], by_number=True)
    round = begin()
    round.reset({"transcript": replace(round.transcript, number=9)}, 0)
    [[spoken]] = player.act([asked(round, FIRST)])
    assert spoken.text == "c"


def test_a_person_reads_the_conversation_and_writes_lines(capsys) -> None:
    lines = iter(["", "one", "two", "", "three"])
    [[spoken]] = HumanPlayer(lambda: next(lines)).act([asked(begin(), FIRST)])
    assert spoken.text == "one\ntwo"
    shown = capsys.readouterr().out
    assert "Where is the cat?" in shown
    assert "at most 300 words" in shown
    with pytest.raises(InputError, match="no best-of-n"):
        HumanPlayer().act([asked(begin(), FIRST)], 2)

    def ends() -> str:
        raise EOFError

    with pytest.raises(InputError, match="the input ended before Debater_A had spoken"):
        HumanPlayer(ends).act([asked(begin(), FIRST)])


def test_the_best_of_n_is_chosen_against_the_opponents_own_samples() -> None:
    """Shares of "l" against "l" and "lll": of "l" 1/2 and 1/4, of "ll" 2/3 and 2/5, of "" 0 and 0."""
    opponent, own = Listed(["l", "lll"]), Listed(["l", "ll", "x"])
    for reduce, score in (("mean", (2 / 3 + 2 / 5) / 2), ("min", 2 / 5)):
        player = BestOfNPlayer(own, LetterJudge("l"), n=3, opponent_n=2, reduce=reduce)
        [[spoken]] = player.act([asked(begin(), FIRST, opponent=opponent)])
        assert spoken.text == "ll"
        assert [c["text"] for c in spoken.notes["candidates"]] == ["l", "ll", "x"]
        assert spoken.notes["candidates"][1]["score"] == pytest.approx(score)
        assert spoken.notes["candidates"][2]["score"] == 0
        assert spoken.notes["opponent_samples"] == ("l", "lll")
    [requests, n] = opponent.requests[0]
    assert (n, [request.agent for request in requests]) == (2, [SECOND])
    # the opponent reads what it would read: not the speech that is being chosen
    assert requests[0].observation == begin().observations()[SECOND]


def test_the_second_side_maximises_its_own_probability_in_every_round() -> None:
    round = begin(debate(2))
    round.step({FIRST: "llll", SECOND: "x"})
    player = BestOfNPlayer(Listed(["l", "lll"]), LetterJudge("l"), n=2, opponent_n=0)
    [[spoken]] = player.act([asked(round, SECOND)])
    assert spoken.text == "lll"
    assert [c["score"] for c in spoken.notes["candidates"]] == pytest.approx([1 / 5, 3 / 7])


def test_an_opponent_who_speaks_next_replies_to_each_sample() -> None:
    seeds: list[int] = []

    class Doubling:
        """Says "l" twice as often as the last speech that it heard."""

        def act(self, requests, n=1):
            seeds.extend(request.seed for request in requests)
            return [[Action("l" * 2 * round_of(r).transcript.speeches[-1].text.count("l"))] * n for r in requests]

    player = BestOfNPlayer(Listed(["l", "lll"]), LetterJudge("l"), n=2, opponent_n=1)
    [[spoken]] = player.act([asked(begin(debate(1, simultaneous=False)), FIRST, 7, Doubling())])
    assert [c["score"] for c in spoken.notes["candidates"]] == pytest.approx([1 / 3, 1 / 3])
    assert set(spoken.notes["opponent_samples"]) == {"ll", "llllll"}
    assert seeds == [7 * 31 + 1, 7 * 31 + 2]


def test_the_opponent_of_a_best_of_n_debater_is_sampled_from_its_model() -> None:
    base = Listed(["l"])
    opponent = BestOfNPlayer(base, LetterJudge("l"), n=5)
    BestOfNPlayer(Listed(["x"]), LetterJudge("l"), n=1).act([asked(begin(), FIRST, opponent=opponent)])
    assert [n for _, n in base.requests] == [1]


def test_recorded_samples_are_chosen_anew_by_another_judge() -> None:
    round = begin()
    chooser = BestOfNPlayer(Listed(["ll", "xxx"]), LetterJudge("l"), n=2, opponent_n=0)
    [[spoken]] = chooser.act([asked(round, FIRST)])
    assert spoken.text == "ll"
    recorded = played("ll", "b")
    speeches = (replace(recorded.speeches[0], candidates=spoken.notes["candidates"]), *recorded.speeches[1:])
    recordings = RecordedPlayer([replace(recorded, speeches=speeches)])
    [[anew]] = BestOfNPlayer(recordings, LetterJudge("x"), n=2, opponent_n=0).act([asked(begin(), FIRST)])
    assert anew.text == "xxx"
    with pytest.raises(InputError, match=r"3 samples of a recorded speech .* it has 2"):
        BestOfNPlayer(recordings, LetterJudge("x"), n=3, opponent_n=0).act([asked(begin(), FIRST)])


def test_the_engines_generator_player_is_a_debater_too() -> None:
    player = BestOfNPlayer(GeneratorPlayer(ScriptedGenerator(["l"])), LetterJudge("l"), n=2)
    [[spoken]] = player.act([asked(begin(), FIRST)])
    assert spoken.text == "l"


def test_a_sample_that_failed_is_not_compared_but_raised() -> None:
    @dataclass
    class Fails:
        def act(self, requests, n=1):
            return [[Action("l"), *[Action("", error="no answer")] * (n - 1)] for _ in requests]

    for own, opponent in ((Fails(), None), (Listed(["l"]), Fails())):
        player = BestOfNPlayer(own, LetterJudge("l"), n=2, opponent_n=2)
        with pytest.raises(InputError, match="no answer"):
            player.act([asked(begin(), FIRST, opponent=opponent)])


@pytest.mark.parametrize("settings", [{"n": 0}, {"n": 2000}, {"opponent_n": -1}])
def test_numbers_of_samples_out_of_range_are_refused(settings: dict) -> None:
    with pytest.raises(InputError, match=f"{next(iter(settings))}="):
        BestOfNPlayer(Listed(["x"]), LetterJudge(), **settings)
