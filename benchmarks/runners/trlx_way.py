"""trlx's way of PPO with a shared trunk, written anew: what its users' runs spend their time on, without its packages.

What trlx does, and this does alike (../shared/reference/ppo.md has the facts):
- transformers' `generate` on prompts padded on the left; then a forward of the whole rectangle through the whole model,
  with logits at every position, for log-probs and values; then, for the reference, the whole model once more, and the
  frozen copy of its top layers over the states below them.
- Each epoch runs the trunk again on the same rectangle, with logits and log-softmax at every position.
- bf16 is autocast around the forwards; sampling, which does not go through the wrapped model, stays in fp32.
Left out: decoding the replies and tokenising them again, and trlx's defects in masks and whitening. The losses here are
those that all contenders have in common, so that they can be compared.

Variants: `hydra` (num_layers_unfrozen of the spec), `shared_head` (all layers trained, the reference a whole copy), and
`own_critic`, which trlx does not have: TRL's algorithm, so that the losses below are held against TRL's.
"""

from ppo_interface import Clock, Memory, PPOSpec, Rollout, parse_paths, read_rollouts, read_spec, write_result  # isort: skip

import copy
from dataclasses import dataclass

import torch
from safetensors.torch import load_file
from torch import nn
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification
from transformers.masking_utils import create_causal_mask


class PolicyAndValues(nn.Module):
    """A Llama with a value head or a critic, and what its reference needs besides."""

    def __init__(self, spec: PPOSpec) -> None:
        super().__init__()
        self.policy = AutoModelForCausalLM.from_pretrained(spec.policy, dtype=torch.float32)
        if spec.variant == "own_critic":
            self.critic = AutoModelForSequenceClassification.from_pretrained(spec.critic, dtype=torch.float32)
            self.value_head = self.critic.score
        else:
            weights = load_file(spec.value_head)
            wide, width = weights["0.weight"].shape
            self.critic = None
            self.value_head = nn.Sequential(nn.Linear(width, wide), nn.ReLU(), nn.Linear(wide, 1))
            self.value_head.load_state_dict(weights)
        self.unfrozen = spec.num_layers_unfrozen if spec.variant == "hydra" else -1
        layers = self.policy.model.layers
        if self.unfrozen < 0:
            self.reference_model = copy.deepcopy(self.policy).requires_grad_(False)
            return
        self.branch = copy.deepcopy(nn.ModuleList(layers[-self.unfrozen :])).requires_grad_(False)
        self.branch_norm = copy.deepcopy(self.policy.model.norm).requires_grad_(False)
        self.branch_head = copy.deepcopy(self.policy.lm_head).requires_grad_(False)
        for module in (self.policy.model.embed_tokens, *layers[: -self.unfrozen]):
            module.requires_grad_(False)

    def forward(self, batch: "Batch") -> tuple[torch.Tensor, torch.Tensor, tuple[torch.Tensor, ...]]:
        """Logits[batch, time, vocabulary], values[batch, time], states before each layer and after the last."""
        out = self.policy(**batch.inputs, output_hidden_states=True, use_cache=False)
        states = out.hidden_states
        last = states[-1] if self.critic is None else self.critic.model(**batch.inputs, use_cache=False)[0]
        with torch.autocast("cpu", enabled=False):  # trlx keeps the value head in fp32
            values = self.value_head(last.float()).squeeze(-1)
        return out.logits, values, states

    def reference(self, batch: "Batch") -> torch.Tensor:
        """Logits of the frozen weights; a hydra runs the whole policy for the states below its branch."""
        if self.unfrozen < 0:
            return self.reference_model(**batch.inputs, use_cache=False).logits
        states = self(batch)[2][-self.unfrozen - 1]
        model, positions = self.policy.model, batch.inputs["position_ids"]
        mask = create_causal_mask(
            config=model.config,
            inputs_embeds=states,
            attention_mask=batch.inputs["attention_mask"],
            past_key_values=None,
            position_ids=positions,
        )
        rotation = model.rotary_emb(states, position_ids=positions)
        for layer in self.branch:
            states = layer(states, attention_mask=mask, position_embeddings=rotation, position_ids=positions)
        return self.branch_head(self.branch_norm(states))


@dataclass(frozen=True)
class Batch:
    """Prompts padded on the left, replies of one length behind them."""

    inputs: dict[str, torch.Tensor]
    "input_ids, attention_mask, position_ids, each [batch, time]"
    replies: int
    "tokens of a reply"

    def __getitem__(self, rows: list[int]) -> "Batch":
        return Batch({name: tensor[rows] for name, tensor in self.inputs.items()}, self.replies)

    def reply(self, by_position: torch.Tensor) -> torch.Tensor:
        """[batch, replies] of [batch, time]: what stands at the position before each token of the reply."""
        return by_position[:, -self.replies - 1 : -1]

    def logprobs(self, logits: torch.Tensor) -> torch.Tensor:
        """[batch, replies], by way of the log-softmax at every position, as trlx does."""
        every = logits[:, :-1].float().log_softmax(-1)
        return every.gather(-1, self.inputs["input_ids"][:, 1:, None]).squeeze(-1)[:, -self.replies :]


def pad_prompts(rows: list[Rollout]) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and mask[batch, longest prompt]."""
    longest = max(len(row.prompt_ids) for row in rows)
    ids = torch.zeros(len(rows), longest, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for i, row in enumerate(rows):
        ids[i, longest - len(row.prompt_ids) :] = torch.tensor(row.prompt_ids)
        mask[i, longest - len(row.prompt_ids) :] = 1
    return ids, mask


@torch.no_grad()
def sample(model: PolicyAndValues, rows: list[Rollout], spec: PPOSpec) -> Batch:
    """Replies of the length that all contenders train, or those of the file."""
    ids, mask = pad_prompts(rows)
    if spec.replay:
        ids = torch.cat((ids, torch.tensor([row.reply_ids for row in rows])), dim=1)
    else:
        model.policy.generation_config.eos_token_id = None  # nothing ends a reply before its length
        ids = model.policy.generate(
            input_ids=ids,
            attention_mask=mask,
            do_sample=True,
            temperature=spec.temperature,
            top_k=0,
            top_p=1.0,
            max_new_tokens=spec.new_tokens,
        )
    mask = torch.cat((mask, torch.ones(len(rows), spec.new_tokens, dtype=torch.long)), dim=1)
    assert ids.shape == mask.shape
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    return Batch({"input_ids": ids, "attention_mask": mask, "position_ids": positions}, spec.new_tokens)


@torch.no_grad()
def score(reward_model, batch: Batch) -> torch.Tensor:
    """[batch]: the logit at the last token, which stands in the last column."""
    states = reward_model.model(**batch.inputs, use_cache=False).last_hidden_state
    return reward_model.score(states[:, -1]).squeeze(-1).float()


def gae(rewards: torch.Tensor, values: torch.Tensor, gamma: float, lam: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Whitened advantages and returns, [batch, time]; replies are of one length, so there is no mask."""
    advantages, running = torch.zeros_like(rewards), torch.zeros(len(rewards))
    for t in reversed(range(rewards.shape[1])):
        following = values[:, t + 1] if t + 1 < rewards.shape[1] else 0.0
        running = rewards[:, t] + gamma * following - values[:, t] + gamma * lam * running
        advantages[:, t] = running
    returns = advantages + values
    return (advantages - advantages.mean()) * (advantages.var() + 1e-8).rsqrt(), returns


@dataclass(frozen=True)
class Experience:
    """The inputs of the epochs, [batch, replies] each."""

    batch: Batch
    logprobs: torch.Tensor
    values: torch.Tensor
    advantages: torch.Tensor
    returns: torch.Tensor


@torch.no_grad()
def judge(model: PolicyAndValues, batch: Batch, scores: torch.Tensor, spec: PPOSpec, clock: Clock) -> Experience:
    """Log-probs, values, reference, rewards, advantages."""
    logits, values, _ = clock.timed("old log-probs and values", model)(batch)
    logprobs, values = batch.logprobs(logits), batch.reply(values)
    del logits
    reference = batch.logprobs(clock.timed("reference", model.reference)(batch))
    rewards = -spec.kl_coef * (logprobs - reference)
    rewards[:, -1] += scores
    return Experience(batch, logprobs, values, *gae(rewards, values, spec.gamma, spec.lam))


def losses(
    model: PolicyAndValues, past: Experience, rows: list[int], spec: PPOSpec
) -> tuple[torch.Tensor, torch.Tensor]:
    """Policy and value loss of some rows, means over their tokens."""
    batch = past.batch[rows]
    logits, values, _ = model(batch)
    ratio = (batch.logprobs(logits) - past.logprobs[rows]).exp()
    values, old, returns = batch.reply(values), past.values[rows], past.returns[rows]
    clipped = torch.clamp(values, old - spec.value_clip, old + spec.value_clip)
    advantages = past.advantages[rows]
    policy = torch.max(-advantages * ratio, -advantages * ratio.clamp(1 - spec.clip, 1 + spec.clip)).mean()
    return policy, 0.5 * torch.max((values - returns) ** 2, (clipped - returns) ** 2).mean()


def train(
    model: PolicyAndValues, past: Experience, optimizer, orders: list[list[int]], spec: PPOSpec, clock: Clock
) -> None:
    """The epochs of one iteration."""
    forward = clock.timed("forward and loss", losses)
    for order in orders:
        for start in range(0, spec.batch, spec.minibatch):
            for micro in range(start, start + spec.minibatch, spec.micro_batch):
                with torch.autocast("cpu", torch.bfloat16, enabled=spec.precision == "bf16"):
                    policy, value = forward(model, past, order[micro : micro + spec.micro_batch], spec)
                clock.add_losses(policy, value)
                loss = (policy + spec.value_coef * value) * (spec.micro_batch / spec.minibatch)
                clock.timed("backward", loss.backward)()
            clock.timed("optimizer", optimizer.step)()
            optimizer.zero_grad()
            clock.end_update()


def main() -> None:
    paths = parse_paths()
    spec = read_spec(paths.spec)
    if spec.variant not in ("hydra", "shared_head", "own_critic"):
        raise ValueError(f"variant={spec.variant!r} must be hydra, shared_head or own_critic")
    torch.manual_seed(spec.seed)
    clock, memory = Clock(spec, paths.profile, paths.count), Memory()
    model = PolicyAndValues(spec).eval()  # no shape has dropout
    reward_model = AutoModelForSequenceClassification.from_pretrained(spec.reward_model, dtype=torch.float32)
    memory.loaded((model, reward_model.eval().requires_grad_(False)))
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=spec.learning_rate, eps=spec.adam_epsilon, weight_decay=0.0, fused=True)
    for rows, orders in zip(read_rollouts(spec), spec.orders, strict=True):
        batch = clock.timed("generation", sample)(model, rows, spec)
        with torch.autocast("cpu", torch.bfloat16, enabled=spec.precision == "bf16"):
            given = torch.tensor([row.score for row in rows])
            scores = given if spec.replay else clock.timed("scores", score)(reward_model, batch)
            past = judge(model, batch, scores, spec, clock)
        train(model, past, optimizer, orders, spec, clock)
        clock.end_iteration()
    write_result(paths.result, "trlx_way", spec, clock, memory, ())


if __name__ == "__main__":
    main()
