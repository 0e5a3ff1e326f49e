"""Experiments in the form of the first lmgym (2023), run as they are, and what else may stand in their place."""

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from torch import nn
from transformers import GPT2Config, GPT2ForSequenceClassification

import eval_rewards_api
from lmgym.apps.chat.first_form import as_generator, as_scorer
from lmgym.errors import InputError
from lmgym.generation.protocol import Sampling
from lmgym.text import Conversation, Turn

CHAT = Conversation((Turn("bot", "Hi."), Turn("user", "How are you?")), "A friend.")
OTHER = Conversation((Turn("user", "Bye."),))
OWN_CLASSES = """
from reward_models.evaluation import reward_models as rm
from reward_models.evaluation.base_cls import BaseRewardModel


class Scripted:
    def predict(self, text, best_of=4):
        assert text.endswith("\\nBot:")
        return [" word" * (number + 1) for number in range(best_of)]


class Longest(BaseRewardModel):
    def _predict(self, inputs, responses):
        return [{"text": text, "score": len(text)} for text in reversed(responses)]


def get_base_model():
    return Scripted()


def get_reward_models():
    return {"longest": Longest(), "random": rm.RandomRM()}
"""
TRAINED = """
from transformers import AutoTokenizer

from reward_models.evaluation import base_models, reward_models


class Retry(reward_models.GPT2Model):
    def _load_tokenizer(self):
        return AutoTokenizer.from_pretrained(self.hf_model_name)


def get_base_model():
    return base_models.GPTJ({{"max_new_tokens": 6, "do_sample": True, "eos_token_id": 198}}, {model!r})


def get_reward_models():
    return {{"retry": Retry({scorer!r})}}
"""


@pytest.fixture
def experiments(tmp_path: Path, small_models: dict[str, Path]) -> dict[str, Path]:
    """One with classes of its own, one with trained models and the classes of 2023."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(small_models["gpt2"])
    scorer = GPT2ForSequenceClassification(
        GPT2Config(vocab_size=len(tokenizer), n_embd=16, n_layer=1, n_head=2, pad_token_id=0)
    )
    nn.init.normal_(scorer.score.weight, std=5.0)
    scorer.save_pretrained(tmp_path / "scorer")
    tokenizer.save_pretrained(tmp_path / "scorer")
    (tmp_path / "own.py").write_text(OWN_CLASSES)
    made = TRAINED.format(model=str(small_models["gpt2"]), scorer=str(tmp_path / "scorer"))
    (tmp_path / "trained.py").write_text(made)
    return {name: tmp_path / f"{name}.py" for name in ("own", "trained")}


@pytest.mark.parametrize(("name", "select"), [("own", "longest"), ("trained", "retry")])
def test_an_experiment_of_2023_runs_as_it_is(name: str, select: str, experiments, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = ("--experiment_name", str(experiments[name]), "--select_model", select, "--best_of", "3", "--json")
    done = CliRunner().invoke(eval_rewards_api.main, ["talk_to_models", *words], input="hello there\n")
    assert done.exit_code == 0, done.output
    assert f'"{select}"' in done.output
    if name == "own":
        assert '"word word word"' in done.output
        assert '"selected": 2' in done.output
    chats = tmp_path / "chats.jsonl"
    turns = [
        {"role": ("assistant", "user")[i % 2], "content": text}
        for i, text in enumerate(["hi", "hello", "well", "fine"])
    ]
    chats.write_text(json.dumps({"messages": turns}) + "\n")
    shown = CliRunner().invoke(
        eval_rewards_api.main, ["convo_evolution", "--experiment_name", str(experiments[name]), "--dataset", str(chats)]
    )
    assert shown.exit_code == 0, shown.output
    assert select in shown.output


def test_a_scorer_reads_the_transcript_and_each_reply_behind_a_blank_once_a_conversation() -> None:
    calls = []

    class Noted:
        def predict(self, inputs, responses):
            calls.append((inputs, responses))
            return [{"text": one, "score": len(one)} for one in responses]

    found = as_scorer(Noted(), "scorer a").score([CHAT, CHAT, OTHER, CHAT], ["yes", "", "go", "well"])
    assert found.tolist() == [4, 0, 3, 5]
    assert found.dtype == np.float32
    text = "A friend.\nBot: Hi.\nUser: How are you?\nBot:"
    assert calls == [(text, [" yes", ""]), ("User: Bye.\nBot:", [" go"]), (text, [" well"])]


def test_scores_in_another_order_belong_to_their_texts() -> None:
    def scorer(inputs, responses):
        return [{"text": one, "score": float(one)} for one in sorted(responses)]

    assert as_scorer(scorer, "a").score([CHAT] * 3, ["3", "1", "2"]).tolist() == [3, 1, 2]


def test_plain_functions_score_too() -> None:
    assert as_scorer(lambda inputs, responses: [len(inputs)] * len(responses), "a").score([OTHER], ["x"]) == [15]
    assert as_scorer(lambda conversations, replies: [len(one) for one in replies], "a").score([OTHER], ["x"]) == [1]


@pytest.mark.parametrize(
    "found", [[{"text": "x"}], [{"text": "other", "score": 1.0}], [1.0, 2.0], None, ["a"], [float("nan")], 1.0]
)
def test_what_is_no_score_of_each_response_is_a_line_with_what_was_given(found) -> None:
    with pytest.raises(InputError, match=r"predict of scorer a gave .* for 1 responses; needed: a list with a number"):
        as_scorer(lambda inputs, responses: found, "scorer a").score([CHAT], ["x"])


@pytest.mark.parametrize("found", [["one"], "two", [1, 2], None])
def test_what_is_no_text_for_each_reply_is_a_line(found) -> None:
    class Model:
        def predict(self, text, best_of):
            return found

    with pytest.raises(InputError, match=r"predict of m gave .*; needed: a list of 2 texts"):
        as_generator(Model(), "m").reply([CHAT], 2, Sampling())


def test_anything_else_is_refused_with_the_signatures() -> None:
    with pytest.raises(InputError, match=r"scorer a is float; needed: something with score\(conversations, rep"):
        as_scorer(1.0, "scorer a")
    with pytest.raises(InputError, match=r"m is NoneType; needed: something with reply\(conversations, n, sampling\)"):
        as_generator(None, "m")
    with pytest.raises(InputError, match="completions"):
        as_scorer(lambda one, two: [0.0], "scorer a")
