"""A vLLM server as the sampler: its start, its end, and the weights that it is given, each time with a proof.

Design decisions:
- An adapter's folder under a new name is a version of the policy: a name that is loaded twice may be answered from the
  prefix cache of the first time. Without adapters all trained weights are sent, in buckets (weight_sender.py).
- Every sync is proved (sync_proof.py): a server that silently keeps old weights trains a policy on the replies of
  another one.
- Rank 0 starts, asks and syncs servers; every rank samples from them. All methods are collective.
"""

import secrets
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar, final

import torch

from lmgym.console import say
from lmgym.distributed.plain_engine import TrainingEngine
from lmgym.distributed.ranks import all_gather_objects, raise_on_all_ranks, rank
from lmgym.errors import InputError, ServerError, one_line
from lmgym.generation.layer_samples import sample_layers
from lmgym.generation.local_generation import end_ids
from lmgym.generation.model_specs import read_model_spec
from lmgym.generation.protocol import Sampling
from lmgym.generation.vllm_generator import VLLMGenerator, VLLMServerClient, refuse_lying_server, refuse_unfit_server
from lmgym.generation.vllm_plugin.lmgym_vllm import Item
from lmgym.generation.vllm_server import TESTED, ServerOptions, VLLMServer
from lmgym.generation.weight_sender import WeightSender, buffers_of
from lmgym.models.config_fields import vocabulary_size
from lmgym.models.parameters import gathered
from lmgym.models.saving import has_adapters, save_adapter
from ppo.actor_critic import ActorCritic
from ppo.config import EngineConfig
from ppo.config.rollout import OWN
from ppo.sync_proof import (
    PROBE_TOKENS,
    Gap,
    Probe,
    gap_to,
    probe_prompts,
    prove_transfer,
    refuse_other_layers,
    refuse_other_weights,
    trainer_logprobs,
    trainer_rounding,
    weight_buckets,
    whole_shape,
)

PROBE_SEED = 97
PROVE_EVERY = 10  # syncs from one proof with changed weights to the next
AWAITED_SECONDS, POLL_SECONDS = 600.0, 2.0  # for a server of others that is down
SLEEP_SECONDS = 300.0  # for weights to move between a GPU and main memory
T = TypeVar("T")


@final
class EngineSampler:
    """Samples on vLLM servers with the policy's weights. Created after the training engine."""

    runs_elsewhere = True
    whole = None

    def __init__(
        self,
        name: str,
        settings: EngineConfig,
        options: ServerOptions,
        precision: str,
        engine: TrainingEngine,
        tokenizer: Any,
        prompts: Sequence[Sequence[int]],
        folder: Path,
        device: torch.device,
    ) -> None:
        """`options` are those of a server of the run's own; `prompts` are token ids of some of the run's, for probes;
        logs and adapters, which are called after the run's `name`, are written to `folder`.

        Raises InputError for a server that does not start, or that is no vLLM server of this model.
        """
        self.name, self.settings, self.options, self.precision = name, settings, options, precision
        self.engine, self.folder, self.device = engine, folder, device
        self.actor: ActorCritic = engine.module  # type: ignore[assignment]
        self.adapters = has_adapters(self.actor.policy)
        self._trained = [(name, p) for name, p in self.actor.policy.named_parameters() if p.requires_grad]
        self._prompts = probe_prompts(prompts, options.max_length - PROBE_TOKENS)
        self._tokenizer = tokenizer
        if rank() == 0:
            shutil.rmtree(folder / "adapters", ignore_errors=True)  # of a run that was killed
        self._server: VLLMServer | None = None
        self._sender: WeightSender | None = None
        self._loaded: list[str] = []
        """adapters on the servers"""
        self._run, self._sent = "", 0
        self.version = -1
        """the engine's version at the last sync"""
        self.gap, self.seconds = Gap(0.0, 0.0), 0.0
        """of the last sync"""
        self._rounding: float | None = None
        """the trainer's own, at the last proof"""
        self._since_proof, self._proofs, self._found = 0, 0, set[str]()
        """syncs since the last proof, proofs, and the layers that were found at the servers"""
        self._sleeps = False
        self.generator = self._start()
        self._compares = self._on_main(self._can_compare)

    def _start(self) -> VLLMGenerator:
        def start() -> tuple[list[str], str, str]:
            if self.settings.engine == OWN:
                self._server = VLLMServer(self.options, self.folder / "vllm.log")
                say(f"vLLM is starting; its log: {self._server.log}")
                self._server.start()
                return [self._server.url], "policy", secrets.token_hex(3)
            given = read_model_spec(self.settings.engine or "")
            urls = [url.removesuffix("/v1") for url in given.urls]
            known = self._tokenizer, self._prompts[0], self.options.max_length
            names = {refuse_unfit_server(url, given.model, *known) for url in urls}
            if len(names) > 1:
                raise InputError(f"the servers serve {', '.join(sorted(names))}; needed: one model, as vllm:URL#model")
            return urls, names.pop(), secrets.token_hex(3)

        urls, model, self._run = self._on_main(start)
        causal = self.actor.causal
        eos = end_ids(causal, self._tokenizer)
        settings = causal.generation_config
        ids = vocabulary_size(causal.config)
        generator = VLLMGenerator(urls, model, self._tokenizer, eos, self.options.max_length, settings, vocabulary=ids)
        self._on_main(lambda: refuse_lying_server(generator, self._prompts[0]))
        return generator

    def sync(self, version: int = 0, proves: bool = False) -> None:
        """Give the servers the engine's weights of this version, and prove that they have them.

        The proof with changed weights is that of the first sync, and of every tenth one; of this one too
        with `proves`, even of weights that the servers have. Raises SyncError if they do not have them, and ServerError
        for a dead server. A server that sleeps is woken first.
        """
        self._wake()
        if version == self.version and not proves:
            return
        began, precision, where = time.monotonic(), self.precision, f"after the sync of version {version}"
        proves = proves or self.version < 0 or self._since_proof + 1 >= PROVE_EVERY
        layers: Mapping[str, float] = {}
        if proves:
            given = self.engine, self._trained, precision, self.device
            layers = prove_transfer(*given, self._send_and_probe, self._compare_layers)
        found = self._send_and_probe()
        trainer = trainer_logprobs(self.engine, found, self.device)
        self.gap = gap_to(trainer, found)
        if proves:
            self._rounding = trainer_rounding(self.actor, trainer, found, precision, self.device)
            now = self._compare_layers()
            raise_on_all_ranks(lambda: self._found.update(refuse_other_layers(layers, now, self._found, precision)))
            self._say_compared(len(now))
        raise_on_all_ranks(lambda: refuse_other_weights(self.gap, precision, where, self._rounding))
        self._since_proof = 0 if proves else self._since_proof + 1
        self.version, self.seconds = version, time.monotonic() - began

    def rest(self) -> None:
        """With `engine_sleep` the server gives back the GPU's memory until the next sync: its weights go to main
        memory, keys and values are dropped. Raises InputError if it refuses, and ServerError if it is dead.
        """
        if not self.settings.engine_sleep or self._sleeps:
            return

        def sleep() -> None:
            for url in self.generator.urls:
                try:
                    VLLMServerClient(url).post("/sleep?level=1", timeout=SLEEP_SECONDS)
                except InputError as error:
                    why, needed = one_line(str(error), 100), f"needed: vLLM {TESTED}, or no --engine_sleep"
                    raise InputError(f"{url} does not sleep ({why}); {needed}") from error

        self._on_main(sleep)
        self._sleeps = True

    def _wake(self) -> None:
        if not self._sleeps:
            return
        if torch.cuda.is_available():
            torch.cuda.empty_cache()  # what torch keeps for itself is the server's now

        def wake() -> None:
            for url in self.generator.urls:
                client = VLLMServerClient(url)
                try:
                    client.post("/wake_up", timeout=SLEEP_SECONDS)
                    sleeps = client.get("/is_sleeping")["is_sleeping"]
                except (InputError, ServerError) as error:
                    raise ServerError(f"{url} does not wake up: {one_line(str(error), 160)}") from error
                if sleeps:
                    raise ServerError(f"{url} was woken and still sleeps")

        self._on_main(wake)
        self._sleeps = False

    def refuse_stale(self, version: int) -> None:
        """Raises InputError if the servers have other weights than those of this version."""
        if version != self.version:
            raise InputError(f"the server has the weights of version {self.version}, needed are those of {version}")

    @property
    def metrics(self) -> dict[str, float]:
        """Of the last sync."""
        return {"engine/sync_gap": self.gap.of(self.precision), "time/sync": self.seconds}

    def recover(self, error: Exception) -> None:
        """Start a server of one's own again, or wait for that of others; it then has none of the policy's weights.

        Raises ServerError for one that does not come back.
        """

        def bring_back() -> list[str]:
            if self._server is not None:  # also one that still answers, as it does for a while without its engine
                say(f"vLLM failed ({one_line(str(error), 120)}); it is started again", error=True)
                self._server.restart()
                return [self._server.url]
            for url in self.generator.urls:
                self._await(url, error)
            return list(self.generator.urls)

        self.generator.urls = self._on_main(bring_back)
        if self._sender is not None:
            self._sender.close()
        self._loaded, self._sender, self.version, self._sleeps = [], None, -1, False
        self._compares = self._on_main(self._can_compare)

    def _await(self, url: str, error: Exception) -> None:
        end, said = time.monotonic() + AWAITED_SECONDS, False
        while True:
            try:
                VLLMServerClient(url).get("/health")
                return
            except (ServerError, InputError) as still:
                if time.monotonic() > end:
                    raise ServerError(f"{url} did not come back in {AWAITED_SECONDS:g} s: {still}") from error
                if not said:
                    say(f"{url} is down ({one_line(str(error), 120)}); waiting for it", error=True)
                said = True
                time.sleep(POLL_SECONDS)

    def close(self) -> None:
        """End the server, if it is the run's own, and unload adapters of this run from those of others."""
        if self._server is not None:
            self._server.stop()
        elif rank() == 0:
            self._unload(self._loaded)
        if self._sender is not None:
            self._sender.close()

    def _on_main(self, work: Callable[[], T]) -> T:
        """The result of `work` on rank 0, or its error, on all ranks."""
        found = raise_on_all_ranks(lambda: work() if rank() == 0 else None)
        return all_gather_objects(found)[0]

    def _send_and_probe(self) -> list[Probe]:
        """Send the weights as they are now; the servers' replies to the probe prompts."""
        if self.adapters:
            self._send_adapter()
        else:
            self._send_weights()
        return self._on_main(self._ask_probes)

    def _ask_probes(self) -> list[Probe]:
        """Each server's replies to the prompts, and to the first once more, from its prefix cache."""
        sampling = Sampling(PROBE_TOKENS, self.actor.temperature, seed=PROBE_SEED, ends_at_eos=False)
        servers = [replace(self.generator, urls=[url]) for url in self.generator.urls]
        prompts = [*self._prompts, self._prompts[0]]
        return [(prompt, one.generate([prompt], 1, sampling)[0][0]) for one in servers for prompt in prompts]

    def _can_compare(self) -> bool:
        """False, with a line, if a server lacks lmgym's receiver."""
        for url in self.generator.urls:
            try:
                VLLMServerClient(url).call("lmgym_ready", 60.0)
            except (InputError, ServerError) as error:
                say(
                    f"{url} has no receiver of lmgym ({one_line(str(error), 80)}): its layers are not compared with "
                    "the trainer's, its log-probabilities are; lmgym engine serve starts one that has it"
                )
                return False
        return True

    def _compare_layers(self) -> dict[str, float]:
        """Distances of the servers' layers from the trainer's, by name; empty without a receiver. Collective."""
        if not self._compares:
            return {}
        self._proofs += 1
        served = getattr(torch, self.options.dtype)
        samples = sample_layers(self.actor.decoder, served, self._proofs)

        def compare() -> dict[str, float]:
            given = {"samples": samples, "newest_adapter": self.adapters}
            found = [VLLMServerClient(url).call("lmgym_compare", 600.0, **given) for url in self.generator.urls]
            # workers share a layer: the one that has the sampled part counts
            servers = [{name: min(one[name] for one in workers) for name in workers[0]} for workers in found]
            return {name: max(one[name] for one in servers) for name in servers[0]}

        return self._on_main(compare)

    def _say_compared(self, layers: int) -> None:
        if rank() == 0 and layers and self.version < 0:
            say(f"{len(self._found)} of {layers} trained layers and weights of the server follow the trainer's")

    def _send_adapter(self) -> None:
        weights: dict[str, torch.Tensor] = {}
        for bucket in weight_buckets(self._trained):
            with gathered([p for _, p in bucket]):
                if rank() == 0:
                    weights |= {name: p.detach().to("cpu", copy=True) for name, p in bucket}
        self._sent += 1
        name = f"{self.name}-{self._run}@{self._sent}"

        def load() -> None:
            folder = (self.folder / "adapters" / name).absolute()
            save_adapter(self.actor.policy, weights, folder)
            for url in self.generator.urls:
                try:
                    VLLMServerClient(url).post("/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(folder)})
                except InputError as error:
                    raise InputError(
                        f"{url} does not load the policy's adapter ({one_line(str(error), 100)}); needed: vLLM with "
                        "--enable-lora, VLLM_ALLOW_RUNTIME_LORA_UPDATING=True and this run's folder on its file system"
                    ) from error
            former, self._loaded = self._loaded, [name]
            self._unload(former)

        self._on_main(load)
        self.generator.model = name

    def _unload(self, names: Sequence[str]) -> None:
        for name in names:
            for url in self.generator.urls:
                try:
                    VLLMServerClient(url).post("/v1/unload_lora_adapter", {"lora_name": name})
                except (InputError, ServerError) as error:
                    say(f"{name} stays on {url}: {one_line(str(error), 120)}", error=True)
            shutil.rmtree(self.folder / "adapters" / name, ignore_errors=True)

    def _send_weights(self) -> None:
        dtype = self.options.dtype
        chosen = list(weight_buckets(self._trained))
        items: list[list[Item]] = [[(name, dtype, list(whole_shape(p))) for name, p in bucket] for bucket in chosen]
        buffers = buffers_of(items, [[p for _, p in bucket] for bucket in chosen])
        self._on_main(self._connect)

        def send() -> None:
            if self._sender is None:
                for _ in buffers:
                    pass
                return
            self._sender.send(items, buffers)
            for url in self.generator.urls:
                if not VLLMServerClient(url).post("/reset_prefix_cache")["success"]:
                    raise ServerError(f"{url} did not empty its prefix cache: it answers other requests")

        raise_on_all_ranks(send)

    def _connect(self) -> None:
        if self._sender is None:
            clients = [VLLMServerClient(url) for url in self.generator.urls]
            workers = {len(client.call("lmgym_ready", 60.0)) for client in clients}
            if len(workers) > 1:
                raise InputError(
                    "the servers have different numbers of workers; needed: the same --tensor-parallel-size"
                )
            servers = [(client.url, client.call) for client in clients]
            self._sender = WeightSender(servers, workers.pop())
