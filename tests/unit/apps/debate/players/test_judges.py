"""Judges: counts, scorers in one or both orders, names in one forward pass, probes, servers, and rewards."""

import math

import numpy as np
import pytest
import torch
from acting import TOKENIZER, Scripted

from lmgym.apps.debate.debate import Debate
from lmgym.apps.debate.formats import DEBATERS, FIRST, JUDGE, SECOND, debate, interactive_debate
from lmgym.apps.debate.players import models
from lmgym.apps.debate.players.judges import (
    JudgePlayer,
    JudgeReward,
    LetterJudge,
    RandomJudge,
    ScorerJudge,
    won,
)
from lmgym.apps.debate.players.models import model_judge, model_player
from lmgym.apps.debate.players.name_judge import NameJudge
from lmgym.apps.debate.players.probe import LinearProbe
from lmgym.apps.debate.players.protocol import request_for
from lmgym.apps.debate.players.scripted import ScriptedPlayer, say_letters
from lmgym.apps.debate.players.served_judge import ServedNameJudge, p_first_of
from lmgym.apps.debate.prompts.debate import PROMPTS
from lmgym.apps.debate.transcript import Transcript
from lmgym.environments.one_side import OPPONENT, SIDE, OneSide
from lmgym.environments.protocol import Sample, ScoreRequest
from lmgym.environments.rollout_engine import run_episodes
from lmgym.errors import InputError, TooLong
from lmgym.generation.openai_server import ServedGenerator
from lmgym.generation.protocol import Completion, LikelyTokens, Sampling, ScriptedGenerator
from lmgym.scoring.scorers import FunctionScorer
from lmgym.text import Conversation, Turn, render, tokenize_texts

TASK = {"question": "Where?", "options": ["mat", "hat"], "correct": 0, "flipped": False}


def spoken(first: str, second: str, **task) -> Transcript:
    round = Debate(debate(1), PROMPTS)
    round.reset(TASK | task, 0)
    round.step({FIRST: first, SECOND: second})
    return round.transcript


def test_the_letter_judge_gives_each_side_its_share_of_the_letter() -> None:
    rounds = [spoken("lull L", "all l"), spoken("xyz", "bcd"), spoken("l", "x")]
    assert LetterJudge("l").p_first(rounds) == [4 / 7, 0.5, 1.0]
    with pytest.raises(InputError, match="needed: one character"):
        LetterJudge("ll")


def test_a_random_judge_judges_a_round_the_same_each_time() -> None:
    rounds = [spoken("a", "b"), spoken("a", "b")]
    first, second = RandomJudge(1).p_first(rounds)
    assert first == second
    assert [first] != RandomJudge(2).p_first(rounds[:1])
    assert [first] != RandomJudge(1).p_first([spoken("a", "c")])


def test_judges_without_a_model_have_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "_load", None)  # no model is loaded
    assert model_judge("random", PROMPTS) == RandomJudge()
    assert model_judge("letter:q", PROMPTS) == LetterJudge("q")
    with pytest.raises(InputError, match="needed: one character"):
        model_judge("letter:", PROMPTS)
    assert model_player("random") == ScriptedPlayer(say_letters)


def mentions(conversations, names) -> list[float]:
    """Likes the debater whose answer is the mat, and Debater_A besides."""
    text = [c.turns[-1].text for c in conversations]
    return [
        (3.0 if f"{name} argues for this answer: mat" in t else 1.0) + (name == FIRST)
        for t, name in zip(text, names, strict=True)
    ]


def test_a_scorer_judges_by_its_scores_of_both_names() -> None:
    plain, flipped = spoken("a", "b"), spoken("a", "b", flipped=True)
    judge = ScorerJudge(FunctionScorer(mentions), PROMPTS)
    assert judge.p_first([plain, flipped]) == pytest.approx([4 / 5, 2 / 5])
    nothing = ScorerJudge(FunctionScorer(lambda conversations, names: [0.0] * len(names)), PROMPTS)
    assert nothing.p_first([plain]) == [0.5]
    logits = ScorerJudge(
        FunctionScorer(lambda c, names: [math.log(3) * (n == FIRST) - 9 for n in names]), PROMPTS, logits=True
    )
    assert logits.p_first([plain]) == pytest.approx([0.75], abs=1e-6)
    with pytest.raises(InputError, match="is no probability"):
        ScorerJudge(logits.scorer, PROMPTS).p_first([plain])


def test_in_both_orders_a_preference_for_a_name_cancels() -> None:
    judge = ScorerJudge(FunctionScorer(mentions), PROMPTS, both_orders=True)
    # with the names exchanged P is 2/5 and 4/5: (4/5 + 1 - 2/5) / 2
    assert judge.p_first([spoken("a", "b"), spoken("a", "b", flipped=True)]) == pytest.approx([0.7, 0.3])


def test_a_mirrored_round_has_every_name_exchanged() -> None:
    mirrored = spoken("as Debater_B knows", "no, Debater_A").mirrored()
    assert [(s.speaker, s.text) for s in mirrored.speeches] == [
        (FIRST, "no, Debater_B"),
        (SECOND, "as Debater_A knows"),
    ]
    assert mirrored.positions == {FIRST: "hat", SECOND: "mat"}
    assert mirrored.correct == SECOND
    assert mirrored.mirrored() == spoken("as Debater_B knows", "no, Debater_A")


def test_a_judge_of_probabilities_writes_verdicts_and_nothing_else() -> None:
    round = Debate(interactive_debate(2), PROMPTS)
    round.reset(TASK, 0)
    round.step({FIRST: "l", SECOND: "lll"})
    request = request_for(round, JUDGE, 0)
    with pytest.raises(InputError, match="a question is asked of a LetterJudge"):
        JudgePlayer(LetterJudge()).act([request])
    last = Debate(debate(1), PROMPTS)
    last.reset(TASK, 0)
    last.step({FIRST: "l", SECOND: "lll"})
    [[said]] = JudgePlayer(LetterJudge()).act([request_for(last, JUDGE, 0)])
    assert said.text == "Debater_B | 75.0%"


def test_a_judge_rewards_both_sides_of_rounds_that_the_engine_plays() -> None:
    rounds = [Debate(debate(1), PROMPTS, verdict="scorer", baselines=(0.67, 0.33)) for _ in range(2)]
    policy = Scripted(lambda text, seed: "l", max_length=4096)
    tasks = [TASK, TASK | {"flipped": True}]
    episodes = run_episodes(
        rounds, tasks, [1, 2], policy, TOKENIZER, Sampling(max_new_tokens=8), JudgeReward(LetterJudge())
    )
    assert [(e.agent, e.total_reward) for e in episodes] == [
        (FIRST, pytest.approx(0.5 - 0.67)), (SECOND, pytest.approx(0.5 - 0.33)),
        (FIRST, pytest.approx(0.5 - 0.33)), (SECOND, pytest.approx(0.5 - 0.67)),
    ]  # fmt: skip


def test_of_one_side_against_an_opponent_the_policy_has_the_reward_of_its_side() -> None:
    made = Debate(debate(1), PROMPTS, verdict="scorer", baselines=(0.67, 0.33))
    players = {OPPONENT: ScriptedGenerator(lambda conversation, seed: "lll")}
    for side, p_win, baseline in ((FIRST, 0.25, 0.67), (SECOND, 0.25, 0.33)):
        [episode] = run_episodes(
            [OneSide(made, DEBATERS)], [TASK | {SIDE: side}], [1], Scripted(lambda text, seed: "l", max_length=4096),
            TOKENIZER, Sampling(max_new_tokens=8), JudgeReward(LetterJudge()), players,
        )  # fmt: skip
        assert episode.agent == "policy"
        assert episode.total_reward == pytest.approx(p_win - baseline)
        assert episode.steps[-1].scores == {"p_win": p_win, "won": 0.0}
        assert {"won", "lost"}.isdisjoint(episode.info)


def test_a_round_is_won_above_one_half_and_half_won_at_it() -> None:
    assert [won(p) for p in (0.0, 0.49, 0.5, 0.51, 1.0)] == [0.0, 0.0, 0.5, 1.0, 1.0]


def test_a_judge_rewards_nothing_but_debates() -> None:
    with pytest.raises(InputError, match=r"a request for policy has no transcript; needed: those of Debate"):
        JudgeReward(LetterJudge()).rewards(
            [Sample(ScoreRequest("policy", "hi", "there"), "hi", Completion("there", "eos", ()))]
        )


@pytest.fixture(scope="module")
def judge(small_models) -> NameJudge:
    return NameJudge.load(str(small_models["llama"]), on_long="cut")


ASKED = [Conversation((Turn("user", text),)) for text in ("hello", "who is right, in the end?", "hello there")]


def test_p_of_a_name_is_that_of_the_models_own_logits_where_the_names_part(judge: NameJudge) -> None:
    scores = judge.score([ASKED[0], ASKED[1], ASKED[0]], [FIRST, SECOND, SECOND])
    assert scores.dtype == torch.float32
    for conversation, expected in zip(ASKED[:2], (scores[0], 1 - scores[1]), strict=True):
        first, second = (
            tokenize_texts(judge.tokenizer, [render(judge.tokenizer, conversation, name)])[0] for name in DEBATERS
        )
        place = next(i for i, (a, b) in enumerate(zip(first, second, strict=True)) if a != b)
        with torch.no_grad():
            logits = judge.model(torch.tensor([first[:place]])).logits[0, -1]
        assert logits[[first[place], second[place]]].softmax(0)[0].item() == pytest.approx(expected.item(), abs=1e-5)
    assert (scores[0] + scores[2]).item() == pytest.approx(1)


def test_a_name_is_judged_alike_alone_and_in_a_batch(judge: NameJudge) -> None:
    together = judge.p_first(ASKED)
    alone = torch.cat([judge.p_first([conversation]) for conversation in ASKED])
    assert together.tolist() == pytest.approx(alone.tolist(), abs=1e-5)


def test_a_text_that_is_too_long_is_refused_or_cut(judge: NameJudge) -> None:
    long = Conversation((Turn("user", "hello there " * 400),))
    assert 0 < judge.p_first([long]).item() < 1
    with pytest.raises(TooLong, match="longer than its context of 256 tokens"):
        NameJudge(judge.model, judge.tokenizer).p_first([long])


def test_names_that_a_tokenizer_splits_alike_are_refused(judge: NameJudge) -> None:
    with pytest.raises(InputError, match="splits Debater and Debater alike"):
        NameJudge(judge.model, judge.tokenizer, names=("Debater", "Debater"))
    with pytest.raises(InputError, match="needed: Debater_A or Debater_B"):
        judge.score(ASKED[:1], ["Debater_C"])


def test_a_probe_learns_is_saved_and_scores_like_any_scorer(small_models, tmp_path) -> None:
    read = [Conversation((Turn("user", f"{i} {'thanks' if i % 2 else 'hello'}"),)) for i in range(40)]
    labels = [bool(i % 2) for i in range(40)]
    probe = LinearProbe.train(str(small_models["qwen3"]), 1, read[:30], labels[:30])
    p = probe.score(read, [FIRST] * 40)
    assert ((p > 0.5).numpy() == np.array(labels))[30:].mean() > 0.8
    probe.save(tmp_path / "probe")
    again = LinearProbe.load(tmp_path / "probe")
    assert again.score(read, [SECOND] * 40).tolist() == pytest.approx((1 - p).tolist(), abs=1e-6)
    with pytest.raises(InputError, match=r"layer=9 .*needed: 1 to"):
        LinearProbe.train(str(small_models["qwen3"]), 9, read, labels)
    with pytest.raises(InputError, match="rounds of both kinds"):
        LinearProbe.train(str(small_models["qwen3"]), 1, read, [True] * 40)
    with pytest.raises(InputError, match="no probe loads"):
        LinearProbe.load(tmp_path)
    with pytest.raises(TooLong, match="longer than its context"):
        again.score([Conversation((Turn("user", "hello there " * 400),))], [FIRST])


def place(token: str, **logprobs: float) -> LikelyTokens:
    return LikelyTokens(token, {name.replace("_S_", " "): math.log(p) for name, p in logprobs.items()})


def test_a_servers_verdict_is_at_the_first_token_that_tells_the_names_apart() -> None:
    assert p_first_of(
        [place("Deb", Deb=0.9), place("ater_", ater_=1.0), place("B", A=0.3, B=0.6, C=0.1)]
    ) == pytest.approx(1 / 3)
    assert p_first_of([place("Debater_A", Debater_A=0.4, Debater_B=0.1)]) == pytest.approx(0.8)
    assert p_first_of([place("I", I=1.0), place(" say", _S_say=1.0), place(" Debater_B", _S_Debater_B=0.5)]) == 0.0
    assert p_first_of([place("neither", neither=1.0)]) == 0.5
    assert p_first_of([]) == 0.5


def test_a_served_judge_asks_for_log_probabilities_and_refuses_a_server_without_them(serve) -> None:
    server = serve("names_a_debater")
    judge = ServedNameJudge(ServedGenerator(server.url, "tiny", top_logprobs=5))
    assert judge.score([ASKED[0], ASKED[0]], [FIRST, SECOND]).tolist() == pytest.approx([0.75, 0.25])
    [request] = server.requests
    assert (request["body"]["logprobs"], request["body"]["top_logprobs"]) == (True, 5)
    with pytest.raises(InputError, match="gives no log-probabilities, which a judge needs"):
        ServedNameJudge(ServedGenerator(serve("good").url, "tiny", top_logprobs=5)).score(ASKED[:1], [FIRST])
    with pytest.raises(InputError, match="top_logprobs=0; needed: 1 to 20"):
        ServedNameJudge(ServedGenerator(server.url, "tiny"))
    completions = ServedGenerator(server.url, "tiny", api="completions", top_logprobs=5).reply(ASKED[:1], 1, Sampling())
    assert p_first_of(completions[0][0].likely) == pytest.approx(0.75)
    assert server.requests[-1]["body"]["logprobs"] == 5
