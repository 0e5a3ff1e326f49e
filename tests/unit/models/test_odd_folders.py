"""Folders that are whole and unusual, at every stage: no chat template, several eos ids, a context of a few tokens."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from launching import words
from safetensors.torch import load_file, save_file

from lmgym.apps.chat.startup import ChatOptions, open_chat
from lmgym.apps.chat.terminal_frontend import start_notes
from lmgym.config import ModelConfig, OptimizerConfig, RowsConfig, RunConfig, SamplesConfig
from lmgym.errors import InputError
from lmgym.generation.local_generation import LocalGenerator
from lmgym.generation.protocol import Sampling
from lmgym.models.forward.policies import load_policy, save_policy
from lmgym.models.loading import load_tokenizer
from lmgym.models.lora import add_lora
from lmgym.scoring.named_scorers import load_scorer
from lmgym.text import Conversation, Turn
from ppo.config import PPOConfig, RewardConfig, RolloutConfig
from ppo.task_setups import chat_with_scorers
from ppo.train import train as train_ppo
from preferences.config import PreferenceConfig
from preferences.train import train as train_preferences
from reward_models.config import RewardModelConfig
from reward_models.train import train_pairwise
from sft.config import SftConfig
from sft.tasks import CHAT
from sft.train import train as train_sft

NOTE = "has no chat template but the flat one: turns are written as `User: ...`"
CHAT_OF_ONE = [Conversation((Turn("user", "what about tea, and about soup on sundays?"),))]


def stages(folder: Path, chats: Path, pairs: Path, scorer: Path, output: Path) -> dict[str, Callable[[], object]]:
    """A dry run of every stage that trains."""
    model, run = ModelConfig(str(folder), precision="fp32"), RunConfig(str(output), tracking="none", dry_run=True)
    steps = OptimizerConfig(global_batch=4, micro_batch=2, max_updates=1)
    data, few = RowsConfig(str(chats), max_length=128, eval_size=8), SamplesConfig(sample_prompts=2, sample_tokens=2)
    rollout = RolloutConfig(str(chats), eval_size=2, num_rollouts=4, max_new_tokens=2)
    return {
        "reward models": lambda: train_pairwise(
            RewardModelConfig("r", model, RowsConfig(str(pairs), max_length=128, eval_size=0.1), steps, run)
        ),
        "sft": lambda: train_sft(SftConfig("s", model, data, steps, few, run), CHAT),
        "preferences": lambda: train_preferences(
            PreferenceConfig("d", model, RowsConfig(str(pairs), max_length=128), optimizer=steps, samples=few, run=run)
        ),
        "ppo": lambda: train_ppo(
            PPOConfig("p", model, rollout, RewardConfig(f"a={scorer}"), optimizer=steps, run=run), chat_with_scorers
        ),
    }


@pytest.mark.parametrize("own", [False, True])
def test_each_stage_notes_once_that_a_folder_has_no_chat_template(
    own: bool, small_models, scorer_folders, chats_file: Path, few_pairs: Path, tmp_path: Path, capsys
) -> None:
    folder = Path(shutil.copytree(small_models["llama"], tmp_path / "model"))
    (folder / "chat_template.jinja").unlink()
    if own:
        (folder / "chat_template.jinja").write_text("{% for m in messages %}<{{ m.content }}>{% endfor %}")
    for name, run in stages(folder, chats_file, few_pairs, scorer_folders["llama"], tmp_path / "run").items():
        run()
        assert words(capsys.readouterr().out).count(NOTE) == (0 if own else 1), name
    flags = ["--model", str(folder), "--scorers", f"a={scorer_folders['llama']}"]
    chat = open_chat(ChatOptions("hh", "a", 2, sessions=str(tmp_path / "sessions")), flags)
    assert sum(NOTE in line for line in start_notes(chat)) == (0 if own else 1)


@pytest.mark.parametrize("lora", [False, True])
def test_several_ids_end_a_reply_and_are_kept_in_what_is_saved(lora: bool, small_models, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(small_models["llama"], tmp_path / "model"))
    tokenizer = load_tokenizer(str(folder))
    ends = [*range(100, 400), tokenizer.eos_token_id]
    settings = json.loads((folder / "generation_config.json").read_text())
    (folder / "generation_config.json").write_text(json.dumps(settings | {"eos_token_id": ends}))
    model = load_policy(str(folder), tokenizer)
    model = add_lora(model, 2, 4, 0.0) if lora else model
    saved = save_policy(model, model.state_dict(), tmp_path / "saved", tokenizer, merge=True)
    assert json.loads((saved / "generation_config.json").read_text())["eos_token_id"] == ends
    again = load_policy(str(saved), load_tokenizer(str(saved)))
    [replies] = LocalGenerator(again, tokenizer).reply(CHAT_OF_ONE, 8, Sampling(24, seed=1))
    ended = [reply for reply in replies if reply.finish_reason == "eos"]
    assert len(ended) > 4
    assert len({reply.ids[-1] for reply in ended}) > 2
    assert all(not {*reply.ids[:-1]} & {*ends} for reply in replies)


def with_context(folder: Path, tokens: int, target: Path) -> Path:
    shutil.copytree(folder, target)
    config = json.loads((target / "config.json").read_text())
    field = "n_positions" if config["model_type"] == "gpt2" else "max_position_embeddings"
    (target / "config.json").write_text(json.dumps(config | {field: tokens}))
    if field == "n_positions":
        weights = load_file(target / "model.safetensors")
        weights["transformer.wpe.weight"] = weights["transformer.wpe.weight"][:tokens].clone()
        save_file(weights, target / "model.safetensors", {"format": "pt"})
    return target


@pytest.mark.parametrize("tokens", [1, 4])
def test_every_stage_refuses_a_context_of_a_few_tokens_in_one_line(
    tokens: int, small_models, scorer_folders, chats_file: Path, few_pairs: Path, tmp_path: Path
) -> None:
    folder = with_context(small_models["llama"], tokens, tmp_path / "model")
    messages = {}
    for name, run in stages(folder, chats_file, few_pairs, scorer_folders["llama"], tmp_path / "run").items():
        with pytest.raises(InputError) as refused:
            run()
        messages[name] = str(refused.value)
    for name in ("reward models", "sft"):
        assert messages[name] == (
            f"{folder} reads {tokens} tokens, its context, too few for a conversation; needed: a model that reads at "
            "least 8"
        )
    room = f"leaves no room for a prompt in a context of {tokens}" if tokens == 1 else "does not fit into 2 tokens"
    assert room in messages["ppo"]
    assert "\n" not in messages["ppo"]


def test_in_a_short_context_the_oldest_turns_are_dropped_or_the_prompt_is_refused(
    small_models, scorer_folders, tmp_path: Path
) -> None:
    talker = with_context(small_models["llama"], 24, tmp_path / "talker")
    tokenizer = load_tokenizer(str(talker))
    generator = LocalGenerator(load_policy(str(talker), tokenizer), tokenizer)
    with pytest.raises(InputError, match=r"prompt 0 has \d+ tokens and max_new_tokens is 8; the model reads 24"):
        generator.reply(CHAT_OF_ONE, 1, Sampling(8))
    # with a row for each position and no more
    judge = load_scorer(str(with_context(scorer_folders["gpt2"], 24, tmp_path / "judge")))
    with torch.no_grad():
        assert judge.score(CHAT_OF_ONE, ["a long reply about tea, soup and sundays, which has no end."]).isfinite()
    assert judge.counts.truncated == 1
