"""Held-out figures against a plain forward a row; fixed prompts answered, scored and refused."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM, GenerationConfig

from lmgym.config import ModelConfig, RowsConfig, SamplesConfig
from lmgym.errors import InputError
from lmgym.generation.protocol import Sampling
from lmgym.models.forward.policies import PolicyModel, load_policy
from lmgym.models.loading import load_tokenizer
from lmgym.scoring.scorers import FunctionScorer
from lmgym.statistics import mean, share
from lmgym.text import Conversation, Turn
from lmgym.training.samples import SampleProbe, SamplePrompt, sampling_of
from sft.check import read_prompts
from sft.config import SftConfig
from sft.objectives import NextToken, SoftTargets
from sft.probes import HeldOutProbe
from sft.tasks import CHAT, SftTask
from sft.tokenization import Example, tokenize_chats

CPU = torch.device("cpu")


def config_of(model: Path, data: Path, **samples) -> SftConfig:
    return SftConfig(
        "x", ModelConfig(str(model)), RowsConfig(str(data), max_length=200), samples=SamplesConfig(**samples)
    )


@pytest.fixture(scope="module")
def examples(chats_file: Path, small_models: dict[str, Path]) -> list[Example]:
    from lmgym.data.records import read_records
    from sft.conversations import validate_chats

    chats, _ = validate_chats(read_records(str(chats_file)))
    return tokenize_chats(chats[:9], load_tokenizer(str(small_models["llama"])), 200)[0]


@pytest.mark.parametrize("batch_tokens", [10, 100_000])
def test_perplexity_and_accuracy_are_of_all_output_tokens_whatever_the_batches(
    batch_tokens: int, examples: list[Example], small_models: dict[str, Path]
) -> None:
    tokenizer = load_tokenizer(str(small_models["llama"]))
    policy = PolicyModel(load_policy(str(small_models["llama"]), tokenizer))
    examples = [*examples, *examples[:4]]  # several replies to a prompt are one unit of the interval
    probe = HeldOutProbe(examples, NextToken(policy, tokenizer.pad_token_id), batch_tokens)
    found = probe.measure(policy, CPU)

    plain = AutoModelForCausalLM.from_pretrained(small_models["llama"]).eval()
    nats, right, count = 0.0, 0, 0
    hits, prompts, losses = list[bool](), list[str](), list[float]()
    for example, line in zip(examples, probe.lines(), strict=True):
        with torch.no_grad():
            logits = plain(torch.tensor([example.ids])).logits[0, example.places]
        targets = torch.tensor(example.targets)
        losses += F.cross_entropy(logits, targets, reduction="none").tolist()
        own = F.cross_entropy(logits, targets, reduction="sum").item()
        assert line["loss"] == pytest.approx(own / len(targets), rel=1e-5)
        assert (line["row"], line["tokens"]) == (example.origin, len(targets))
        nats, right, count = nats + own, right + int((logits.argmax(-1) == targets).sum()), count + len(targets)
        hits += (logits.argmax(-1) == targets).tolist()
        prompts += [str(example.prompt)] * len(targets)
    assert found["perplexity"] == pytest.approx(math.exp(nats / count), rel=1e-5)
    assert found["loss"] == pytest.approx(nats / count, rel=1e-5)
    assert found["token_accuracy"] == right / count
    by_prompt, by_token = share(hits, np.unique(prompts, return_inverse=True)[1]), share(hits)
    ends = (found["token_accuracy_low"], found["token_accuracy_high"])
    assert ends == pytest.approx((by_prompt.low, by_prompt.high)), "tokens of a conversation are no independent draws"
    assert ends != pytest.approx((by_token.low, by_token.high))
    loss = mean(losses, np.unique(prompts, return_inverse=True)[1])
    assert loss.low is not None
    assert loss.high is not None
    ends = (found["perplexity_low"], found["perplexity_high"])
    assert ends == pytest.approx((math.exp(loss.low), math.exp(loss.high)), rel=1e-5)


def test_with_soft_targets_the_loss_is_theirs_and_perplexity_that_of_the_teachers_tokens(
    examples: list[Example], small_models: dict[str, Path]
) -> None:
    tokenizer = load_tokenizer(str(small_models["llama"]))
    policy = PolicyModel(load_policy(str(small_models["llama"]), tokenizer))
    soft = [replace(e, probabilities=[0.25] * len(e.targets)) for e in examples]
    found = HeldOutProbe(soft, SoftTargets(policy, tokenizer.pad_token_id), 300).measure(policy, CPU)
    hard = HeldOutProbe(examples, NextToken(policy, tokenizer.pad_token_id), 300).measure(policy, CPU)
    assert found["perplexity"] == pytest.approx(hard["perplexity"], rel=1e-6)
    total = count = 0.0
    for e in soft:
        with torch.no_grad():
            logits = policy(**policy.collate([e.ids], [e.places]))
        p = logits.double().softmax(-1).gather(1, torch.tensor(e.targets)[:, None])
        total -= (0.25 * p.log() + 0.75 * (1 - p).log()).sum().item()
        count += len(e.targets)
    assert found["loss"] == pytest.approx(total / count, rel=1e-5)


def prompts(*texts: str) -> list[SamplePrompt]:
    return [SamplePrompt(Conversation((Turn("user", text),), "Mira."), "f", i) for i, text in enumerate(texts, 1)]


def test_fixed_prompts_are_answered_alike_each_time_with_length_and_every_scorers_score(
    small_models: dict[str, Path],
) -> None:
    tokenizer = load_tokenizer(str(small_models["gpt2"]))
    policy = PolicyModel(load_policy(str(small_models["gpt2"]), tokenizer))
    scorer = FunctionScorer(lambda conversations, replies: [float(len(reply)) for reply in replies])
    probe = SampleProbe(prompts("tea?", "who?"), policy, tokenizer, Sampling(7, seed=2), {"length": scorer})
    torch.manual_seed(0)
    state = torch.get_rng_state()
    first = probe.measure(policy, CPU)
    assert torch.equal(torch.get_rng_state(), state)  # a resumed run must draw the same
    rows = probe.rows
    assert probe.measure(policy, CPU) == first
    assert probe.rows == rows
    assert first["tokens"] == sum(row["tokens"] for row in rows) / 2 <= 7
    assert first["score/length"] == sum(len(row["reply"]) for row in rows) / 2
    assert rows[0] | {"reply": "", "tokens": 0, "finish": "", "scores": {}} == {
        "row": "f:1", "prompt": "Mira.\nUser: tea?\nBot:", "reply": "", "tokens": 0, "finish": "", "scores": {},
    }  # fmt: skip
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(torch.randn_like(parameter))
    probe.measure(policy, CPU)
    assert probe.rows != rows  # by the weights as they are now


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({}, "temperature 0.6, top_p 0.9 (generation_config.json)"),
        ({"temperature": 0.0}, "greedy (--temperature, generation_config.json)"),
        ({"top_p": 1.0}, "temperature 0.6 (--top_p, generation_config.json)"),
        ({"temperature": 1.0, "top_p": 1.0}, "temperature 1 (--temperature, --top_p)"),
    ],
)
def test_prompts_are_answered_as_the_model_is_sampled_but_for_what_flags_say(flags: dict, words: str) -> None:
    own = GenerationConfig(do_sample=True, temperature=0.6, top_p=0.9)
    sampling, source = sampling_of(SamplesConfig(sample_tokens=9, **flags), own, seed=5)
    assert (sampling.max_new_tokens, sampling.seed) == (9, 5)
    assert SampleProbe([], None, None, sampling, {}, source).settings == words  # type: ignore[arg-type]
    assert sampling_of(SamplesConfig(), GenerationConfig(), 0) == (Sampling(64), "defaults")


def read(config: SftConfig, task: SftTask = CHAT) -> tuple[list[SamplePrompt], list[str]]:
    tokenizer = load_tokenizer(config.policy.model)
    return read_prompts(config, task, task.prepare(config, tokenizer), tokenizer)


def test_prompts_are_those_of_held_out_rows_or_of_a_file(
    chats_file: Path, small_models: dict[str, Path], tmp_path: Path
) -> None:
    default, _ = read(config_of(small_models["llama"], chats_file, sample_prompts=2))
    assert len(default) == 2
    assert all(prompt.conversation.turns[-1].speaker == "user" for prompt in default)
    assert read(config_of(small_models["llama"], chats_file, sample_prompts=0)) == ([], [])
    file = tmp_path / "prompts.jsonl"
    file.write_text(json.dumps({"prompt": "User: tea?\nBot:", "completion": "yes"}) + "\n")
    [own], _ = read(config_of(small_models["llama"], chats_file, prompts=str(file)))
    assert own == SamplePrompt(Conversation((Turn("user", "tea?"),)), str(file), 1)


def test_a_prompt_that_fills_the_context_is_refused_and_a_faulty_one_is_counted(
    chats_file: Path, small_models: dict[str, Path], tmp_path: Path
) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text(json.dumps({"prompt": "tea? " * 200, "completion": "yes"}) + "\n")
    with pytest.raises(InputError, match=r"line 1 has \d+ tokens and fills the context; needed: at most 192, so that"):
        read(config_of(small_models["llama"], chats_file, prompts=str(file)))
    file.write_text(json.dumps({"prompt": "a", "completion": " "}) + "\n")
    with pytest.raises(InputError, match=r"--prompts: .* line 1, completion: an empty output"):
        read(config_of(small_models["llama"], chats_file, prompts=str(file)))
    with file.open("a") as lines:
        lines.write("[" * 100_000 + "\n" + json.dumps({"prompt": "tea?", "completion": "yes"}) + "\n")
    [prompt], notes = read(config_of(small_models["llama"], chats_file, prompts=str(file)))
    assert prompt.origin == f"{file}:3"
    said = "--prompts: 2 of 3 rows rejected: 1 without a reply (field completion), 1 nested too deeply\nwarning: 66.7%"
    assert "\n".join(notes).startswith(said)
