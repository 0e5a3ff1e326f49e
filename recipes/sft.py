"""Supervised fine-tuning (SFT) on one page: a language model learns to reply as the assistant does in example chats.

A chat becomes tokens x_1 ... x_T by the model's own chat template. m_t is 1 where x_t is a token of a reply or the
end-of-sequence token (eos) that ends one, and 0 elsewhere. The loss of a batch is the mean over its reply tokens, in
nats:

    L = - sum_t m_t log p(x_t | x_1 ... x_{t-1}) / sum_t m_t

What the user says is context and has no loss (Touvron et al. 2023, Llama 2, 2307.09288, section 3.1). Two mistakes are
common and silent: logits that are not shifted (those at t are of token t + 1), and labels without the eos, after which
no reply ever ends.

    python recipes/sft.py                       # SmolLM2-135M learns to answer in one word
    python recipes/sft.py --data chats.jsonl --model FOLDER_OR_HUB_ID --lr 1e-5 --steps 200

Rows are JSON lines: {"messages": [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}, ...]}
"""

import json
import random
import sys
import time
from argparse import ArgumentDefaultsHelpFormatter, ArgumentParser, Namespace
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

IGNORED = -100  # the label that torch's cross entropy leaves out

CAPITALS = """
France Paris, Italy Rome, Spain Madrid, Germany Berlin, Austria Vienna, Greece Athens, Poland Warsaw, Portugal Lisbon,
Ireland Dublin, Norway Oslo, Sweden Stockholm, Denmark Copenhagen, Finland Helsinki, Hungary Budapest, Belgium Brussels,
Egypt Cairo, Kenya Nairobi, Japan Tokyo, China Beijing, India New Delhi, Thailand Bangkok, Cuba Havana, Peru Lima,
Chile Santiago, Canada Ottawa, Russia Moscow, Iran Tehran, Iraq Baghdad, Turkey Ankara, England London,
Scotland Edinburgh, Argentina Buenos Aires"""


# --- the formula


def sft_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean negative log-likelihood, in nats, of the labels that are not IGNORED.

    logits: [batch, time, vocabulary]; labels: [batch, time], unshifted: the logits at t are of the label at t + 1.
    """
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=IGNORED)


# --- data


class Example(NamedTuple):
    """A chat as tokens; labels are the ids of replies and their eos, and IGNORED elsewhere."""

    ids: list[int]
    labels: list[int]


def built_in_rows() -> list[dict[str, Any]]:
    """Questions that are answered in one word."""
    pairs = [pair.split(maxsplit=1) for pair in CAPITALS.split(",")]
    return [{"messages": chat(f"What is the capital of {country}?", f"{city}.")} for country, city in pairs]


def chat(question: str, answer: str) -> list[dict[str, str]]:
    """One exchange as messages."""
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def read_rows(path: str) -> list[dict[str, Any]]:
    """The rows of a JSONL file."""
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file if line.strip()]


def tokens(tokenizer, messages: list[dict[str, str]], prompt: bool = False) -> list[int]:
    """Ids of a chat by the tokenizer's template; with `prompt` they end where the assistant's reply begins."""
    return tokenizer.apply_chat_template(messages, add_generation_prompt=prompt, tokenize=True, return_dict=False)


def encode(tokenizer, messages: list[dict[str, str]]) -> Example:
    """A chat up to its last reply. Every reply of the assistant is learned, with an eos behind it."""
    ids: list[int] = []
    labels: list[int] = []
    for i, message in enumerate(messages):
        if message["role"] == "assistant":
            prompt = tokens(tokenizer, messages[:i], prompt=True)  # what the model is given when it generates
            whole = tokens(tokenizer, messages[: i + 1])
            earlier = ids[:-1]
            if whole[: len(prompt)] != prompt or prompt[: len(earlier)] != earlier:
                raise ValueError("the chat template rewrites earlier turns; needed: one that appends, as ChatML does")
            reply = up_to(tokenizer.eos_token_id, whole[len(prompt) :])
            ids = [*prompt, *reply, tokenizer.eos_token_id]
            labels += [IGNORED] * (len(prompt) - len(labels)) + [*reply, tokenizer.eos_token_id]
    return Example(ids, labels)


def up_to(end: int, ids: list[int]) -> list[int]:
    """The ids before the first `end`: a template may write it, and a line break, behind a reply."""
    return ids[: ids.index(end)] if end in ids else ids


def collate(examples: list[Example], pad_id: int) -> dict[str, Tensor]:
    """Ids, attention mask and labels, [batch, time] each, padded on the right."""
    longest = max(len(example.ids) for example in examples)
    rows = [(example, longest - len(example.ids)) for example in examples]
    return {
        "input_ids": torch.tensor([example.ids + [pad_id] * gap for example, gap in rows]),
        "attention_mask": torch.tensor([[1] * len(example.ids) + [0] * gap for example, gap in rows]),
        "labels": torch.tensor([example.labels + [IGNORED] * gap for example, gap in rows]),
    }


def shuffled_batches(examples: list[Example], size: int, seed: int) -> Iterator[list[Example]]:
    """Batches without end, in another order each epoch; the last of an epoch may be smaller."""
    order = random.Random(seed)
    while True:
        epoch = order.sample(examples, len(examples))
        yield from (epoch[i : i + size] for i in range(0, len(epoch), size))


# --- training


def loss_of(model, batch: dict[str, Tensor]) -> Tensor:
    """The loss of a collated batch by a causal model."""
    logits = model(batch["input_ids"], attention_mask=batch["attention_mask"], use_cache=False).logits
    return sft_loss(logits, batch["labels"])


def to_device(batch: dict[str, Tensor], device: str) -> dict[str, Tensor]:
    """The batch on the model's device."""
    return {name: tensor.to(device) for name, tensor in batch.items()}


@torch.no_grad()
def evaluate(model, examples: list[Example], args: Namespace, pad_id: int) -> float:
    """The mean loss of a reply token over held-out examples."""
    model.eval()
    total = count = 0.0
    for i in range(0, len(examples), args.batch):
        batch = to_device(collate(examples[i : i + args.batch], pad_id), args.device)
        tokens_here = (batch["labels"][:, 1:] != IGNORED).sum().item()
        total, count = total + loss_of(model, batch).item() * tokens_here, count + tokens_here
    model.train()
    return total / count


@torch.no_grad()
def best_reply(model, tokenizer, prompt: list[dict[str, str]], device: str) -> str:
    """The likeliest reply to a prompt, of at most 32 tokens."""
    ids = torch.tensor([tokens(tokenizer, prompt, prompt=True)], device=device)
    settings = {"do_sample": False, "max_new_tokens": 32, "pad_token_id": tokenizer.pad_token_id}
    out = model.generate(
        ids, attention_mask=torch.ones_like(ids), eos_token_id=tokenizer.eos_token_id, use_cache=True, **settings
    )
    return tokenizer.decode(out[0, ids.shape[1] :], skip_special_tokens=True)


def parse(argv: list[str] | None) -> Namespace:
    """The settings of a run."""
    p = ArgumentParser(description=(__doc__ or "").splitlines()[0], formatter_class=ArgumentDefaultsHelpFormatter)
    p.add_argument("--model", default="outputs/models/smollm2-135m", help="folder or hub id of a chat model")
    p.add_argument("--data", help="JSONL file of messages; without it: 32 questions about capitals")
    p.add_argument("--lr", type=float, default=2e-5, help="learning rate of AdamW, constant")
    p.add_argument("--steps", type=int, default=12, help="updates")
    p.add_argument("--batch", type=int, default=8, help="chats of an update")
    p.add_argument("--held_out", type=int, default=8, help="rows to evaluate on, at most half of all")
    p.add_argument("--max_length", type=int, default=512, help="chats with more tokens are left out")
    p.add_argument("--out", default="outputs/recipes/sft", help="folder of the trained model")
    here = ["cpu", *["cuda"] * torch.cuda.is_available(), *["mps"] * torch.backends.mps.is_available()]
    p.add_argument("--device", default="cuda" if "cuda" in here else "cpu", choices=here, help="of this machine's")
    p.add_argument("--seed", type=int, default=0, help="of the split and the order of rows")
    return p.parse_args(argv)


def main(argv: list[str] | None = None) -> list[float]:
    """Train, evaluate and save; the loss of each update."""
    args = parse(argv)
    torch.manual_seed(args.seed)
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    # fp32 weights: an update at these learning rates would vanish in the rounding of bf16
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32).to(args.device)
    pad_id = tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id  # masked: any id

    # 1. the rows, some of them held out
    rows = [row["messages"] for row in (read_rows(args.data) if args.data else built_in_rows())]
    random.Random(args.seed).shuffle(rows)
    encoded = [(row, example) for row in rows if (example := encode(tokenizer, row)).ids]
    encoded = [(row, example) for row, example in encoded if len(example.ids) <= args.max_length]
    if len(encoded) < 2:
        sys.exit(f"{args.data}: {len(encoded)} chats with a reply within {args.max_length} tokens; needed: 2 or more")
    cut = min(args.held_out, len(encoded) // 2)
    held_out, train = ([example for _, example in part] for part in (encoded[:cut], encoded[cut:]))
    print(f"{len(train)} chats to train on, {len(held_out)} held out, {len(rows) - len(encoded)} left out")

    # 2. the model before
    asked = encoded[0][0]
    while asked.pop()["role"] != "assistant":  # the last reply, and what comes after it
        pass
    before, said = evaluate(model, held_out, args, pad_id), best_reply(model, tokenizer, asked, args.device)

    # 3. the updates
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.0)
    losses = []
    batches = shuffled_batches(train, args.batch, args.seed)
    for step in range(1, args.steps + 1):
        start = time.perf_counter()
        loss = loss_of(model, to_device(collate(next(batches), pad_id), args.device))
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).item()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        seconds = time.perf_counter() - start
        print(f"step {step}/{args.steps}  loss {losses[-1]:.3f}  gradient {norm:.2f}  {seconds:.1f} s")

    # 4. the model after
    print(f"held-out loss a token {before:.3f} -> {evaluate(model, held_out, args, pad_id):.3f}")
    print(f"{asked[-1]['content']!r}: {said!r} -> {best_reply(model, tokenizer, asked, args.device)!r}")
    model.save_pretrained(args.out)
    tokenizer.save_pretrained(args.out)
    print(f"saved {args.out}")
    return losses


if __name__ == "__main__":
    main()
