"""The task setups of a policy: prompts in every form, and scorers that reward or are only watched."""

import contextlib
import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from acting import TOKENIZER, FakeReward, Scripted
from rewarded import chats, rewards_of
from transformers import GenerationConfig

from lmgym.environments.episodes import Episode, Step
from lmgym.environments.protocol import SampleReward
from lmgym.environments.scored_chat import ScoredChat
from lmgym.environments.scorer_reward import ScorerReward
from lmgym.errors import InputError
from lmgym.generation.protocol import Completion, Sampling
from lmgym.runs.flags import override
from lmgym.scoring.named_scorers import read_weights
from lmgym.scoring.retries import RetryPolicy
from lmgym.scoring.scorers import FunctionScorer
from lmgym.text import Conversation, Turn
from ppo import rewards
from ppo.config import PPOConfig, RewardConfig, RolloutConfig
from ppo.evaluation import evaluate, gains, replies_to_show, show_replies
from ppo.experiments.hh_harmless import CONFIG as HARMLESS
from ppo.monitoring.metrics import rollout_sums
from ppo.rollouts import gather
from ppo.task_setups import (
    TaskSetup,
    chat_with_scorers,
    check_unused_settings,
    load_scorer_reward,
    random_walks,
    text_with_function,
)

INF = float("inf")
RETRIES = RetryPolicy(360.0)
HELLO = Conversation((Turn("user", "hello"),))
ASKED = Conversation((Turn("user", "hi"), Turn("bot", "yes?"), Turn("user", "hello")), "Ann is kind.")
LENGTH = FunctionScorer(lambda conversations, replies: [float(len(reply)) for reply in replies])
WORDS = FunctionScorer(lambda conversations, replies: [float(len(c.turns)) for c in conversations])


def write(path: Path, rows: list[dict]) -> RolloutConfig:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return RolloutConfig(prompts=str(path), eval_size=1)


def test_scorers_have_the_weights_that_are_given_and_1() -> None:
    assert read_weights(" b = -.5,", ["a", "b", "c"]) == ({"a": 1.0, "b": -0.5, "c": 1.0}, {})
    assert read_weights(None, ["a"]) == ({"a": 1.0}, {})
    assert read_weights("a=0:.5,b=2:2", ["a", "b"]) == ({"a": 0.5, "b": 2.0}, {"a": 0.0})


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ("a=much", "found 'much'; needed: name=NUMBER or name=FIRST:LAST"),
        ("a=0:1:0", "found '0:1:0'; needed: name=NUMBER"),
        ("a=0:nan", "found '0:nan'; needed: name=NUMBER"),
        ("z=1", "--weights names z; the scorers are a, b"),
    ],
)
def test_weights_of_nobody_and_that_are_no_numbers_are_refused(weights: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_weights(weights, ["a", "b"])


def test_scorers_that_reward_and_those_that_are_watched_are_kept_apart(scorer_folders: dict[str, Path]) -> None:
    own = f"a={scorer_folders['llama']},eval_scorer={scorer_folders['gpt2']}"
    settings = RewardConfig(
        None, own, "a=2", "world:0", monitor_scorers=f"b={scorer_folders['gpt2']}", cliprange_reward=3.0
    )
    reward_function, watched = load_scorer_reward(settings)
    assert isinstance(reward_function, ScorerReward)
    assert (set(reward_function.scorers), reward_function.weights, reward_function.clip) == (
        {"a", "eval_scorer"},
        {"a": 2.0, "eval_scorer": 1.0},
        3.0,
    )
    assert set(watched) == {"eval_scorer", "b"}  # a name may be a scorer's that rewards too
    assert load_scorer_reward(RewardConfig(scorers=f"a={scorer_folders['llama']}"))[1] == {}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, r"there is no reward; needed: --reward FILE.py:FUNCTION or --scorers \[name=\]PATH"),
        ({"reward": "a=x.py:f", "scorers": "a=world:0"}, "--reward and --scorers both name a; needed: distinct"),
        ({"scorers": "a="}, r"needed \[name=\]PATH"),
        ({"scorers": "a=EMPTY"}, "EMPTY"),
        ({"scorers": "a=world:0", "eval_scorer": "EMPTY"}, "EMPTY"),
        ({"scorers": "a=world:0", "eval_scorer": "world:me"}, "'world:me' names no world; needed: world:SEED"),
        (
            {"scorers": "a=world:0", "eval_scorer": "world:0", "monitor_scorers": "eval_scorer=world:1"},
            "--monitor_scorers eval_scorer=.* both name eval_scorer",
        ),
        ({"scorers": "a=world:0", "monitor_scorers": "b="}, r"--monitor_scorers 'b=': needed \[name=\]PATH"),
        ({"scorers": "a=world:0", "monitor_scorers": "b=X,b=Y"}, "--monitor_scorers names b twice"),
        ({"scorers": "a=world:0", "weights": "a=0"}, "not all 0"),
    ],
)
def test_scorers_that_cannot_be_had_are_refused(settings: dict[str, str], message: str, tmp_path: Path) -> None:
    (tmp_path / "EMPTY").mkdir()
    given = {name: value.replace("EMPTY", str(tmp_path / "EMPTY")) for name, value in settings.items()}
    with pytest.raises(InputError, match=message):
        load_scorer_reward(RewardConfig(**given))


class Stalling:
    """A scorer that is there, and never answers about one reply."""

    def score(self, conversations, replies):
        if "hm" in replies:
            time.sleep(3)
        return torch.ones(len(replies))


def test_a_scorer_that_stalls_has_the_time_that_the_settings_give_and_then_its_reply_is_masked(monkeypatch) -> None:
    monkeypatch.setattr(rewards, "load_scorers", lambda words, given: {"a": Stalling()})
    reward_function, _ = load_scorer_reward(RewardConfig(scorers="a=X", reward_timeout=0.5))
    found = reward_function.rewards(chats("yes", "hm", "no"))
    assert rewards_of(found) == [1.0, None, 1.0]
    assert found[1].error
    assert found[1].error.startswith("a: gave no answer within 0.5 s (--reward_timeout)")


def rewarded(samples, prompts, outputs, tokenizer) -> list[float]:
    return [1.0] * len(samples)


def test_scorers_may_watch_what_a_function_rewards(tmp_path: Path) -> None:
    rollout = write(tmp_path / "a.jsonl", [{"prompt": word} for word in "abc"])
    config = PPOConfig("x", rollout=rollout, reward=RewardConfig(eval_scorer="world:0", monitor_scorers="b=world:1"))
    setup = text_with_function(rewarded, as_text=False)(config, TOKENIZER)
    metrics = evaluate(setup, Scripted(), TOKENIZER, Sampling(8), config.rollout, RETRIES).metrics  # type: ignore[arg-type]
    assert {"eval/eval_scorer", "eval/eval_scorer_error", "eval/monitor/b"} <= metrics.keys()
    assert metrics["eval/reward/mean"] == 1.0


def test_several_functions_are_weighted_by_the_setting(tmp_path: Path) -> None:
    def lengths(outputs, **columns) -> list[float]:
        return [float(len(text)) for text in outputs]

    prepare = text_with_function({"one": rewarded, "length": lengths})
    rollout = write(tmp_path / "a.jsonl", [{"prompt": word} for word in "abc"])
    for weights, reward in ((None, 3.0), ("length=-.5", 0.0), ("one=2,length=0", 2.0)):
        config = PPOConfig("x", rollout=rollout, reward=RewardConfig(weights=weights))
        setup = prepare(config, TOKENIZER)
        check_unused_settings(config.reward, setup)
        assert setup.reward_function is not None
        [found] = setup.reward_function.rewards(chats("hm"))
        assert (found.reward, dict(found.scores)) == (reward, {"one": 1.0, "length": 2.0})
    for weights, message in (("other=1", "names other; "), ("one=0,length=0", "not all 0")):
        with pytest.raises(InputError, match=message):
            prepare(PPOConfig("x", rollout=rollout, reward=RewardConfig(weights=weights)), TOKENIZER)
    with pytest.raises(InputError, match="--scorers a=X would not be used: a Python function"):
        prepare(PPOConfig("x", rollout=rollout, reward=RewardConfig(scorers="a=X")), TOKENIZER)


@pytest.mark.parametrize(
    ("prepare", "reward", "message"),
    [
        (
            text_with_function(rewarded),
            {"eval_scorer": "world:0"},
            "a prompt is the text .*; needed: conversations.*as_text=False",
        ),
        (text_with_function(rewarded), {"monitor_scorers": "b=X"}, "name b=X, and a prompt is the text"),
        (text_with_function(rewarded), {"scorers": "a=X"}, "--scorers a=X would not be used: a Python function"),
        (text_with_function(rewarded), {"weights": "a=1"}, "--weights a=1 would not be used"),
        (
            random_walks,
            {"scorers": "a=X", "eval_scorer": "Y"},
            "--scorers a=X --eval_scorer Y would not .*; leave them out",
        ),
        (random_walks, {"eval_scorer": "X"}, "walks are rewarded for being short"),
    ],
)
def test_scorers_that_would_not_be_used_are_refused(prepare, reward, message: str, tmp_path: Path) -> None:
    rollout = write(tmp_path / "a.jsonl", [{"prompt": "a"}, {"prompt": "b"}])
    with pytest.raises(InputError, match=message):
        prepare(PPOConfig("x", rollout=rollout, reward=RewardConfig(**reward)), TOKENIZER)


@pytest.mark.parametrize(
    ("reward", "setup", "message"),
    [
        (
            {"scorers": "a=X", "weights": "a=1"},
            {},
            r"--scorers a=X --weights a=1 would not .*has no ScorerReward.*out$",
        ),
        (
            {"eval_scorer": "X"},
            {},
            r"--eval_scorer X would not be used: the task setup has no ScorerReward .*load_monitors.*leave it out",
        ),
        (
            {"eval_scorer": "X", "monitor_scorers": "b=Y"},
            {"monitors": {"eval_scorer": Stalling()}},
            "^--monitor_scorers b=Y would not",
        ),
        (
            {"eval_scorer": "X", "monitor_scorers": "b=Y"},
            {"monitors": {"b": Stalling()}},
            "^--eval_scorer X would not",
        ),
        (
            {"scorers": "a=X"},
            {"uses_settings": frozenset({"weights", "eval_scorer", "monitor_scorers"})},
            "--scorers a=X would not",
        ),
        ({"scorers": "a=X", "weights": "a=1"}, {"uses_settings": frozenset({"scorers", "weights"})}, ""),
        (
            {"eval_scorer": "X", "monitor_scorers": "b=Y"},
            {"monitors": {"eval_scorer": Stalling(), "b": Stalling()}},
            "",
        ),
        ({"eval_scorer": "X"}, {"uses_settings": frozenset({"eval_scorer"})}, ""),
    ],
)
def test_a_custom_task_setup_without_scorers_refuses_scorer_settings(reward, setup, message: str) -> None:
    made = TaskSetup([], [], ScoredChat, FakeReward(), "", **setup)
    with pytest.raises(InputError, match=message) if message else contextlib.nullcontext():
        check_unused_settings(RewardConfig(**reward), made)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"tasks": [1]}, r"tasks=...\) has 1 in place 0; needed: a list of rows"),
        ({"tasks": "hello"}, r"tasks=...\) is 'hello'; needed"),
        ({"eval_tasks": [{}, {3: "x"}]}, r"eval_tasks=...\) has an object with 1 field in place 1"),
        ({"tasks": None}, r"tasks=...\) is None"),
        ({"environment": ["a"]}, r"environment=...\) is a list of 1 item; needed: a function or class"),
        ({"reward_function": lambda **_: 1.0}, r"reward_function=...\) is .*FunctionReward\(function, tokenizer\)"),
        ({"fingerprint": 3}, r"fingerprint=...\) is 3"),
        ({"monitors": [LENGTH]}, r"monitors=...\) is a list"),
        ({"monitors": {"a": len}}, r"monitors=...\) is an object with 1 field; needed: scorers by name"),
        ({"trained_agents": "2"}, r"trained_agents=...\) is '2'; needed: a number"),
    ],
)
def test_a_setup_of_wrong_types_is_refused_where_it_is_made(fields: dict, message: str) -> None:
    usual = {"tasks": [], "eval_tasks": [], "environment": ScoredChat, "reward_function": None, "fingerprint": ""}
    with pytest.raises(InputError, match=message):
        TaskSetup(**usual | fields)


def test_tasks_of_a_generator_are_read_once() -> None:
    setup = TaskSetup(({"prompt": word} for word in "ab"), [], ScoredChat, None, "")  # type: ignore[arg-type]
    assert [*setup.tasks, *setup.tasks] == 2 * [{"prompt": "a"}, {"prompt": "b"}]


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        (lambda: None, r"makes None, without reset and step; needed"),
        (lambda: SimpleNamespace(step=0, reset=lambda task, seed: ["a"]), "without step"),
        (lambda: SimpleNamespace(step=len, reset=lambda task, seed: ["a"]), "^reset of SimpleNamespace: .*needed"),
        (lambda: SimpleNamespace(step=len, reset=lambda task, seed: sys.exit(0)), r"reset calls exit\(0\)"),
    ],
)
def test_an_environment_that_is_none_is_refused_at_its_first_use(environment, message: str) -> None:
    with pytest.raises(InputError, match=message):
        TaskSetup([{}], [], environment, None, "").first_observations({})


def test_a_gym_of_scorers_has_prompts_and_counts_what_it_rejected(tmp_path: Path) -> None:
    rollout = write(tmp_path / "a.jsonl", [{"prompt": word} for word in "abca"])
    setup = chat_with_scorers(PPOConfig("x", rollout=rollout, reward=RewardConfig("a=world:0")), TOKENIZER)
    assert setup.counts == {
        "train_tasks": 2,
        "eval_tasks": 1,
        "rejected_rows": 0,
        "not_needed_by_reason": {"duplicate prompt": 1},
    }
    other = chat_with_scorers(
        PPOConfig(
            "x", rollout=write(tmp_path / "b.jsonl", [{"prompt": w} for w in "abd"]), reward=RewardConfig("a=world:0")
        ),
        TOKENIZER,
    )
    assert setup.fingerprint != other.fingerprint


def test_long_prompts_are_cut_and_counted_or_refused() -> None:
    long = Conversation((Turn("user", "one two three four five six seven " * 20),))
    setup = TaskSetup([], [{"prompt": long}, {"prompt": HELLO}], ScoredChat, FakeReward(), "")
    config = PPOConfig("x", rollout=RolloutConfig(max_new_tokens=8))
    found = evaluate(setup, Scripted(max_length=40), TOKENIZER, Sampling(8), config.rollout, RETRIES)  # type: ignore[arg-type]
    assert found.metrics["eval/rollout/cut_prompts"] == 0.5
    refusing = replace(config, rollout=replace(config.rollout, long_prompts="refuse"))
    with pytest.raises(InputError, match="'policy' has more than 32 tokens; needed"):
        evaluate(setup, Scripted(max_length=40), TOKENIZER, Sampling(8), refusing.rollout, RETRIES)  # type: ignore[arg-type]


def test_watched_scorers_have_mean_error_and_gain_each() -> None:
    setup = TaskSetup(
        [],
        [{"prompt": HELLO}, {"prompt": ASKED}],
        ScoredChat,
        FakeReward(),
        "",
        monitors={"eval_scorer": WORDS, "b": LENGTH},
    )
    found = evaluate(setup, Scripted(), TOKENIZER, Sampling(8), PPOConfig("x").rollout, RETRIES)  # type: ignore[arg-type]
    metrics = found.metrics
    assert (metrics["eval/eval_scorer"], metrics["eval/eval_scorer_std"]) == (2.0, 1.0)  # of 1 turn and 3
    assert metrics["eval/eval_scorer_error"] == pytest.approx(1 / 2**0.5)
    assert (metrics["eval/monitor/b"], metrics["eval/monitor/b_std"]) == (4.0, 0.0)
    assert [row["monitors"] for row in found.rows] == [
        {"eval_scorer": 1.0, "b": 4.0},
        {"eval_scorer": 3.0, "b": 4.0},
    ]
    before = {"eval/eval_scorer": 1.5, "eval/eval_scorer_std": 2.0, "eval/monitor/b": 3.0, "eval/monitor/b_std": 0.0}
    assert gains(metrics, before, setup.monitors) == {
        "eval/eval_scorer_gain": 0.25
    }  # without a spread there is no unit


class Told(Scripted):
    """A model whose generation config says how it is sampled; it answers with the settings that it is given."""

    def __init__(self, **settings) -> None:
        self.generation_config = GenerationConfig(**settings)

    def generate(self, prompts, n, sampling, progress=None):
        return [[Completion(str(sampling), "eos", (5,), (-1.0,), 1)] * n for _ in prompts]


def test_people_are_shown_replies_drawn_as_the_models_users_will_draw_them() -> None:
    tasks = [{"prompt": HELLO} for _ in range(6)]
    setup = TaskSetup([], tasks, ScoredChat, FakeReward(), "", monitors={"b": LENGTH})
    config, rollouts = PPOConfig("x"), Sampling(8, temperature=1.0)
    told = Told(do_sample=True, temperature=0.6, top_p=0.95)
    rows, drawn = replies_to_show(setup, told, TOKENIZER, rollouts, config.rollout, RETRIES, [])  # type: ignore[arg-type]
    assert drawn == "temperature 0.6, top_p 0.95 (generation_config.json)"
    assert [row["reply"] for row in rows] == ["temperature 0.6, top_p 0.95"] * 4
    assert all(row["reward"] is not None and "b" in row["monitors"] for row in rows)
    silent, measured = Told(), [{"reply": "as measured"}]
    assert replies_to_show(setup, silent, TOKENIZER, rollouts, config.rollout, RETRIES, measured) == (  # type: ignore[arg-type]
        measured, "temperature 1, as in rollouts",
    )  # fmt: skip


class Fails:
    """A scorer and a metric that raise so often, and always for a reply to more than one turn of talk if `picky`."""

    def __init__(self, times: float = 0, picky: bool = False) -> None:
        self.times, self.picky = times, picky

    def score(self, conversations, replies):
        self.times -= 1
        if self.times >= 0 or (self.picky and any(len(c.turns) > 1 for c in conversations)):
            raise OSError("the server [/b] is away")
        return torch.tensor([2.0] * len(replies))

    def __call__(self, **given):
        return {"two": self.score([], given["outputs"]).tolist()}


def test_what_is_watched_is_asked_again_and_then_left_out_with_a_line_that_says_so(capsys) -> None:
    tasks, config = [{"prompt": HELLO}, {"prompt": ASKED}], PPOConfig("x")
    watched = {"eval_scorer": Fails(1), "b": Fails(INF), "c": Fails(picky=True)}
    setup = TaskSetup([], tasks, ScoredChat, FakeReward(), "", Fails(1), watched)
    found = evaluate(setup, Scripted(), TOKENIZER, Sampling(8), config.rollout, RETRIES)  # type: ignore[arg-type]
    assert (found.metrics["eval/eval_scorer"], found.metrics["eval/monitor/c"]) == (2.0, 2.0)
    assert found.metrics["metrics/two"] == 2.0  # trlx's name
    assert not [name for name in found.metrics if name.startswith("eval/monitor/b")]
    assert [row["monitors"] for row in found.rows] == [{"eval_scorer": 2.0, "c": 2.0}, {"eval_scorer": 2.0}]
    show_replies(found.rows, 1280, "temperature 0.7, as in rollouts")
    title = "replies to held-out prompts after 1,280 updates: temperature 0.7, as in rollouts"
    assert title in " ".join(capsys.readouterr().out.split())
    why = "raised OSError: the server [/b] is away (test_task_setups.py:"
    assert [note.partition(why)[:2] for note in found.notes] == [
        ("the evaluation lacks 2 of 2 scores of b: ", why),
        ("the evaluation lacks 1 of 2 scores of c: ", why),
    ]
    before = {"eval/eval_scorer": 1.0, "eval/eval_scorer_std": 2.0, "eval/monitor/b": 3.0, "eval/monitor/b_std": 1.0}
    assert gains(found.metrics, before, watched) == {"eval/eval_scorer_gain": 0.5}
    reward_function, metric = FakeReward(lambda sample: SampleReward(None, error="no answer")), Fails(INF)
    found = evaluate(
        replace(setup, monitors={}, reward_function=reward_function, metric=metric),
        Scripted(),
        TOKENIZER,
        Sampling(8),
        config.rollout,
        RETRIES,
    )  # type: ignore[arg-type]
    assert "eval/reward/mean" not in found.metrics
    assert not [name for name in found.metrics if "metrics/" in name]
    assert found.notes[0] == "the evaluation lacks 2 of 2 rewards: no answer"
    assert found.notes[1].startswith(f"the evaluation lacks 1 of 1 answers of the metric: {why}")


def turn(ids: list[int], logprobs: list[float], reward: float, reason: str = "eos") -> Step:
    completion = Completion("a", reason, tuple(ids), tuple(logprobs), len(ids))  # type: ignore[arg-type]
    return Step([5], "p", completion, reward)


def test_rewards_are_cut_then_fined_then_scaled_and_the_kl_is_that_of_a_reply() -> None:
    steps = [turn([6, 1], [-1.0, -2.0], 9.0), turn([7, 8, 9], [-1.0, -1.0, -1.0], 1.0, "length")]
    episodes = [
        Episode(0, "policy", steps, True, False, None, {}),
        Episode(1, "policy", [turn([1], [-3.0], -2.0)], True, False, None, {}),
    ]
    config = PPOConfig("x", reward=RewardConfig(missing_eos_penalty=0.5, cliprange_reward=4.0, scale=0.1))
    rollouts = gather(episodes, config.reward)
    torch.testing.assert_close(rollouts.scores, torch.tensor([0, 0.4, 0, 0, 0.05, -0.2]))
    zeros = torch.zeros(6)
    rollouts.old_logprobs, rollouts.reference_logprobs = rollouts.sampler_logprobs, rollouts.sampler_logprobs - 0.25
    rollouts.values = rollouts.returns = zeros
    sums = rollout_sums(rollouts, zeros, 0.1)
    assert sums["kl/reference"] == (1.5, 3.0)  # six tokens, .25 each, in three replies of two episodes
    assert sums["reward/kl_penalty"] == pytest.approx((0.15, 2.0))


@pytest.mark.parametrize(
    ("words", "updates"), [("--epochs 2", -1), ("--epochs 2 --max_updates 64", 64), ("", 1600), ("--seed 1", 1600)]
)
def test_passes_over_the_prompts_take_the_place_of_the_experiments_updates(words: str, updates: int) -> None:
    assert override(HARMLESS, words.split()).optimizer.max_updates == updates


@pytest.mark.parametrize(
    ("words", "batches"),
    [
        (["--num_rollouts", "32"], (32, 8)),
        (["--num_rollouts", "48"], (48, 8)),
        (["--num_rollouts", "20"], (20, 5)),
        (["--num_rollouts", "128"], (64, 8)),
        (["--num_rollouts", "30", "--micro_batch", "6"], (30, 6)),
        (["--num_rollouts", "32", "--global_batch", "64"], (64, 8)),
        ([], (64, 8)),
    ],
)
def test_a_batch_of_the_experiment_fits_into_fewer_rollouts(words: list[str], batches: tuple[int, int]) -> None:
    optimizer = override(HARMLESS, words).optimizer
    assert (optimizer.global_batch, optimizer.micro_batch) == batches
