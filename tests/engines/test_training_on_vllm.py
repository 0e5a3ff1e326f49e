"""Training on the replies of a real vLLM: each way to send weights, each way in which that can fail, and kill -9."""

import os
import re
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from asking import processes_of
from launching import ROOT, finish, flags, launch, read_metrics, run, start
from patience import wait_until
from ppo_in_process import train_small

from lmgym.errors import InputError
from lmgym.generation.local_generation import load_causal
from lmgym.generation.protocol import Sampling
from lmgym.generation.vllm_generator import VLLMGenerator, VLLMServerClient
from lmgym.generation.vllm_server import ServerOptions, VLLMServer
from lmgym.generation.weight_sender import WeightSender
from lmgym.text import Conversation, Turn
from ppo import engine_sampler, sync_proof
from ppo.engine_sampler import EngineSampler

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("vllm")]
ADAPTERS = {"lora_rank": 4, "lora_alpha": 8}
FRIENDLY = ROOT / "ppo/experiments/friendly_answers.py"
FIVE_ITERATIONS = flags(
    engine="vllm", num_rollouts=8, global_batch=8, micro_batch=4, ppo_epochs=1, max_updates=5, eval_size=4,
    max_new_tokens=12, tracking="none", precision="fp32", learning_rate=1e-2, eval_updates=5, save_updates=1,
)  # fmt: skip
QUESTIONS = [Conversation((Turn("user", text),)) for text in ("What is 2 + 2?", "Name a colour.", "Ein Gedicht, bitte")]


def test_it_gives_the_replies_and_log_probabilities_of_our_engine(real_model: Path, tmp_path: Path) -> None:
    ours = load_causal(str(real_model))
    with VLLMServer(ServerOptions(str(real_model), max_length=512), tmp_path / "log") as server:
        theirs = VLLMGenerator([server.url], "model", ours.tokenizer, ours.eos, 512)
        for sampling in (Sampling(48, 0.0), Sampling(24, 0.0, stop=("the", "a")), Sampling(8, 0.0, ends_at_eos=False)):
            for [one], [other] in zip(
                ours.reply(QUESTIONS, 1, sampling), theirs.reply(QUESTIONS, 1, sampling), strict=True
            ):
                assert (one.ids, one.text, one.finish_reason) == (other.ids, other.text, other.finish_reason)
                assert max(abs(a - b) for a, b in zip(one.logprobs, other.logprobs, strict=True)) < 1e-4
        warm = Sampling(16, 0.7, seed=5)
        together = theirs.reply(QUESTIONS, 2, warm)
        [alone] = theirs.reply(QUESTIONS[1:2], 2, replace(warm, seed=6))
        assert [reply.ids for reply in alone] == [reply.ids for reply in together[1]], "whatever else is asked"
        assert together[1][0] != together[1][1]


@pytest.mark.parametrize(("kind", "settings"), [
    ("python", flags(lora_rank=4, lora_alpha=8)),
    ("python", flags(num_layers_unfrozen=-1)),
    ("deepspeed", flags(deepspeed="zero2", num_layers_unfrozen=-1)),
    ("deepspeed", flags(deepspeed="zero3", num_layers_unfrozen=-1)),
    ("deepspeed", flags(deepspeed="zero3", lora_rank=4, lora_alpha=8)),
], ids=["adapters", "plain", "zero2", "zero3", "zero3 adapters"])  # fmt: skip
def test_five_iterations_sample_from_the_weights_of_each(
    kind: str, settings: list, servable_models, tmp_path: Path
) -> None:
    model = ("--model", servable_models["llama"], "--output", tmp_path / "run")
    words = launch(kind, *model, *FIVE_ITERATIONS, *settings, script=FRIENDLY)
    done = run(words, seconds=600, LMGYM_TEST=str(tmp_path))
    assert done.returncode == 0, done.stderr
    metrics = read_metrics(tmp_path / "run")
    assert len(metrics["engine/sync_gap"]) == 5
    assert max(metrics["engine/sync_gap"].values()) < 1e-4
    assert max(map(abs, metrics["sampler/kl"].values())) < 1e-5, "of all replies"
    assert metrics["kl/reference"][5] > 1e-3, "the weights changed"
    assert not processes_of(str(tmp_path))


def forget_a_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    send = WeightSender.send
    monkeypatch.setattr(
        WeightSender, "send", lambda self, buckets, buffers: send(self, buckets[:-1], iter(list(buffers)[:-1]))
    )
    monkeypatch.setattr(sync_proof, "BUCKET_BYTES", 100_000)


def keep_the_prefix_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    post = VLLMServerClient.post
    monkeypatch.setattr(
        VLLMServerClient,
        "post",
        lambda self, path, *rest: {"success": True} if "prefix" in path else post(self, path, *rest),
    )


def send_other_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    send = WeightSender.send
    monkeypatch.setattr(engine_sampler, "buffers_of", lambda *given: spoilt(*given))
    monkeypatch.setattr(WeightSender, "send", lambda self, *given: send(self, *given))


def spoilt(items, weights):
    from lmgym.generation.weight_sender import buffers_of

    for buffer in buffers_of(items, weights):
        yield buffer.roll(8)


def keep_the_first_adapter(monkeypatch: pytest.MonkeyPatch) -> None:
    send = EngineSampler._send_adapter

    def once(self) -> None:
        if not self._loaded:
            send(self)

    monkeypatch.setattr(EngineSampler, "_send_adapter", once)


def nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WeightSender, "send", lambda self, buckets, buffers: list(buffers) and None)


@pytest.mark.parametrize(("sabotage", "settings"), [
    (nothing, {}), (forget_a_bucket, {}), (keep_the_prefix_cache, {}), (send_other_bytes, {}),
    (keep_the_first_adapter, ADAPTERS),
])  # fmt: skip
def test_a_sync_that_is_not_whole_ends_the_run_before_step_1(
    sabotage, settings: dict, servable_models, chats_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sabotage(monkeypatch)
    with pytest.raises(InputError, match=r"server and trainer differ by|all trained weights were changed"):
        train_small(servable_models["llama"], chats_file, tmp_path, engine="vllm", max_prompt=200, **settings)
    assert not (tmp_path / "run/metrics.jsonl").read_text()


def log_of(folder: Path) -> str:
    path = folder / "engine/vllm.log"
    return path.read_text() if path.exists() else ""


def iterations_of(folder: Path) -> int:
    path = folder / "metrics.jsonl"
    return path.read_text().count("engine/sync_gap") if path.exists() else 0


def test_a_killed_server_is_started_again_and_the_run_goes_on(servable_models, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    words = ("--model", servable_models["llama"], "--output", folder, *FIVE_ITERATIONS, "--lora_rank", 4)
    launched = start(launch("python", *words, script=FRIENDLY))
    wait_until(lambda: iterations_of(folder) >= 2, 300)
    [pid] = set(re.findall(r"\(EngineCore pid=(\d+)\)", log_of(folder)))
    os.kill(int(pid), signal.SIGKILL)
    done = finish(launched, 600)
    assert done.returncode == 0, done.stderr
    assert "it is started again" in done.stdout + done.stderr
    assert max(read_metrics(folder)["engine/sync_gap"].values()) < 1e-4
    assert iterations_of(folder) == 5


def test_a_killed_run_leaves_no_server_and_goes_on_from_its_checkpoint(servable_models, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    words = launch("python", "--model", servable_models["llama"], "--output", folder, *FIVE_ITERATIONS, script=FRIENDLY)
    launched = start(words, LMGYM_TEST=str(tmp_path))
    wait_until(lambda: len(list(folder.glob("checkpoints/step-*"))) >= 2, 300)
    assert processes_of(str(tmp_path))
    os.kill(launched.process.pid, signal.SIGKILL)
    finish(launched)
    wait_until(lambda: not processes_of(str(tmp_path)), 60)
    done = run(words, seconds=600)
    assert done.returncode == 0, done.stderr
    assert iterations_of(folder) >= 5
    assert max(read_metrics(folder)["engine/sync_gap"].values()) < 1e-4
