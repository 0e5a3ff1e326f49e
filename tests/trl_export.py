"""TRL's own GRPOTrainer on an exported package: `python trl_export.py PACKAGE MODULE SITE OUTPUT STEPS SEED`.

Runs in an environment with TRL; SITE has lmgym and what it needs. The policy is a small one from scratch. With the tool
(Blackjack) it first learns to call it, with random moves; a debate is one reply, which needs no call. Writes the
rewards of held-out episodes before and after, and TRL's logs.
"""

import importlib
import json
import random
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, sys.argv[1])
sys.path.append(str(Path(__file__).parents[1]))
sys.path.append(sys.argv[3])  # behind TRL's own packages

import torch
from datasets import Dataset
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM, set_seed
from transformers.utils import get_json_schema
from trl import GRPOConfig, GRPOTrainer
from trl.chat_template_utils import qwen2_5_chat_template

from lmgym.models.small_models import train_word_tokenizer

package = importlib.import_module(f"{sys.argv[2]}.trl")
STEPS, SEED = int(sys.argv[5]), int(sys.argv[6])
HELD_OUT, WIDTH, LONGEST = 256, 64, 1024
GAMES, BATCHES, BATCH = 512, 200, 32
MOVES = ("hit", "stick")
TOOLS = [get_json_schema(package.Environment().reply)]


def games(rows: Dataset, chance: random.Random) -> list[list[dict]]:
    """Games of random moves as TRL writes them: calls of the tool and their results."""
    found, environment = [], package.Environment()
    for row in rows:
        environment.reset(**row)
        said, shown = list(row["prompt"]), ""
        while shown != "It is over.":
            move = chance.choice(MOVES)
            call = {"type": "function", "function": {"name": "reply", "arguments": {"text": move}}}
            shown = environment.reply(move)
            said += [{"role": "assistant", "content": "", "tool_calls": [call]}]
            said += [{"role": "tool", "name": "reply", "content": shown}]
        found.append([*said, {"role": "assistant", "content": "Done."}])
    return found


def small_policy(texts: list[str]) -> tuple[LlamaForCausalLM, AutoTokenizer]:
    """An untrained policy of 2 layers that knows the words of the texts, with the layout of Qwen 2.5."""
    words = train_word_tokenizer(texts, 4000, LONGEST)
    marks = ["<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>"]
    words.add_special_tokens({"additional_special_tokens": marks})
    words.chat_template, words.eos_token, words.padding_side = qwen2_5_chat_template, "<|im_end|>", "left"
    config = LlamaConfig(
        vocab_size=len(words), hidden_size=WIDTH, intermediate_size=4 * WIDTH, num_hidden_layers=2,
        num_attention_heads=4, max_position_embeddings=LONGEST, initializer_range=WIDTH**-0.5,
        pad_token_id=words.pad_token_id, eos_token_id=words.eos_token_id, bos_token_id=None,
    )  # fmt: skip
    return LlamaForCausalLM(config), words


def imitate(model: LlamaForCausalLM, words: AutoTokenizer, texts: list[str]) -> None:
    """Trains on the texts, of which the beginnings are alike."""
    encoded = [words(text, add_special_tokens=False).input_ids[:LONGEST] for text in texts]
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=0.0)
    chance = random.Random(1)
    for step in range(BATCHES):
        for group in optimizer.param_groups:
            group["lr"] = 4e-3 * min(1, (step + 1) / 20) * (1 - step / BATCHES)
        some = chance.sample(encoded, BATCH)
        longest = max(map(len, some))
        ids = torch.tensor([row + [words.pad_token_id] * (longest - len(row)) for row in some])
        mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in some])
        model(input_ids=ids, attention_mask=mask, labels=ids.masked_fill(mask == 0, -100)).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


def main() -> None:
    torch.set_num_threads(1)
    set_seed(SEED)
    rows, with_tool = package.dataset(1024), "blackjack" in sys.argv[2]
    _, blank = small_policy(["x"])
    chats = games(rows.select(range(GAMES)), random.Random(0)) if with_tool else [row["prompt"] for row in rows]
    texts = [blank.apply_chat_template(chat, tools=TOOLS, tokenize=False) for chat in chats]
    model, words = small_policy(texts)
    if with_tool:
        imitate(model, words, texts)
    with tempfile.TemporaryDirectory() as folder:
        settings = GRPOConfig(
            output_dir=folder, per_device_train_batch_size=64, num_generations=8, per_device_eval_batch_size=64,
            num_generations_eval=1, seed=SEED, use_cpu=True, bf16=False, beta=0.0, logging_steps=1,
            max_completion_length=160 if with_tool else 16, max_steps=STEPS, learning_rate=3e-4 if with_tool else 2e-3,
            save_strategy="no", report_to=[], disable_tqdm=True,
        )  # fmt: skip
        trainer = GRPOTrainer(
            model=model,
            reward_funcs=package.reward,
            args=settings,
            train_dataset=rows,
            eval_dataset=package.dataset(HELD_OUT, "validation"),
            processing_class=words,
            environment_factory=package.Environment,
        )
        before = trainer.evaluate()
        trainer.train()
        after = trainer.evaluate()
    logged = [row for row in trainer.state.log_history if "reward" in row]
    held_out = [{"mean": one["eval_reward"], "std": one["eval_reward_std"]} for one in (before, after)]
    found = {"module": sys.argv[2], "seed": SEED, "episodes": HELD_OUT, "held_out": held_out, "logged": logged}
    Path(sys.argv[4]).write_text(json.dumps(found, indent=1))
    print(held_out, flush=True)


if __name__ == "__main__":
    main()
