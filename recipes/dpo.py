"""Direct preference optimisation (DPO) on one page: a language model learns from pairs, without a reward model.

The policy p that is best for a reward r, less beta times the KL to a reference p_ref, has a closed form. Solved for r,
it says that every policy is the best one for a reward of its own (Rafailov et al. 2023, 2305.18290, eq. 5):

    r(x, y) = beta log(p(y | x) / p_ref(y | x)) + a term of the prompt x alone

In a difference between two replies to one prompt that term cancels. So the loss of a reward model, Bradley and Terry's,
is a loss of the policy itself, for a preferred reply y_w and the other one y_l (eq. 7):

    L = - mean log sigma(beta [log p(y_w | x) / p_ref(y_w | x)  -  log p(y_l | x) / p_ref(y_l | x)])

log p(y | x) is the sum over the reply's tokens, the end-of-sequence token (eos) included. The reference is the model
before the first update, where the loss is log 2 = .693 for every pair.

    python recipes/dpo.py                       # SmolLM2-135M learns that short answers are preferred
    python recipes/dpo.py --data pairs.jsonl --model FOLDER_OR_HUB_ID --lr 1e-6 --steps 200

Rows are JSON lines: {"prompt": ..., "chosen": ..., "rejected": ...}, each a text or a list of messages.
"""

import copy
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

Messages = list[dict[str, str]]
IGNORED = -100  # the label that torch's cross entropy leaves out

CAPITALS = """
France Paris, Italy Rome, Spain Madrid, Germany Berlin, Austria Vienna, Greece Athens, Poland Warsaw, Portugal Lisbon,
Ireland Dublin, Norway Oslo, Sweden Stockholm, Denmark Copenhagen, Finland Helsinki, Hungary Budapest, Belgium Brussels,
Egypt Cairo, Kenya Nairobi, Japan Tokyo, China Beijing, India New Delhi, Thailand Bangkok, Cuba Havana, Peru Lima,
Chile Santiago, Canada Ottawa, Russia Moscow, Iran Tehran, Iraq Baghdad, Turkey Ankara, England London,
Scotland Edinburgh, Argentina Buenos Aires"""


# --- the formulas


def reply_logprobs(logits: Tensor, labels: Tensor) -> Tensor:
    """log p(y | x) [rows] in nats: the sum over the labels that are not IGNORED.

    logits: [rows, time, vocabulary]; labels: [rows, time], unshifted: the logits at t are of the label at t + 1.
    """
    targets = labels[:, 1:]
    losses = F.cross_entropy(logits[:, :-1].flatten(0, 1), targets.flatten(), ignore_index=IGNORED, reduction="none")
    return -losses.view_as(targets).sum(1)


def dpo_loss(policy: Tensor, reference: Tensor, beta: float) -> tuple[Tensor, Tensor]:
    """The mean loss, and the rewards [2, pairs] up to a term of the prompt, chosen before rejected.

    policy, reference: [2, pairs], log p(y | x) of the chosen replies, then of the rejected ones.
    """
    rewards = beta * (policy - reference)
    return -F.logsigmoid(rewards[0] - rewards[1]).mean(), rewards.detach()


# --- data


class Reply(NamedTuple):
    """A prompt with a reply as ids, an eos behind it; the first `start` ids are the prompt's."""

    ids: list[int]
    start: int


Pair = tuple[Reply, Reply]  # chosen, rejected


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


def tokens(tokenizer, chat: Messages, prompt: bool = False) -> list[int]:
    """Ids of a chat by the tokenizer's template; with `prompt` they end where the assistant's reply begins."""
    return tokenizer.apply_chat_template(chat, add_generation_prompt=prompt, tokenize=True, return_dict=False)


def encode(tokenizer, row: dict[str, Any]) -> Pair:
    """Both replies of a row."""
    asked, end = messages(row["prompt"], "user"), tokenizer.eos_token_id
    prompt = tokens(tokenizer, asked, prompt=True)  # what the model is given when it generates

    def side(name: str) -> Reply:
        whole = tokens(tokenizer, asked + messages(row[name], "assistant"))
        if whole[: len(prompt)] != prompt:
            raise ValueError("the chat template changes the prompt before a reply; needed: one that appends")
        reply = whole[len(prompt) :]
        # a template may write an eos, and a line break, behind a reply
        return Reply([*prompt, *(reply[: reply.index(end)] if end in reply else reply), end], len(prompt))

    return side("chosen"), side("rejected")


def collate(pairs: list[Pair], pad_id: int) -> dict[str, Tensor]:
    """Ids, attention mask and labels [2 pairs, time]: all chosen replies, then all rejected; padded on the right."""
    rows = [pair[side] for side in (0, 1) for pair in pairs]
    longest = max(len(row.ids) for row in rows)
    gaps = [longest - len(row.ids) for row in rows]
    labels = [[IGNORED] * row.start + row.ids[row.start :] for row in rows]
    return {
        "input_ids": torch.tensor([row.ids + [pad_id] * gap for row, gap in zip(rows, gaps, strict=True)]),
        "attention_mask": torch.tensor([[1] * (longest - gap) + [0] * gap for gap in gaps]),
        "labels": torch.tensor([row + [IGNORED] * gap for row, gap in zip(labels, gaps, strict=True)]),
    }


def shuffled_batches(pairs: list[Pair], size: int, seed: int) -> Iterator[list[Pair]]:
    """Batches without end, in another order each epoch; the last of an epoch may be smaller."""
    order = random.Random(seed)
    while True:
        epoch = order.sample(pairs, len(pairs))
        yield from (epoch[i : i + size] for i in range(0, len(epoch), size))


# --- training


def logprobs_of(model, batch: dict[str, Tensor]) -> Tensor:
    """log p(y | x) [2, pairs] of a collated batch by a causal model."""
    logits = model(batch["input_ids"], attention_mask=batch["attention_mask"], use_cache=False).logits
    return reply_logprobs(logits, batch["labels"]).view(2, -1)


def loss_of(model, reference, batch: dict[str, Tensor], beta: float) -> tuple[Tensor, Tensor]:
    """The loss of a collated batch, and the rewards [2, pairs]."""
    with torch.no_grad():
        before = logprobs_of(reference, batch)
    return dpo_loss(logprobs_of(model, batch), before, beta)


def to_device(batch: dict[str, Tensor], device: str) -> dict[str, Tensor]:
    """The batch on the model's device."""
    return {name: tensor.to(device) for name, tensor in batch.items()}


@torch.no_grad()
def evaluate(model, reference, pairs: list[Pair], args: Namespace, pad_id: int) -> str:
    """Loss and accuracy over held-out pairs, in words."""
    model.eval()
    parts = [pairs[i : i + args.batch] for i in range(0, len(pairs), args.batch)]
    batches = [to_device(collate(part, pad_id), args.device) for part in parts]
    rewards = torch.cat([loss_of(model, reference, batch, args.beta)[1] for batch in batches], 1)
    model.train()
    margins = rewards[0] - rewards[1]
    return f"loss {-F.logsigmoid(margins).mean().item():.3f}, {(margins > 0).sum().item()} of {len(pairs)} right"


def parse(argv: list[str] | None) -> Namespace:
    """The settings of a run."""
    p = ArgumentParser(description=(__doc__ or "").splitlines()[0], formatter_class=ArgumentDefaultsHelpFormatter)
    p.add_argument("--model", default="outputs/models/smollm2-135m", help="folder or hub id of a chat model")
    p.add_argument("--data", help="JSONL file of pairs; without it: 32 questions about capitals")
    p.add_argument("--lr", type=float, default=5e-6, help="learning rate of AdamW, constant")
    p.add_argument("--beta", type=float, default=0.1, help="weight of the KL to the reference")
    p.add_argument("--steps", type=int, default=8, help="updates")
    p.add_argument("--batch", type=int, default=4, help="pairs of an update")
    p.add_argument("--held_out", type=int, default=8, help="pairs whose prompts are for evaluation")
    p.add_argument("--max_length", type=int, default=512, help="pairs with a chat of more tokens are left out")
    p.add_argument("--out", default="outputs/recipes/dpo", help="folder of the trained model")
    here = ["cpu", *["cuda"] * torch.cuda.is_available(), *["mps"] * torch.backends.mps.is_available()]
    p.add_argument("--device", default="cuda" if "cuda" in here else "cpu", choices=here, help="of this machine's")
    p.add_argument("--seed", type=int, default=0, help="of the split and the order of pairs")
    return p.parse_args(argv)


def main(argv: list[str] | None = None) -> list[float]:
    """Train, evaluate and save; the loss of each update."""
    args = parse(argv)
    torch.manual_seed(args.seed)
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    # fp32 weights: an update at these learning rates would vanish in the rounding of bf16
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32).to(args.device)
    reference = copy.deepcopy(model).eval().requires_grad_(False)
    pad_id = tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id  # masked: any id

    # 1. the pairs, some prompts with all theirs held out
    rows = read_rows(args.data) if args.data else built_in_rows()
    random.Random(args.seed).shuffle(rows)
    kept = {str(row["prompt"]) for row in rows[: min(args.held_out, len(rows) // 2)]}
    encoded = [(str(row["prompt"]), encode(tokenizer, row)) for row in rows]
    pairs = [(prompt, pair) for prompt, pair in encoded if max(len(reply.ids) for reply in pair) <= args.max_length]
    train, held_out = ([pair for prompt, pair in pairs if (prompt in kept) == side] for side in (False, True))
    if not train or not held_out:
        sys.exit(f"{args.data}: {len(train)} pairs to train on, {len(held_out)} held out; needed: 2 prompts or more")
    print(f"{len(train)} pairs to train on, {len(held_out)} held out, {len(rows) - len(pairs)} left out")

    # 2. the updates
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.0)
    losses = []
    batches = shuffled_batches(train, args.batch, args.seed)
    for step in range(1, args.steps + 1):
        start = time.perf_counter()
        batch = to_device(collate(next(batches), pad_id), args.device)
        loss, (chosen, rejected) = loss_of(model, reference, batch, args.beta)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).item()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        figures = f"rewards {chosen.mean().item():+.2f} and {rejected.mean().item():+.2f}  gradient {norm:.2f}"
        print(f"step {step}/{args.steps}  loss {losses[-1]:.3f}  {figures}  {time.perf_counter() - start:.1f} s")

    # 3. the model after, and its folder
    print(f"held out: loss 0.693 -> {evaluate(model, reference, held_out, args, pad_id)}")
    model.save_pretrained(args.out)
    tokenizer.save_pretrained(args.out)
    print(f"saved {args.out}")
    return losses


if __name__ == "__main__":
    main()
