"""Saved models looked at from outside: transformers' own classes, on texts that the test itself writes.

Evaluation during training reads rows through the same functions as training. If those exchange the sides of a pair, or
a label, the figures look as good as ever, and the model is inverted; only this shows it.
"""

from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

Asked = tuple[str, str]
"""a user's message, and a reply to it"""


def scores(folder: Path, asked: Sequence[Asked]) -> torch.Tensor:
    """[replies, labels]: a scorer's logits of each reply."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32).eval()
    found = []
    with torch.no_grad():
        for message, reply in asked:
            chat = [{"role": "user", "content": message}, {"role": "assistant", "content": reply}]
            text = tokenizer.apply_chat_template(chat, tokenize=False)
            found.append(model(**tokenizer(text, add_special_tokens=False, return_tensors="pt")).logits[0])
    return torch.stack(found)


def logprobs(folder: Path, asked: Sequence[Asked]) -> torch.Tensor:
    """[replies]: a policy's log-probability of each reply to its message, summed over tokens and the eos.

    The folder may be an adapter.
    """
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    found = []
    with torch.no_grad():
        for message, reply in asked:
            prompt = _prompt(tokenizer, message)
            chat = [{"role": "user", "content": message}, {"role": "assistant", "content": reply}]
            whole = tokenizer.apply_chat_template(chat, tokenize=False)
            if whole == prompt:  # a template of prompts alone
                whole = f"{prompt} {reply}"
            first = len(tokenizer(prompt, add_special_tokens=False)["input_ids"])
            row = tokenizer(whole, add_special_tokens=False)["input_ids"]
            ids = torch.tensor([row if row[-1] == tokenizer.eos_token_id else [*row, tokenizer.eos_token_id]])
            of_tokens = model(input_ids=ids).logits[0, :-1].log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0]
            found.append(of_tokens[first - 1 :].sum())
    return torch.stack(found)


def replies(folder: Path, messages: Sequence[str], tokens: int, seed: int = 0, samples: int = 1) -> list[str]:
    """Sampled replies of a policy at temperature 1, `samples` to each message."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    torch.manual_seed(seed)
    found = []
    for message in messages:
        batch = tokenizer(_prompt(tokenizer, message), add_special_tokens=False, return_tensors="pt")
        made = model.generate(
            **batch, do_sample=True, temperature=1.0, top_k=0, top_p=1.0, max_new_tokens=tokens,
            num_return_sequences=samples,
        )  # fmt: skip
        found += tokenizer.batch_decode(made[:, batch["input_ids"].shape[1] :], skip_special_tokens=True)
    return found


def length_of_walks(folder: Path, samples: int = 20) -> float:
    """Mean tokens that a policy of random walks needs from any letter to the goal, "a"; 10 where it never arrives."""
    starts = "bcdefghijklmnopqrstu"
    walks = replies(folder, starts, tokens=9, samples=samples)
    return sum(walk.find("a") + 1 if "a" in walk else 10 for walk in walks) / len(walks)


def _prompt(tokenizer, message: str) -> str:
    """The message as a chat; as it is where the tokenizer has no template."""
    if not tokenizer.chat_template:
        return message
    chat = [{"role": "user", "content": message}]
    return tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
