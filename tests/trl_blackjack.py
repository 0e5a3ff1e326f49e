"""TRL's own GRPOTrainer on the exported Blackjack: `python trl_blackjack.py PACKAGE SITE OUTPUT [STEPS [SEED]]`.

Runs in an environment with TRL; SITE has lmgym and what it needs. A small policy from scratch first learns to call the
tool with random moves. Writes the returns of held-out games before and after, and the logs of the trainer, whose
"""

import json
import random
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, sys.argv[1])
sys.path.append(str(Path(__file__).parents[1]))
sys.path.append(sys.argv[2])  # behind TRL's own packages
import torch
from lmgym_games_blackjack.trl import Environment, dataset, reward
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM, set_seed
from transformers.utils import get_json_schema
from trl import GRPOConfig, GRPOTrainer
from trl.chat_template_utils import qwen2_5_chat_template

from lmgym.models.small_models import train_word_tokenizer

STEPS, SEED = (int(word) for word in (sys.argv[4:6] + ["100", "0"][len(sys.argv[4:6]) :]))
HELD_OUT = 512
GAMES, BATCHES, BATCH, WIDTH, LONGEST = 512, 250, 32, 64, 512
MOVES = ("hit", "stick")


def games(rows, chance: random.Random) -> list[list[dict]]:
    """Games of random moves as TRL writes them: calls of the tool and their results."""
    found, environment = [], Environment()
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


def small_policy(rows) -> tuple[LlamaForCausalLM, AutoTokenizer]:
    """A policy of 2 layers that plays at random, with the layout of Qwen 2.5."""
    tools = [get_json_schema(Environment().reply)]
    played = games(rows, random.Random(0))
    blank = train_word_tokenizer(["x"], 300)
    blank.chat_template = qwen2_5_chat_template
    texts = [blank.apply_chat_template(one, tools=tools, tokenize=False) for one in played]
    words = train_word_tokenizer(texts, 4000, LONGEST)
    marks = ["<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>"]
    words.add_special_tokens({"additional_special_tokens": marks})
    words.chat_template, words.eos_token, words.padding_side = qwen2_5_chat_template, "<|im_end|>", "left"
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(words), hidden_size=WIDTH, intermediate_size=4 * WIDTH, num_hidden_layers=2,
            num_attention_heads=4, max_position_embeddings=LONGEST, initializer_range=WIDTH**-0.5,
            pad_token_id=words.pad_token_id, eos_token_id=words.eos_token_id, bos_token_id=None,
        )
    )  # fmt: skip
    encoded = [words(text, add_special_tokens=False).input_ids[:LONGEST] for text in texts]
    prompt = len(words.apply_chat_template(played[0][:1], tools=tools, add_generation_prompt=True, return_dict=False))
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=0.0)
    chance = random.Random(1)
    for step in range(BATCHES):
        for group in optimizer.param_groups:
            group["lr"] = 4e-3 * min(1, (step + 1) / 20) * (1 - step / BATCHES)
        some = chance.sample(encoded, BATCH)
        longest = max(map(len, some))
        ids = torch.tensor([row + [words.pad_token_id] * (longest - len(row)) for row in some])
        mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in some])
        labels = ids.masked_fill(mask == 0, -100)
        labels[:, : prompt - 20] = -100
        loss = model(input_ids=ids, attention_mask=mask, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    print(f"random moves: loss {loss.item():.3f} after {BATCHES} batches", flush=True)
    return model.eval(), words


def main() -> None:
    torch.set_num_threads(1)
    set_seed(SEED)
    rows = dataset(2048)
    model, words = small_policy(rows.select(range(GAMES)))
    with tempfile.TemporaryDirectory() as folder:
        settings = GRPOConfig(
            output_dir=folder, per_device_train_batch_size=128, num_generations=16, per_device_eval_batch_size=128,
            num_generations_eval=1, seed=SEED, use_cpu=True, bf16=False,
            max_completion_length=160, max_steps=STEPS, learning_rate=1e-4, beta=0.0, logging_steps=1,
            save_strategy="no", report_to=[], disable_tqdm=True,
        )  # fmt: skip
        trainer = GRPOTrainer(
            model=model,
            reward_funcs=reward,
            args=settings,
            train_dataset=rows,
            eval_dataset=dataset(HELD_OUT, "validation"),
            processing_class=words,
            environment_factory=Environment,
        )
        before = trainer.evaluate()
        trainer.train()
        after = trainer.evaluate()
    logged = [row for row in trainer.state.log_history if "reward" in row]
    held_out = [
        {"mean": one["eval_reward"], "std": one["eval_reward_std"], "episodes": HELD_OUT} for one in (before, after)
    ]
    Path(sys.argv[3]).write_text(json.dumps({"seed": SEED, "held_out": held_out, "logged": logged}, indent=1))
    print(held_out, flush=True)


if __name__ == "__main__":
    main()
