"""A reward model on one page: a scorer of replies learns from pairs of which people preferred one.

A causal model gets a linear head on its last hidden state: s(x, y) is one number for a prompt x with a reply y. In the
model of Bradley and Terry (1952) y_w is preferred to y_l with probability sigma(s(x, y_w) - s(x, y_l)). The loss is the
mean of the negative log-likelihood over pairs, in nats (Ouyang et al. 2022, 2203.02155, eq. 1):

    L = - mean log sigma(s(x, y_w) - s(x, y_l))

A scorer that gives all replies one score has a loss of log 2 = .693. Only differences are learned: scores have no zero.
The head begins as normal with std 1 / sqrt(width + 1) (Stiennon et al. 2020, 2009.01325).

    python recipes/reward.py                    # SmolLM2-135M learns that short answers are preferred
    python recipes/reward.py --data pairs.jsonl --model FOLDER_OR_HUB_ID --lr 1e-5 --steps 200

Rows are JSON lines: {"prompt": ..., "chosen": ..., "rejected": ...}, each a text or a list of messages.
"""

import json
import math
import random
import sys
import time
from argparse import ArgumentDefaultsHelpFormatter, ArgumentParser, Namespace
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AutoModelForSequenceClassification, AutoTokenizer

Messages = list[dict[str, str]]

CAPITALS = """
France Paris, Italy Rome, Spain Madrid, Germany Berlin, Austria Vienna, Greece Athens, Poland Warsaw, Portugal Lisbon,
Ireland Dublin, Norway Oslo, Sweden Stockholm, Denmark Copenhagen, Finland Helsinki, Hungary Budapest, Belgium Brussels,
Egypt Cairo, Kenya Nairobi, Japan Tokyo, China Beijing, India New Delhi, Thailand Bangkok, Cuba Havana, Peru Lima,
Chile Santiago, Canada Ottawa, Russia Moscow, Iran Tehran, Iraq Baghdad, Turkey Ankara, England London,
Scotland Edinburgh, Argentina Buenos Aires"""


# --- the formula


def pairwise_loss(chosen: Tensor, rejected: Tensor) -> Tensor:
    """The mean of -log sigma(chosen - rejected) over pairs, from their scores [pairs]."""
    return -F.logsigmoid(chosen - rejected).mean()


# --- the model


def load_scorer(name: str, seed: int):
    """A causal model's trunk with a new head of one output, in fp32."""
    # fp32 weights: an update at these learning rates would vanish in the rounding of bf16
    model = AutoModelForSequenceClassification.from_pretrained(name, num_labels=1, dtype=torch.float32)
    if not hasattr(model, "score"):
        sys.exit(f"{name} is a {model.config.model_type}, which has no head on its last token; needed: a decoder")
    generator = torch.Generator().manual_seed(seed)
    width = model.score.in_features
    with torch.no_grad():
        model.score.weight.copy_(torch.randn(1, width, generator=generator) / math.sqrt(width + 1))
    return model


def scores(model, batch: dict[str, Tensor]) -> Tensor:
    """Scores [rows], each read at the last token of its row: the only one that has seen all of it."""
    states = model.base_model(**batch, use_cache=False).last_hidden_state
    last = batch["attention_mask"].sum(1) - 1  # padding is on the right
    return model.score(states[torch.arange(len(last), device=last.device), last])[:, 0]


# --- data


class Pair(NamedTuple):
    """Two whole chats as ids, which differ in the last reply."""

    chosen: list[int]
    rejected: list[int]


def built_in_rows() -> list[dict[str, Any]]:
    """Choices of people who like short answers."""
    rows = []
    for pair in CAPITALS.split(","):
        country, city = pair.split(maxsplit=1)
        short, long = f"{city}.", f"The capital of {country} is {city}."
        rows.append({"prompt": f"What is the capital of {country}?", "chosen": short, "rejected": long})
    return rows


def read_rows(path: str) -> list[dict[str, Any]]:
    """The rows of a JSONL file."""
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file if line.strip()]


def messages(value: str | Messages, role: str) -> Messages:
    """A text as one message of that role; messages as they are."""
    return [{"role": role, "content": value}] if isinstance(value, str) else value


def encode(tokenizer, row: dict[str, Any]) -> Pair:
    """Both chats of a row, by the tokenizer's template."""
    prompt = messages(row["prompt"], "user")
    sides = [prompt + messages(row[side], "assistant") for side in Pair._fields]
    return Pair(*(tokenizer.apply_chat_template(chat, tokenize=True, return_dict=False) for chat in sides))


def collate(pairs: list[Pair], pad_id: int) -> dict[str, Tensor]:
    """Ids and attention mask [2 pairs, time] of all chosen chats, then all rejected ones, padded on the right."""
    rows = [pair.chosen for pair in pairs] + [pair.rejected for pair in pairs]
    longest = max(map(len, rows))
    return {
        "input_ids": torch.tensor([ids + [pad_id] * (longest - len(ids)) for ids in rows]),
        "attention_mask": torch.tensor([[1] * len(ids) + [0] * (longest - len(ids)) for ids in rows]),
    }


def shuffled_batches(pairs: list[Pair], size: int, seed: int) -> Iterator[list[Pair]]:
    """Batches without end, in another order each epoch; the last of an epoch may be smaller."""
    order = random.Random(seed)
    while True:
        epoch = order.sample(pairs, len(pairs))
        yield from (epoch[i : i + size] for i in range(0, len(epoch), size))


# --- training


def loss_of(model, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """The loss of a collated batch, and the differences of scores [pairs], which are above 0 where it is right."""
    chosen, rejected = scores(model, batch).chunk(2)
    return pairwise_loss(chosen, rejected), (chosen - rejected).detach()


def to_device(batch: dict[str, Tensor], device: str) -> dict[str, Tensor]:
    """The batch on the model's device."""
    return {name: tensor.to(device) for name, tensor in batch.items()}


@torch.no_grad()
def evaluate(model, pairs: list[Pair], args: Namespace, pad_id: int) -> str:
    """Loss and accuracy over held-out pairs, in words."""
    model.eval()
    parts = [pairs[i : i + args.batch] for i in range(0, len(pairs), args.batch)]
    differences = torch.cat([loss_of(model, to_device(collate(part, pad_id), args.device))[1] for part in parts])
    model.train()
    right = (differences > 0).sum().item()
    return f"loss {-F.logsigmoid(differences).mean().item():.3f}, {right} of {len(pairs)} right"


def parse(argv: list[str] | None) -> Namespace:
    """The settings of a run."""
    p = ArgumentParser(description=(__doc__ or "").splitlines()[0], formatter_class=ArgumentDefaultsHelpFormatter)
    p.add_argument("--model", default="outputs/models/smollm2-135m", help="folder or hub id of a decoder")
    p.add_argument("--data", help="JSONL file of pairs; without it: 32 questions about capitals")
    p.add_argument("--lr", type=float, default=1e-5, help="learning rate of AdamW, constant")
    p.add_argument("--steps", type=int, default=8, help="updates")
    p.add_argument("--batch", type=int, default=8, help="pairs of an update")
    p.add_argument("--held_out", type=int, default=8, help="pairs whose prompts are for evaluation")
    p.add_argument("--max_length", type=int, default=512, help="pairs with a chat of more tokens are left out")
    p.add_argument("--out", default="outputs/recipes/reward", help="folder of the trained scorer")
    here = ["cpu", *["cuda"] * torch.cuda.is_available(), *["mps"] * torch.backends.mps.is_available()]
    p.add_argument("--device", default="cuda" if "cuda" in here else "cpu", choices=here, help="of this machine's")
    p.add_argument("--seed", type=int, default=0, help="of the head, the split and the order of pairs")
    return p.parse_args(argv)


def main(argv: list[str] | None = None) -> list[float]:
    """Train, evaluate and save; the loss of each update."""
    args = parse(argv)
    torch.manual_seed(args.seed)
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    model = load_scorer(args.model, args.seed).to(args.device)
    pad_id = tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id  # masked: any id
    model.config.pad_token_id = pad_id  # transformers asks for one when others score batches

    # 1. the pairs, some prompts with all theirs held out
    rows = read_rows(args.data) if args.data else built_in_rows()
    random.Random(args.seed).shuffle(rows)
    kept = {str(row["prompt"]) for row in rows[: min(args.held_out, len(rows) // 2)]}
    encoded = [(str(row["prompt"]), encode(tokenizer, row)) for row in rows]
    pairs = [(prompt, pair) for prompt, pair in encoded if max(map(len, pair)) <= args.max_length]
    train, held_out = ([pair for prompt, pair in pairs if (prompt in kept) == side] for side in (False, True))
    if not train or not held_out:
        sys.exit(f"{args.data}: {len(train)} pairs to train on, {len(held_out)} held out; needed: 2 prompts or more")
    print(f"{len(train)} pairs to train on, {len(held_out)} held out, {len(rows) - len(pairs)} left out")
    before = evaluate(model, held_out, args, pad_id)

    # 2. the updates
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.0)
    losses = []
    batches = shuffled_batches(train, args.batch, args.seed)
    for step in range(1, args.steps + 1):
        start = time.perf_counter()
        loss, differences = loss_of(model, to_device(collate(next(batches), pad_id), args.device))
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).item()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        right, seconds = (differences > 0).float().mean().item(), time.perf_counter() - start
        figures = f"loss {losses[-1]:.3f}  right {right:.2f}  gradient {norm:.2f}  {seconds:.1f} s"
        print(f"step {step}/{args.steps}  {figures}")

    # 3. the scorer after, and its folder
    print(f"held out: {before} -> {evaluate(model, held_out, args, pad_id)}")
    model.save_pretrained(args.out)
    tokenizer.save_pretrained(args.out)
    print(f"saved {args.out}")
    return losses


if __name__ == "__main__":
    main()
