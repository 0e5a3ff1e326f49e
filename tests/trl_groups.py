"""GRPO by TRL itself, in an environment that has it, on the rewards of a server: `python trl_groups.py URL OUTPUT`.

Writes the replies of its last step with their prompts, the rewards that TRL was given, and the advantages that it made
of them. Beside TRL it has nothing of this repository but the client's file, as a user's script does.
"""

import json
import random
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "lmgym/apps/serve"))
import lmgym_client
import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, set_seed
from trl import GRPOConfig, GRPOTrainer

GROUP, PROMPTS, STEPS = 4, 3, 2
WORDS = ["<pad>", "<eos>", "tea", "garden", "music", "letter", "winter", "friend", "of", "and", "what", "why"]


def tokenizer() -> PreTrainedTokenizerFast:
    plain = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<pad>"))
    plain.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=plain, pad_token="<pad>", eos_token="<eos>")


def policy() -> LlamaForCausalLM:
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(WORDS), hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
            max_position_embeddings=64, pad_token_id=0, eos_token_id=1, bos_token_id=None,
        )
    )  # fmt: skip


def train(url: str, output: Path) -> None:
    torch.set_num_threads(1)
    set_seed(0)
    draw = random.Random(0)
    rows = Dataset.from_list([{"prompt": " ".join(draw.choices(WORDS[2:], k=4))} for _ in range(16)])
    with tempfile.TemporaryDirectory() as folder:
        settings = GRPOConfig(
            output_dir=folder, per_device_train_batch_size=GROUP * PROMPTS, num_generations=GROUP, use_cpu=True,
            max_completion_length=8, max_steps=STEPS, learning_rate=1e-3, scale_rewards="none", beta=0.0, bf16=False,
            logging_steps=1, save_strategy="no", report_to=[], disable_tqdm=True,
        )  # fmt: skip
        reward = lmgym_client.trl_reward(client=lmgym_client.Client(url, run="trl"), num_generations=GROUP)
        calls = []

        def recorded(prompts, completions, **columns):
            rewards = reward(prompts, completions, **columns)
            calls.append({"prompts": prompts, "completions": completions, "rewards": rewards})
            return rewards

        trainer = GRPOTrainer(
            model=policy(), reward_funcs=recorded, args=settings, train_dataset=rows, processing_class=tokenizer()
        )
        trainer.train()
    logs = {name: list(trainer._logs[name]) for name in ("prompt", "completion", "advantages")}
    logged = [row for row in trainer.state.log_history if "reward" in row]
    output.write_text(json.dumps({"calls": calls, "logs": logs, "logged": logged}))


if __name__ == "__main__":
    train(sys.argv[1], Path(sys.argv[2]))
