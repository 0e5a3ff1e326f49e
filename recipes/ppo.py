"""PPO and GRPO on one page: a language model learns from the rewards of its own replies.

Each step samples replies, scores them, and makes some updates. p is the policy as it is now, p_old the one that sampled
and p_ref the one before step 1, to which a KL penalty of weight beta keeps p close; rho_t is p(x_t) / p_old(x_t) at the
tokens x_1 ... x_T of a reply, whose reward is r.

PPO (Schulman et al. 2017, 1707.06347) with a value head V, as Ziegler et al. (2019, 1909.08593) train language models:

    rewards     r_t = -beta log(p_old(x_t) / p_ref(x_t)), and r more at the last token           (Ziegler et al., eq. 2)
    advantages  A_t = delta_t + gamma lambda A_{t+1},  delta_t = r_t + gamma V_{t+1} - V_t       (1506.02438, eq. 16)
    policy      mean over tokens of max(-A_t rho_t, -A_t clip(rho_t, 1 - epsilon, 1 + epsilon)), A whitened      (eq. 7)
    values      mean over tokens of max((V - R)^2, (V_old + clip(V - V_old, +-epsilon) - R)^2) / 2,  R = A + V_old

GRPO (Shao et al. 2024, 2402.03300) compares the replies to one prompt instead, and has the KL in its loss:

    advantages  A = (r - mean) / std over the replies to one prompt, for all tokens of a reply           (section 4.1.2)
    policy      mean over replies of the mean over tokens of max(...) as above + beta k3                         (eq. 3)
                k3 = p_ref / p - 1 - log(p_ref / p), an estimate of the KL that is never below 0                 (eq. 4)

    python recipes/ppo.py --method grpo         # or ppo: SmolLM2-135M is rewarded for right and short answers
    python recipes/ppo.py --data prompts.jsonl --reward outputs/recipes/reward --model FOLDER_OR_HUB_ID
Rows are JSON lines: {"prompt": text or messages}, with an "answer", a text, if `reward` below is to look for it.
"""

import copy
import json
import time
from argparse import ArgumentDefaultsHelpFormatter, ArgumentParser, Namespace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

DEFAULTS = {"ppo": {"group": 1, "epochs": 2, "beta": 0.05}, "grpo": {"group": 8, "epochs": 1, "beta": 0.04}}
CAPITALS = "France Paris, Italy Rome, Spain Madrid, Greece Athens, Norway Oslo, Egypt Cairo, Japan Tokyo, Cuba Havana"


def reward(row: dict[str, Any], reply: str) -> float:
    """1 for a reply that has the answer, less .1 for each of its words. Put the reward of your task here."""
    return float(row.get("answer", "") in reply) - 0.1 * len(reply.split())


# --- the formulas: tensors are [replies, time], padded on the right; the mask is true at the tokens of a reply
def mean(x: Tensor, mask: Tensor, dim: int | None = None) -> Tensor:
    """The mean over all tokens, or with dim=1 over those of each reply."""
    return (x * mask).sum(dim) / mask.sum(dim)


def kl_rewards(scores: Tensor, logprobs: Tensor, reference: Tensor, mask: Tensor, beta: float) -> Tensor:
    """-beta times the KL of each token, and the score of a reply at its last one."""
    rewards = -beta * (logprobs - reference) * mask
    rewards[torch.arange(len(scores)), mask.sum(1) - 1] += scores
    return rewards


def gae(rewards: Tensor, values: Tensor, mask: Tensor, gamma: float = 1.0, lam: float = 0.95) -> tuple[Tensor, Tensor]:
    """Advantages and returns, by generalised advantage estimation, from rewards that are 0 where the mask is false."""
    values, advantages = values * mask, torch.zeros_like(values)
    carried = next_value = torch.zeros_like(values[:, 0])
    for t in reversed(range(values.shape[1])):
        delta = rewards[:, t] + gamma * next_value - values[:, t]  # 0 behind a reply, as rewards and values are
        carried = delta + gamma * lam * carried
        next_value, advantages[:, t] = values[:, t], carried
    return advantages, advantages + values


def whiten(x: Tensor, mask: Tensor) -> Tensor:
    """x with mean 0 and variance 1 over all tokens."""
    centred = x - mean(x, mask)
    return centred * (mean(centred**2, mask) + 1e-8) ** -0.5 * mask


def group_advantages(scores: Tensor, group: int) -> Tensor:
    """(score - mean) / (std + 1e-4) among each `group` neighbours of [replies], which answer one prompt."""
    grouped = scores.view(-1, group)
    return ((grouped - grouped.mean(1, keepdim=True)) / (grouped.std(1, keepdim=True) + 1e-4)).flatten()


def ppo_policy_loss(logprobs: Tensor, old: Tensor, advantages: Tensor, epsilon: float) -> Tensor:
    """The clipped loss of each token."""
    ratios = (logprobs - old).exp()
    return torch.maximum(-advantages * ratios, -advantages * ratios.clamp(1 - epsilon, 1 + epsilon))


def value_loss(values: Tensor, old: Tensor, returns: Tensor, epsilon: float) -> Tensor:
    """The clipped loss of each token's value."""
    near = old + (values - old).clamp(-epsilon, epsilon)
    return torch.maximum((values - returns) ** 2, (near - returns) ** 2) / 2


def kl_k3(logprobs: Tensor, reference: Tensor) -> Tensor:
    """The estimate k3 of each token's KL to the reference."""
    return torch.expm1(reference - logprobs) - (reference - logprobs)


class Actor(nn.Module):
    """A causal model, and a value head on its last hidden states, whose values begin at 0."""

    def __init__(self, policy: Any) -> None:
        super().__init__()
        self.policy, width = policy, policy.config.hidden_size
        self.value_head = nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, 1))
        for parameter in self.value_head[2].parameters():
            nn.init.zeros_(parameter)

    def forward(self, ids: Tensor, attention: Tensor, length: int) -> tuple[Tensor, Tensor]:
        """Log-probabilities [rows, length] of each row's last ids, and the values of the states before them."""
        wanted = {"logits_to_keep": length + 1, "output_hidden_states": True, "use_cache": False}
        out = self.policy(ids, attention_mask=attention, position_ids=(attention.cumsum(1) - 1).clamp(min=0), **wanted)
        logprobs = out.logits[:, :-1].log_softmax(-1).gather(2, ids[:, -length:, None])[..., 0]
        return logprobs, self.value_head(out.hidden_states[-1][:, -length - 1 : -1])[..., 0]


class Rollouts(NamedTuple):
    """Replies, and what is known of them before the updates: [replies, time], but for the first two."""

    ids: Tensor  # [replies, prompt + time]
    attention: Tensor  # the same: 1 at tokens that are no padding
    mask: Tensor  # true at the tokens of a reply, its eos included
    logprobs: Tensor
    reference: Tensor
    values: Tensor
    advantages: Tensor
    returns: Tensor


def sample(policy, prompts: list[list[int]], length: int, eos: int) -> tuple[Tensor, Tensor, Tensor]:
    """Ids, attention and mask of a reply to each prompt, drawn from p itself: temperature 1, no top-k, no top-p."""
    longest, device = max(map(len, prompts)), policy.device
    ids = torch.tensor([[eos] * (longest - len(p)) + p for p in prompts], device=device)
    attention = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts], device=device)
    limits: dict[str, Any] = {"max_new_tokens": length, "eos_token_id": eos, "pad_token_id": eos}
    unchanged = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "repetition_penalty": 1.0}
    ids = policy.generate(ids, attention_mask=attention, **limits, **unchanged)
    ends = (ids[:, longest:] == eos).long()
    mask = ends.cumsum(1) - ends == 0  # up to the first eos
    return ids, torch.cat([attention, mask.long()], 1), mask


@torch.no_grad()
def measure(actor, reference, ids: Tensor, attention: Tensor, mask: Tensor, scores: Tensor, args) -> Rollouts:
    """Log-probabilities, values and advantages before the updates."""
    logprobs, values = actor(ids, attention, mask.shape[1])
    before, _ = reference(ids, attention, mask.shape[1])
    if args.method == "grpo":
        advantages, returns = group_advantages(scores, args.group)[:, None] * mask, values
    else:
        advantages, returns = gae(kl_rewards(scores, logprobs, before, mask, args.beta), values, mask)
        advantages = whiten(advantages, mask)
    return Rollouts(ids, attention, mask, logprobs, before, values, advantages, returns)


def losses_of(actor, r: Rollouts, args) -> tuple[Tensor, Tensor]:
    """The losses of policy and values over a minibatch, whose sum is minimised."""
    logprobs, values = actor(r.ids, r.attention, r.mask.shape[1])
    losses = ppo_policy_loss(logprobs, r.logprobs, r.advantages, args.epsilon)
    if args.method == "grpo":
        return mean(losses + args.beta * kl_k3(logprobs, r.reference), r.mask, 1).mean(), torch.zeros(())
    return mean(losses, r.mask), mean(value_loss(values, r.values, r.returns, args.epsilon), r.mask)


def read_rows(path: str) -> list[dict[str, Any]]:
    """The rows of a JSONL file; without a path, questions about capitals."""
    if path:
        with open(path, encoding="utf-8") as file:
            return [json.loads(line) for line in file if line.strip()]
    pairs = [pair.split() for pair in CAPITALS.split(",")]
    return [{"prompt": f"What is the capital of {country}?", "answer": city} for country, city in pairs]


def encode(tokenizer, prompt: str | list[dict[str, str]], reply: str | None = None) -> list[int]:
    """Ids of a prompt up to where its reply begins, or of a prompt with a reply."""
    chat = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    chat = chat if reply is None else [*chat, {"role": "assistant", "content": reply}]
    return tokenizer.apply_chat_template(chat, add_generation_prompt=reply is None, tokenize=True, return_dict=False)


def load_scorer(folder: str, device: str):
    """A reward model that recipes/reward.py saved, to take the place of `reward`."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32).to(device).eval()
    model.requires_grad_(False).config.pad_token_id = None  # it reads one chat at a time, at the last token
    return lambda row, reply: model(torch.tensor([encode(tokenizer, row["prompt"], reply)]).to(device)).logits.item()


def parse(argv: list[str] | None) -> Namespace:
    """The settings of a run."""
    p = ArgumentParser(description=(__doc__ or "").splitlines()[0], formatter_class=ArgumentDefaultsHelpFormatter)
    p.add_argument("--method", choices=["ppo", "grpo"], default="ppo", help="with a value head, or by comparison")
    p.add_argument("--model", default="outputs/models/smollm2-135m", help="folder or hub id of a chat model")
    p.add_argument("--data", default="", help="JSONL file of prompts; without it: questions about capitals")
    p.add_argument("--reward", default="", help="folder of a reward model, in place of `reward` in this file")
    p.add_argument("--lr", type=float, default=2e-5, help="learning rate of AdamW, constant")
    p.add_argument("--steps", type=int, default=6, help="times that replies are sampled and learned from")
    p.add_argument("--rollouts", type=int, default=16, help="replies of a step")
    p.add_argument("--group", type=int, help="replies to a prompt; of grpo 2 or more")
    p.add_argument("--batch", type=int, default=8, help="replies of an update")
    p.add_argument("--epochs", type=int, help="passes over the replies of a step")
    p.add_argument("--beta", type=float, help="weight of the KL to the reference")
    p.add_argument("--epsilon", type=float, default=0.2, help="bound of the ratios, and of a value's change")
    p.add_argument("--length", type=int, default=12, help="most tokens of a reply")
    p.add_argument("--out", default="outputs/recipes/ppo", help="folder of the trained model")
    here = ["cpu", *["cuda"] * torch.cuda.is_available(), *["mps"] * torch.backends.mps.is_available()]
    p.add_argument("--device", default="cuda" if "cuda" in here else "cpu", choices=here, help="of this machine's")
    p.add_argument("--seed", type=int, default=0, help="of prompts and sampling")
    p.set_defaults(**DEFAULTS[p.parse_known_args(argv)[0].method])
    return p.parse_args(argv)


def main(argv: list[str] | None = None) -> list[float]:
    """Train and save; the mean reward of each step."""
    args = parse(argv)
    torch.manual_seed(args.seed)
    tokenizer, rows, rewards = AutoTokenizer.from_pretrained(args.model), read_rows(args.data), []
    policy = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32)  # bf16 would round updates away
    actor = Actor(policy).to(args.device).eval()  # with dropout p would not be the policy that sampled
    reference = copy.deepcopy(actor).requires_grad_(False)
    optimizer = torch.optim.AdamW(actor.parameters(), lr=args.lr, eps=1e-5, weight_decay=0.0)
    score = load_scorer(args.reward, args.device) if args.reward else reward
    for step in range(1, args.steps + 1):
        start = time.perf_counter()
        # 1. sample replies
        asked = [rows[i] for i in torch.randint(len(rows), (args.rollouts // args.group,)) for _ in range(args.group)]
        prompts = [encode(tokenizer, row["prompt"]) for row in asked]
        ids, attention, mask = sample(actor.policy, prompts, args.length, tokenizer.eos_token_id)
        replies = tokenizer.batch_decode(ids[:, -mask.shape[1] :], skip_special_tokens=True)
        # 2. score them
        scores = list(map(score, asked, replies))
        rewards.append(sum(scores) / len(scores))
        # 3. learn from them
        r = measure(actor, reference, ids, attention, mask, torch.tensor(scores, device=args.device), args)
        for _ in range(args.epochs):
            for part in torch.randperm(len(ids)).split(args.batch):
                policy_loss, values_loss = losses_of(actor, Rollouts(*(x[part] for x in r)), args)
                (policy_loss + values_loss).backward()
                torch.nn.utils.clip_grad_norm_(actor.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
        kl, losses = ((r.logprobs - r.reference) * mask).sum(1).mean(), f"{policy_loss:+.3f} and {values_loss:.3f}"
        figures = f"reward {rewards[-1]:.3f}  KL {kl:.2f}  losses {losses}  {time.perf_counter() - start:.1f} s"
        print(f"step {step}/{args.steps}  {figures}  {replies[0]!r}")
    actor.policy.save_pretrained(args.out)
    tokenizer.save_pretrained(args.out)
    print(f"saved {args.out}")
    return rewards


if __name__ == "__main__":
    main()
