"""Rounds of iterative DPO: pairs out of scored replies, exact tokens, and what is never sampled twice."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from lmgym.config import ModelConfig, OptimizerConfig, RunConfig, TrainerConfig
from lmgym.errors import InputError
from lmgym.generation.protocol import Completion, Sampling
from lmgym.models.forward.policies import PolicyModel, load_policy
from lmgym.models.loading import load_tokenizer
from lmgym.scoring.scorers import FunctionScorer
from lmgym.text import Conversation, Replies, Turn
from preferences.config import LossConfig
from preferences.iterative.config import IterativeConfig, JudgeConfig, PromptConfig, RoundConfig
from preferences.iterative.probe import RoundProbe
from preferences.iterative.replies import Answerer, Answers, Judge, append_answers, read_answers
from preferences.iterative.rounds import Rounds
from preferences.iterative.train import train
from preferences.objectives import ReplyModel
from preferences.probes import Forwards

LENGTH = FunctionScorer(lambda conversations, replies: [float(len(reply)) for reply in replies])


def prompt(text: str) -> dict:
    return {"prompt": Conversation((Turn("user", text),))}


class Run:
    """As much of a run as rounds need."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.is_main, self.write_error = folder, True, ""

    def writing(self, name: str):
        import contextlib

        return contextlib.nullcontext()

    def write_json(self, name: str, content) -> None:
        (self.folder / name).write_text(json.dumps(content))


class Counting:
    """A generator whose replies to a prompt are as long as its seed says."""

    generation_batch_size = 4

    def __init__(self, tokenizer) -> None:
        self.tokenizer, self.model, self.asked = tokenizer, torch.nn.Linear(1, 1), 0

    def renew(self) -> None:
        pass

    def generate(self, prompts, n, sampling):
        self.asked += len(prompts)
        return [
            [
                Completion("x" * (1 + (seed + k) % 3), "eos" if k else "length", tuple(range(5, 7 + (seed + k) % 3)))
                for k in range(n)
            ]
            for seed in sampling.seed
        ]


@pytest.fixture
def answerer(tokenizers) -> Answerer:
    return Answerer(
        Counting(tokenizers["llama"]), Judge({"length": LENGTH}, {}, {}, missing_eos_penalty=0.5), Sampling(8), 100
    )


def test_the_penalty_of_an_open_end_and_weights_enter_the_total_and_a_monitor_does_not() -> None:
    judge = Judge({"a": LENGTH, "b": LENGTH}, {"b": 2.0}, {"m": LENGTH}, missing_eos_penalty=0.5)
    replies = [[Completion("xx", "eos", (1,)), Completion("xxx", "length", (1,))]]
    [(scores, totals)] = judge.judge([prompt("hi")], replies, with_monitor=True)
    assert scores == {"a": [2.0, 3.0], "b": [2.0, 3.0], "m": [2.0, 3.0]}
    assert totals == [2 + 2 * 2, 3 + 2 * 3 - 0.5]
    [(scores, _)] = judge.judge([prompt("hi")], replies, with_monitor=False)
    assert set(scores) == {"a", "b"}


def test_a_scorer_that_gives_nan_is_named() -> None:
    broken = FunctionScorer(lambda conversations, replies: [float("nan")])
    judge = Judge({"broken": broken}, {}, {}, 0.0)
    with pytest.raises(InputError, match=r"scorer broken: .*nan"):
        judge.judge([prompt("hi")], [[Completion("x", "eos", (1,))]], with_monitor=False)


def test_replies_on_disk_are_not_sampled_again_and_a_cut_line_is(answerer: Answerer, tmp_path: Path) -> None:
    tasks, file, run = [prompt(f"tea {i}") for i in range(6)], tmp_path / "rounds/0000/replies.jsonl", Run(tmp_path)
    whole = answerer.answer(tasks, range(6), 2, 7, file, run)
    assert answerer.generator.asked == 6
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(lines[:4]) + lines[4][:20])  # killed while it wrote the fifth
    again = answerer.answer(tasks, range(6), 2, 7, file, run)
    assert answerer.generator.asked == 6 + 2
    assert again == whole
    assert file.read_text().splitlines(keepends=True) == lines


def test_replies_keep_their_sampled_tokens_with_or_without_an_eos(small_models, tmp_path: Path) -> None:
    tokenizer = load_tokenizer(str(small_models["llama"]))
    policy = PolicyModel(load_policy(str(small_models["llama"]), tokenizer)).eval()
    eos = tokenizer.eos_token_id
    answers = Answers(0, "", [3, 4, 5], [[6, 7, eos], [8, 9]], ["", ""], ["eos", "length"], {}, [0.0, 1.0])
    rows = answers.rows((1, 0))
    assert rows == Replies([3, 4], [[5, 8], [5, 6, 7]], ends=(9, eos))
    sums = Forwards([rows], ReplyModel(policy, eos), 1000).sums(policy, torch.device("cpu"))
    for ids, found in (([8, 9], sums[0]), ([6, 7, eos], sums[1])):
        logits = policy.model(torch.tensor([[3, 4, 5, *ids]])).logits[0].log_softmax(-1)
        wanted = sum(logits[2 + place, token] for place, token in enumerate(ids))
        assert found.item() == pytest.approx(wanted.item(), abs=1e-4)


def rounds_of(answerer: Answerer, tmp_path: Path, loss: str = "dpo", reference=None, **changes) -> Rounds:
    config = IterativeConfig(
        "r", loss=LossConfig(loss), optimizer=OptimizerConfig(global_batch=2, micro_batch=1),
        rounds=RoundConfig(prompts_per_round=6, num_generations=2, **changes),
    )  # fmt: skip
    prompts = SimpleNamespace(train=[prompt(f"tea {i}") for i in range(9)], evaluation=[prompt("cake")])
    plan = SimpleNamespace(training=SimpleNamespace(config=config), prompts=prompts)
    return Rounds(plan, answerer, reference, Run(tmp_path))  # type: ignore[arg-type]


def test_the_best_and_the_worst_reply_are_a_pair_and_every_pair_is_in_one_update(answerer, tmp_path: Path) -> None:
    rounds = rounds_of(answerer, tmp_path)
    model, cpu = torch.nn.Linear(1, 1), torch.device("cpu")
    updates = [rounds.pairs_of_update(update, model, cpu) for update in range(3)]
    answers = read_answers(tmp_path / "rounds/0000/replies.jsonl")
    unequal = [one for one in answers if one.totals[0] != one.totals[1]]
    found = {pair.line - 1: pair for update in updates for pair in update}
    assert sorted(found) == [one.place for one in unequal]
    assert sum(map(len, updates)) == len(unequal)
    for one in unequal:
        best = int(np.argmax(one.totals))
        assert found[one.place].replies == one.rows((best, 1 - best))
        assert found[one.place].preference == 1.0
    assert answerer.generator.asked == 6
    rounds.pairs_of_update(3, model, cpu)
    assert answerer.generator.asked == 12  # the next round's


def test_soft_preferences_are_those_of_the_scores(answerer, tmp_path: Path) -> None:
    rounds = rounds_of(answerer, tmp_path, "bon")
    pair = rounds.pairs_of_update(0, torch.nn.Linear(1, 1), torch.device("cpu"))[0]
    totals = read_answers(tmp_path / "rounds/0000/replies.jsonl")[pair.line - 1].totals
    assert pair.preference == pytest.approx(1 / (1 + np.exp(-abs(totals[0] - totals[1]))))


def test_log_probabilities_of_the_reference_are_those_of_the_round_s_beginning(answerer, tmp_path: Path) -> None:
    calls = []

    def reference(rows, model, device):
        calls.append(len(rows))
        return torch.arange(2.0 * len(rows)) + 100 * len(calls)

    first = rounds_of(answerer, tmp_path, reference=reference).pairs_of_update(0, torch.nn.Linear(1, 1), "cpu")
    resumed = rounds_of(answerer, tmp_path, reference=reference).pairs_of_update(0, torch.nn.Linear(1, 1), "cpu")
    assert len(calls) == 1
    assert [pair.reference for pair in resumed] == [pair.reference for pair in first]
    assert {pair.reference[1] - pair.reference[0] for pair in first} == {1.0}


def test_scores_that_all_tie_are_refused_with_what_to_do(answerer, tmp_path: Path) -> None:
    same = FunctionScorer(lambda conversations, replies: [1.0] * len(replies))
    flat = replace(answerer, judge=Judge({"same": same}, {}, {}, 0.0))
    with pytest.raises(InputError, match="all 2 replies to each of 6 prompts have one score; needed"):
        rounds_of(flat, tmp_path).pairs_of_update(0, torch.nn.Linear(1, 1), torch.device("cpu"))


def test_the_win_rate_is_against_the_start_by_the_monitor_and_ties_are_half(answerer, tmp_path: Path) -> None:
    values = iter([[3.0, 1.0, 2.0], [4.0, 1.0, 0.0]])
    monitor = FunctionScorer(lambda conversations, replies: next(values)[: len(replies)])
    watched = replace(answerer, judge=Judge({"length": LENGTH}, {}, {"m": monitor}, 0.0))
    watched.generator.generation_batch_size = 8
    sums = iter([torch.tensor([-3.0, -2.0, -1.0])] * 3 + [torch.tensor([-4.0, -4.0, -4.0])])

    def of(rows, model, device):
        return next(sums)

    probe = RoundProbe([prompt(f"cake {i}") for i in range(3)], watched, of, of, Run(tmp_path), 2)
    assert probe.measure(torch.nn.Linear(1, 1), torch.device("cpu"))["win_rate"] == 0.5
    after = probe.measure(torch.nn.Linear(1, 1), torch.device("cpu"))
    assert after["win_rate"] == pytest.approx((1 + 0.5 + 0) / 3)
    assert after["kl"] == pytest.approx(-2 + 4)
    assert after["score/m"] == pytest.approx(5 / 3)
    assert len(read_answers(tmp_path / "rounds/start.jsonl")) == 3


@pytest.fixture
def config(small_models, few_pairs: Path, tmp_path: Path) -> IterativeConfig:
    return IterativeConfig(
        "refused",
        ModelConfig(str(small_models["llama"]), precision="fp32"),
        PromptConfig(str(few_pairs), max_length=128, eval_size=4),
        RoundConfig(prompts_per_round=4, max_new_tokens=6),
        JudgeConfig("utility=world:0"),
        optimizer=OptimizerConfig(global_batch=4, micro_batch=2, max_updates=1),
        run=RunConfig(str(tmp_path / "run"), tracking="none", dry_run=True),
    )


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"loss": LossConfig("kto")}, "--loss kto learns from single replies"),
        ({"loss": LossConfig("dpo", gamma=2.0)}, "gamma=2.0, which --loss dpo does not use; needed: --loss simpo"),
        ({"loss": LossConfig("simpo"), "rounds": RoundConfig(4, renew_reference=True)}, "which has no reference"),
        ({"rounds": RoundConfig(6)}, "not a multiple of global_batch=4; needed: whole updates, such as --prompts_per_"),
        ({"judge": JudgeConfig()}, "scorers is empty; needed: --scorers [name=]PATH"),
        ({"judge": JudgeConfig("a=world:0", weights="a=0:1")}, "--weights 'a=0:1' changes over the run, which rounds"),
        ({"judge": JudgeConfig("a=world:0", monitor_scorer="a=world:1")}, "two scorers are called a; needed"),
        ({"judge": JudgeConfig("a=world:0", monitor_scorer="b=world:1,c=world:2")}, "names 2; needed: one"),
        ({"trainer": TrainerConfig(best_metric="score/utility")}, "needed: none: the policy with most"),
        ({"rounds": RoundConfig(4, max_new_tokens=200)}, "leaves no room for a prompt in a context of 128"),
    ],
)  # fmt: skip
def test_what_cannot_work_is_refused_before_a_folder_opens(config, changes: dict, said: str) -> None:
    with pytest.raises(InputError) as raised:
        train(replace(config, **changes))
    assert said in str(raised.value)
    assert not Path(config.output).exists()


def test_weights_sharded_by_zero_3_cannot_sample(config) -> None:
    with pytest.raises(InputError, match="shards the weights, and every rank samples with whole ones; needed: zero2"):
        train(replace(config, run=replace(config.run, deepspeed="zero3")))


def test_appended_lines_are_read_as_they_were(tmp_path: Path) -> None:
    one = Answers(0, "hi \u2028 there", [1], [[2, 3]], ["\ud800 x"], ["eos"], {"a": [1.0]}, [1.0])
    append_answers(tmp_path / "a.jsonl", [one, replace(one, place=1)], Run(tmp_path))
    assert read_answers(tmp_path / "a.jsonl") == [one, replace(one, place=1)]
