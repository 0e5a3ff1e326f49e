"""Weight syncs to vLLM that go wrong on purpose, and sound ones: what is noticed, and when. Needs `lmgym engine setup`.

    .venv/bin/python benchmarks/sync_sabotages.py          # all that benchmarks/results/sync_sabotages.json lacks
    .venv/bin/python benchmarks/sync_sabotages.py sound    # the sound runs only

Conditions, fixed before any run: a llama of two layers and width 128 with random weights (seed 0), GRPO with 16 replies
of up to 8 tokens an iteration to 8 prompts, one update an iteration; all weights in fp32 at a learning rate of 1e-6, or
adapters of rank 4 in bf16 at 1e-4; a proof every 5 syncs. A sabotaged run has 12 iterations, and its sabotage begins
with its first sync or with that of update 3; a sound one has 30, at seeds 0 to 9. Noticed: the run ends with SyncError,
or says that replies do not fit. "syncs" counts those that were sabotaged up to then.
"""

import argparse
import contextlib
import dataclasses
import io
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from shared import write_result

from lmgym.config import ModelConfig, OptimizerConfig, RunConfig
from lmgym.errors import InputError, RunStopped
from lmgym.generation.protocol import Completion
from lmgym.generation.vllm_generator import VLLMGenerator, VLLMServerClient
from lmgym.generation.vllm_server import ServerOptions, VLLMServer
from lmgym.generation.weight_sender import WeightSender
from lmgym.models.small_models import make_small_model
from lmgym.runs.files import write_json
from ppo import engine_sampler
from ppo.config import EngineConfig, MethodConfig, PPOConfig, RewardConfig, RolloutConfig
from ppo.engine_sampler import EngineSampler
from ppo.task_setups import text_with_function
from ppo.train import train

RESULTS = Path(__file__).parent / "results/sync_sabotages.json"
PROMPTS = ["roses and herbs go well", "why do drums sound so", "make me some soup", "the sky is blue because",
           "two and two are", "a boat on the lake", "tell me of your day", "how far is the sea"]  # fmt: skip
PROVE_EVERY, LATE = 5, 3


class Sabotage:
    """Decides whether a sync, or a reply, is sabotaged now, and counts the syncs that were."""

    def __init__(self, begins: int) -> None:
        self.begins, self.syncs = begins, 0
        self.version = -1

    @property
    def on(self) -> bool:
        """The weights of update `begins` or later are being sent, or sample."""
        return self.version >= self.begins

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Within a `with`, the version that is synced is known."""
        sync = EngineSampler.sync

        def counted(sampler: EngineSampler, version: int = 0, proves: bool = False) -> None:
            if version != sampler.version or proves:
                self.version = version
                self.syncs += self.on
            sync(sampler, version, proves)

        proofs = mock.patch.object(engine_sampler, "PROVE_EVERY", PROVE_EVERY)
        with mock.patch.object(EngineSampler, "sync", counted), proofs:
            yield


def weights_changed(change: Callable[[str, torch.Tensor], torch.Tensor]) -> Callable[[Sabotage], Any]:
    """Sends other weights: `change` of each name and weight."""

    def patch(state: Sabotage) -> Any:
        pack = engine_sampler.buffers_of

        def buffers(items: Any, weights: Any) -> Iterator[torch.Tensor]:
            if state.on:
                weights = [
                    [change(name, p.detach()) for (name, _, _), p in zip(bucket, own, strict=True)]
                    for bucket, own in zip(items, weights, strict=True)
                ]
            return pack(items, weights)

        return mock.patch.object(engine_sampler, "buffers_of", buffers)

    return patch


class Former:
    """The weights that were sent last, by name."""

    def __init__(self, which: str = "") -> None:
        self.which, self.last = which, dict[str, torch.Tensor]()

    def __call__(self, name: str, weight: torch.Tensor) -> torch.Tensor:
        """The weight that was sent before, of names that have `which` in them."""
        if self.which not in name:
            return weight
        before, self.last[name] = self.last.get(name, weight), weight.clone()
        return before


class First(Former):
    """The weights that were sent when the sabotage began."""

    def __call__(self, name: str, weight: torch.Tensor) -> torch.Tensor:
        return self.last.setdefault(name, weight.clone()) if self.which in name else weight


def send_nothing(state: Sabotage) -> Any:
    """Answers "OK", and applies nothing."""
    send = WeightSender.send

    def sent(sender: WeightSender, buckets: Any, buffers: Any) -> None:
        if state.on:
            list(buffers)
        else:
            send(sender, buckets, buffers)

    return mock.patch.object(WeightSender, "send", sent)


def keep_prefix_cache(state: Sabotage) -> Any:
    """Answers from keys and values of earlier weights."""
    post = VLLMServerClient.post

    def posted(client: VLLMServerClient, path: str, *rest: Any) -> Any:
        return {"success": True} if state.on and "prefix" in path else post(client, path, *rest)

    return mock.patch.object(VLLMServerClient, "post", posted)


def swapped(name: str, weight: torch.Tensor) -> torch.Tensor:
    """Queries' rows in reverse, as a shard at another offset has them."""
    return weight.flip(0) if "q_proj" in name else weight


FULL: dict[str, Callable[[Sabotage], Any]] = {
    "nothing is applied": send_nothing,
    "the previous step's weights": lambda state: weights_changed(Former())(state),
    "one layer keeps the first weights": lambda state: weights_changed(First("layers.1."))(state),
    "one matrix keeps the first weights": lambda state: weights_changed(First("layers.1.mlp.up_proj"))(state),
    "one norm keeps the first weights": lambda state: weights_changed(First("layers.0.input_layernorm"))(state),
    "the head keeps the first weights": lambda state: weights_changed(First("embed_tokens"))(state),
    "rows at another offset": weights_changed(swapped),
    "weights rounded to 8 bits": weights_changed(lambda name, w: w.to(torch.float8_e4m3fn).to(w.dtype)),
    "weights larger by 1%": weights_changed(lambda name, w: 1.01 * w),
    "the prefix cache is kept": keep_prefix_cache,
}


def adapter_changed(change: Callable[[str, torch.Tensor], torch.Tensor]) -> Callable[[Sabotage], Any]:
    """Saves an adapter of other weights."""

    def patch(state: Sabotage) -> Any:
        save = engine_sampler.save_adapter

        def saved(policy: Any, weights: dict[str, torch.Tensor], folder: Path) -> Any:
            weights = {name: change(name, w) if state.on else w for name, w in weights.items()}
            return save(policy, weights, folder)

        return mock.patch.object(engine_sampler, "save_adapter", saved)

    return patch


def keep_first_adapter(state: Sabotage) -> Any:
    """Loads nothing once there is an adapter."""
    send = EngineSampler._send_adapter

    def sent(sampler: EngineSampler) -> None:
        if not (state.on and sampler._loaded):
            send(sampler)

    return mock.patch.object(EngineSampler, "_send_adapter", sent)


def settings_changed(**changes: Any) -> Callable[[Sabotage], Any]:
    """Saves an adapter with other settings."""

    def patch(state: Sabotage) -> Any:
        save = engine_sampler.save_adapter

        def saved(policy: Any, weights: dict[str, torch.Tensor], folder: Path) -> Any:
            found = save(policy, weights, folder)
            path = folder / "adapter_config.json"
            if state.on:
                write_json(path, json.loads(path.read_text()) | changes)
            return found

        return mock.patch.object(engine_sampler, "save_adapter", saved)

    return patch


def ask_the_base(state: Sabotage) -> Any:
    """Asks the model without its adapter."""
    send = EngineSampler._send_adapter

    def sent(sampler: EngineSampler) -> None:
        send(sampler)
        if state.on:
            sampler.generator.model = "model"

    return mock.patch.object(EngineSampler, "_send_adapter", sent)


ADAPTERS: dict[str, Callable[[Sabotage], Any]] = {
    "the first adapter is kept": keep_first_adapter,
    "the previous step's adapter": lambda state: adapter_changed(Former())(state),
    "one layer keeps the first adapter": lambda state: adapter_changed(First("layers.1."))(state),
    "one matrix keeps the first adapter": lambda state: adapter_changed(First("layers.1.mlp.up_proj"))(state),
    "A keeps the first weights": lambda state: adapter_changed(First("lora_A"))(state),
    "B is 0 in one matrix": adapter_changed(lambda name, w: 0 * w if "layers.0.mlp.down_proj.lora_B" in name else w),
    "rows of B at another offset": adapter_changed(lambda name, w: w.flip(0) if "q_proj.lora_B" in name else w),
    "half of its scale": settings_changed(lora_alpha=4),
    "scale larger by 10%": settings_changed(lora_alpha=8.8),
    "the base model answers": ask_the_base,
}


def replies_changed(change: Callable[[Completion], Completion]) -> Callable[[Sabotage], Any]:
    """Reads other replies than were sent."""

    def patch(state: Sabotage) -> Any:
        generate = VLLMGenerator.generate

        def generated(generator: VLLMGenerator, *given: Any) -> list[list[Completion]]:
            replies = generate(generator, *given)
            return [[change(reply) if state.on else reply for reply in row] for row in replies]

        return mock.patch.object(VLLMGenerator, "generate", generated)

    return patch


def one_reply(state: Sabotage) -> Any:
    """The reply to the first prompt that was asked answers all."""
    generate, first = VLLMGenerator.generate, list[list[int]]()

    def generated(generator: VLLMGenerator, prompts: Any, *given: Any) -> Any:
        if state.on:
            first.extend(prompts[:1] if not first else [])
            prompts = first * len(prompts)
        return generate(generator, prompts, *given)

    return mock.patch.object(VLLMGenerator, "generate", generated)


def garbage(reply: Completion) -> Completion:
    """Other ids, with the log-probabilities of the true ones."""
    return dataclasses.replace(reply, ids=tuple((7 * id_ + 5) % 200 for id_ in reply.ids))


def shifted(by: float) -> Callable[[Completion], Completion]:
    """Log-probabilities that are off by so many nats."""
    return lambda reply: dataclasses.replace(reply, logprobs=tuple(x - by for x in reply.logprobs))


REPLIES: dict[str, Callable[[Sabotage], Any]] = {
    "garbage ids": replies_changed(garbage),
    "log-probabilities off by 2 nats": replies_changed(shifted(2.0)),
    "log-probabilities off by .05 nats": replies_changed(shifted(0.05)),
    "one reply to all prompts": one_reply,
}
KINDS = {"full, fp32": FULL | REPLIES, "adapter, bf16": ADAPTERS | REPLIES}


def shortness(samples: list[str], prompts: list[str], outputs: list[str], **_: Any) -> list[float]:
    """A reward."""
    return [1 / (1 + len(text)) for text in outputs]


def run(kind: str, model: Path, url: str, iterations: int, seed: int = 0) -> str:
    """The end of a run, and what it says of replies that do not fit; empty if it has nothing to say."""
    adapter = kind.startswith("adapter")
    with tempfile.TemporaryDirectory() as folder:
        prompts = Path(folder, "prompts.jsonl")
        prompts.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in PROMPTS * 6))
        config = PPOConfig(
            "sabotage",
            ModelConfig(str(model), precision="bf16" if adapter else "fp32", lora_rank=4 * adapter, lora_alpha=8),
            RolloutConfig(str(prompts), eval_size=2, num_rollouts=16, num_generations=2, max_new_tokens=8),
            RewardConfig(),
            MethodConfig("grpo", ppo_epochs=1, num_layers_unfrozen=-1),
            OptimizerConfig(1e-4 if adapter else 1e-6, 0, seed=seed, global_batch=16, micro_batch=16,
                            max_updates=iterations),
            RunConfig(str(Path(folder, "run")), tracking="none", save_updates=-1, eval_updates=1000),
            engine=EngineConfig(f"vllm:{url}#model"),
        )  # fmt: skip
        said = io.StringIO()
        try:
            with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
                train(config, text_with_function(shortness, as_text=False))
        except (InputError, RunStopped) as error:
            return f"ended: {error}"
        events = Path(folder, "run/events.jsonl").read_text().splitlines()
        found = [text for event in events if "do not fit" in (text := json.loads(event)["text"])]
        return f"{len(found)} warnings: {found[0]}" if found else ""


def main() -> None:
    """Runs what is not in the file yet."""
    parser = argparse.ArgumentParser()
    parser.add_argument("part", nargs="?", choices=["sound", "sabotages"])
    part = parser.parse_args().part
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder, "llama")
        make_small_model(model, "llama", [text + "." for text in PROMPTS * 20], width=128, max_length=256)
        for kind, sabotages in KINDS.items():
            adapter = kind.startswith("adapter")
            options = ServerOptions(str(model), "bfloat16" if adapter else "float32", 256,
                                    max_lora_rank=8 * adapter, receives_weights=True)  # fmt: skip
            with VLLMServer(options, Path(folder, "vllm.log")) as server:
                for seed in range(10) if part != "sabotages" else ():
                    if (name := f"{kind} | sound | seed {seed}") not in results:
                        results[name] = {"said": run(kind, model, server.url, 30, seed)}
                        write_result(RESULTS, results, "sampler")
                        print(name, results[name], flush=True)
                for (fault, patch), begins in ((one, b) for one in sabotages.items() for b in (0, LATE)):
                    if part == "sound" or (name := f"{kind} | {fault} | from update {begins}") in results:
                        continue
                    state = Sabotage(begins)
                    with state.watching(), patch(state):
                        results[name] = {"said": run(kind, model, server.url, 12), "syncs": state.syncs}
                    write_result(RESULTS, results, "sampler")
                    print(name, results[name], flush=True)


if __name__ == "__main__":
    main()
