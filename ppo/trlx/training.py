"""`trlx.train`: a program of trlx through lmgym's own PPO loop, or its SFT."""

import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from lmgym.distributed.ranks import rank, world_size
from lmgym.environments.protocol import Task
from lmgym.errors import InputError, shown
from lmgym.models.forward.policies import load_policy
from lmgym.models.loading import load_tokenizer
from lmgym.runs.launch import launch
from ppo.config import PPOConfig
from ppo.task_setups import Prepare, TaskSetup, text_with_function
from ppo.train import train as train_ppo
from ppo.trlx.data.configs import TRLConfig
from ppo.trlx.data.default_configs import default_ppo_config, default_sft_config
from ppo.trlx.data.method_configs import NO_ILQL, RFTConfig, SFTConfig
from ppo.trlx.data.method_configs import PPOConfig as Method
from ppo.trlx.functions import Function, adapt_metric, adapt_reward, refuse_unfit
from ppo.trlx.rejection import rft_config
from ppo.trlx.settings import number, ppo_config, show
from ppo.trlx.supervised import train_on_samples

Prompts = Iterable[str | Mapping[str, Any]] | None


@dataclass(frozen=True)
class Trained:
    """The result of `train`: the trained policy, loaded when it is first used."""

    folder: Path
    """a Hugging Face folder"""
    gen_kwargs: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def tokenizer(self) -> Any:
        """The policy's tokenizer."""
        return load_tokenizer(str(self.folder))

    @cached_property
    def model(self) -> Any:
        """The policy, in fp32, on a GPU if there is one."""
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        policy: Any = load_policy(str(self.folder), self.tokenizer)
        return policy.to(device).eval()

    @torch.inference_mode()
    def generate(self, input_ids: Any, attention_mask: Any = None, **kwargs: Any) -> torch.Tensor:
        """Ids [batch, prompt + reply] by transformers' `generate`; settings not given are those of gen_kwargs."""
        given = {"input_ids": input_ids, "attention_mask": attention_mask}
        tensors = {k: torch.as_tensor(ids).to(self.model.device) for k, ids in given.items() if ids is not None}
        ends = {"eos_token_id": self.tokenizer.eos_token_id, "pad_token_id": self.tokenizer.pad_token_id}
        return self.model.generate(**tensors, **{**ends, **self.gen_kwargs, **kwargs})

    def save_pretrained(self, directory: str | Path | None = None) -> None:
        """Copies the folder of the policy; by default to hf_model beside it. On the main rank only."""
        if rank() == 0:
            shutil.copytree(self.folder, directory or self.folder.parent / "hf_model", dirs_exist_ok=True)


def train(
    model_path: str | None = None,
    reward_fn: Function | None = None,
    dataset: Any = None,
    samples: Any = None,
    rewards: Any = None,
    prompts: Prompts = None,
    eval_prompts: Prompts = None,
    metric_fn: Function | None = None,
    config: TRLConfig | None = None,
    stop_sequences: Iterable[str] | None = None,
) -> Trained:
    """Train as trlx does: PPO or RFT on `reward_fn`, or SFT on `samples`.

    Raises InputError for what is not here: ILQL, rewards of given samples, encoder-decoders. Under a launcher
    errors are printed in one line and end the process.
    """
    trained: list[Trained] = []

    def work() -> None:
        if dataset is not None or rewards is not None:
            raise InputError(f"{'dataset' if dataset is not None else 'rewards'}= was given: {NO_ILQL}")
        chosen = config or (default_ppo_config() if reward_fn else default_sft_config())
        chosen = chosen if model_path is None else chosen.evolve(model={"model_path": model_path})
        _train(chosen, reward_fn, samples, prompts, eval_prompts, metric_fn, stop_sequences)
        trained.append(Trained(Path(chosen.train.checkpoint_dir) / "model", {**chosen.method.gen_kwargs}))

    if "RANK" in os.environ:  # each rank ends its process cleanly afterwards
        launch(work)
    else:
        work()
    return trained[0]


def _train(
    config: TRLConfig,
    reward_fn: Function | None,
    samples: Any,
    prompts: Prompts,
    eval_prompts: Prompts,
    metric_fn: Function | None,
    stop_sequences: Iterable[str] | None,
) -> None:
    """PPO, RFT or SFT, as the config's method says."""
    method = config.method
    if isinstance(method, SFTConfig):
        train_on_samples(config, samples, eval_prompts, metric_fn)
        return
    if reward_fn is None:
        raise InputError("PPO without reward_fn; needed: train(reward_fn=..., prompts=...), or SFTConfig with samples=")
    tasks, held_out, stops = _tasks("prompts", prompts), _tasks("eval_prompts", eval_prompts), _stops(stop_sequences)
    batch = number("train.batch_size", config.train.batch_size, int) * world_size()
    if isinstance(method, RFTConfig):
        ours, notes = rft_config(config, len(tasks) or batch, stops)
    elif isinstance(method, Method):
        ours, notes = ppo_config(config, stops)
    else:
        raise InputError(f"config.method is {type(method).__name__}; needed: PPOConfig, RFTConfig or SFTConfig")
    show(notes)
    train_ppo(ours, _prepare(reward_fn, metric_fn, tasks, held_out, batch))


def _stops(stops: Iterable[str] | None) -> tuple[str, ...]:
    found = (stops,) if isinstance(stops, str) else tuple(stops or ())
    if not all(isinstance(stop, str) and stop for stop in found):
        raise InputError(f"stop_sequences is {shown(list(found))}; needed: texts that are not empty")
    return found


def _prepare(
    reward_fn: Function, metric_fn: Function | None, given: Sequence[Task], held_out: Sequence[Task], batch: int
) -> Prepare:
    """The task setup of a program. Without prompts, replies begin at a BOS; without others to evaluate on, those of
    the first batch are used.
    """

    def prepare(config: PPOConfig, tokenizer: Any) -> TaskSetup:
        tasks = given or [{"prompt": _bos(tokenizer)}] * batch
        columns = {name for task in (*tasks, *held_out) for name in task if name != "prompt"}
        refuse_unfit(reward_fn, "reward_fn", columns)
        if metric_fn is not None:
            refuse_unfit(metric_fn, "metric_fn", columns)
        metric = None if metric_fn is None else adapt_metric(metric_fn)
        evaluated = held_out or tasks[:batch]
        return text_with_function(adapt_reward(reward_fn), metric, tasks, evaluated)(config, tokenizer)

    return prepare


def _tasks(name: str, prompts: Prompts) -> list[Task]:
    """A task for each prompt, with its other keys as columns. Raises InputError for what is no prompt."""
    if isinstance(prompts, str | Mapping):
        raise InputError(f"{name} is {shown(prompts)}; needed: a list of prompts")
    tasks: list[Task] = [
        dict(one) if isinstance(one, Mapping) else {"prompt": one} for one in (() if prompts is None else prompts)
    ]
    for place, task in enumerate(tasks):
        if not isinstance(task.get("prompt"), str) or not task["prompt"]:
            found = shown(task.get("prompt"))
            raise InputError(f"{name}[{place}] has the prompt {found}; needed: a text, or a dict with one as prompt")
    return tasks


def _bos(tokenizer: Any) -> str:
    if not tokenizer.bos_token:
        raise InputError("prompts were not given, and the tokenizer has no BOS token to begin with; needed: prompts=")
    return tokenizer.bos_token
