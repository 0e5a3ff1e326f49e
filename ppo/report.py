"""What a PPO run tells people and leaves behind: a line an iteration, replies to read, the policy's folder."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from lmgym.console import CONSOLE, say
from lmgym.data.truncation import left_out
from lmgym.distributed.deepspeed_engine import engine_name
from lmgym.distributed.plain_engine import Trained
from lmgym.distributed.ranks import world_size
from lmgym.generation.prompt_fitting import fit_prompts
from lmgym.models.forward.policies import save_policy
from lmgym.models.saving import below
from lmgym.runs.run import Run
from lmgym.training.reporting import show_rejections
from ppo.actor_critic import ActorCritic, save_critic
from ppo.config import PPOConfig
from ppo.task_setups import TaskSetup

SHOWN_SAMPLES = 4
LINE = {
    "reward/mean": "reward",
    "eval/reward/mean": "eval",
    "eval/gold": "gold",
    "eval/gold_gain": "gold's gain",
    "policy/kl": "KL",
    "rollout/reply_tokens": "tokens",
    "policy/clipfrac": "clipped",
    "values/explained_variance": "explained",
    "rollout/tokens_per_second": "tokens/s",
}


def show_plan(config: PPOConfig, setup: TaskSetup, deepspeed: dict | None, iterations: int) -> None:
    """How it will run."""
    o, r = config.optimizer, config.rollout
    say(
        f"{len(setup.tasks):,} tasks to train on, {len(setup.eval_tasks):,} to evaluate on; {iterations} iterations of "
        f"{r.num_rollouts} episodes and {config.updates_an_iteration} updates of {o.global_batch}"
    )
    if setup.rows:
        show_rejections(setup.tally)
    say(f"{engine_name(deepspeed)}, {world_size()} rank(s), {config.policy.precision}; results in {config.output}")


def show_tasks(setup: TaskSetup, tokenizer, room: int) -> None:
    """What the policy will see first of three tasks, in at most `room` tokens."""
    for task in setup.tasks[:3]:
        for agent, seen in setup.environment().reset(task, 0).items():
            [prompt] = fit_prompts(tokenizer, [seen.prompt], room)
            lost = left_out(prompt.dropped_turns, prompt.shortened)
            CONSOLE.rule(f"{agent}: {len(prompt.ids)} tokens{lost and f', {lost}'}", style="dim")
            CONSOLE.print(prompt.text, soft_wrap=True)


def show_line(run: Run, iteration: int, iterations: int, metrics: Mapping[str, float]) -> None:
    """An iteration in one line, by the main rank."""
    if not run.is_main:
        return
    shown = [f"{label} {metrics[name]:.3g}" for name, label in LINE.items() if name in metrics]
    say(f"iteration {iteration + 1}/{iterations}: {', '.join(shown)}")


def show_samples(rows: Sequence[Mapping[str, Any]], update: int, drawn: str) -> None:
    """Some replies after so many updates, how they were `drawn`, and their scores; nothing where there are none."""
    if not rows:
        return
    title = f"replies to held-out prompts after {update:,} updates: {drawn}"
    table = Table(title=title, title_justify="left")
    scorers = sorted({name for row in rows for name in row["scores"]})
    watched = sorted({name for row in rows for name in row.get("watched", ())})
    for name in ("prompt", "reply"):
        table.add_column(name, overflow="fold")
    for name in ("tokens", "reward", *scorers, *(f"{n}, watched" if n in scorers else n for n in watched)):
        table.add_column(name, justify="right")
    for row in rows[:SHOWN_SAMPLES]:
        prompt = row["prompt"].removesuffix("\nBot:").rpartition("\n")[2]
        reward = row["reward"] if not isinstance(row["reward"], tuple) else sum(row["reward"])
        opinions = [f"{row['scores'][name]:.2f}" if name in row["scores"] else "" for name in scorers]
        heard = row.get("watched", {})
        opinions += [f"{heard[name]:.2f}" if name in heard else "" for name in watched]
        earned = "failed" if reward is None else f"{reward:.2f}"
        table.add_row(prompt, row["reply"].strip(), str(row["tokens"]), earned, *opinions)
    CONSOLE.print(table)


def write_samples(run: Run, name: str, update: int, rows: Sequence[Mapping[str, Any]]) -> None:
    """A file of replies, a row each, under samples/."""
    if rows:
        run.write_lines(f"samples/{name}-{update:06d}.jsonl", [{"update": update, **row} for row in rows])


def save_results(config: PPOConfig, engine: Trained, tokenizer, run: Run, metrics: Mapping[str, float]) -> Path:
    """The policy as an ordinary folder, and its critic beside it. The weights are gathered on all ranks."""
    state = engine.gather()
    if not run.is_main:
        return run.folder
    actor: ActorCritic = engine.module  # type: ignore[assignment]
    save_critic(actor.critic, state, run.folder / "critic", tokenizer)
    folder = save_policy(actor.policy, below(state, "policy."), run.folder, tokenizer, merge=True)
    (folder / "README.md").write_text(_card(config, metrics or _last_figures(run)), encoding="utf-8")
    return folder


def _last_figures(run: Run) -> dict[str, float]:
    """Of a run that was stopped after its last iteration, and comes back only to save."""
    line = json.loads((run.folder / "metrics.jsonl").read_text().splitlines()[-1])
    return {name: value for name, value in line.items() if isinstance(value, float) and name != "time"}


def _card(config: PPOConfig, metrics: Mapping[str, float]) -> str:
    figures = "\n".join(f"| {name} | {value:.4f} |" for name, value in sorted(metrics.items()))
    return f"""---
library_name: transformers
pipeline_tag: text-generation
tags:
- lmgym
- ppo
---

# {config.name}

A causal language model: `{config.policy.model}`, optimised by lmgym's PPO against
`{config.reward.scorers or "a reward of its own"}`. Render a chat with the tokenizer's own chat template
(`add_generation_prompt=True`) and tokenize it with `add_special_tokens=False`; a reply ends with an eos token.

## Last evaluation and iteration

`eval/`, `metrics/` and `alarm/` are of this policy. All else is of the last iteration, whose replies, and so the KL,
are from before its updates.

| measure | value |
|---|---|
{figures}
"""
