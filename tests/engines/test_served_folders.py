"""Folders that runs save, served by vLLM as by any server: our greedy replies, log-probabilities and prompts."""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
from asking import ask, check_served_as_ours
from ppo_in_process import train_small

from lmgym.config import ModelConfig, OptimizerConfig, RowsConfig, RunConfig, SamplesConfig
from lmgym.generation.vllm_server import ServerOptions, VLLMServer
from preferences.config import PreferenceConfig
from preferences.train import train as train_preferences
from sft.config import SftConfig
from sft.tasks import CHAT
from sft.train import train as train_sft

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("vllm")]
STAGES, RANK = ("sft", "preference", "ppo"), 4
STEPS = OptimizerConfig(3e-3, warmup=0, global_batch=8, micro_batch=4, max_updates=4)
FEW = SamplesConfig(sample_prompts=0)


@dataclass(frozen=True)
class Data:
    """Files of conversations and of pairs."""

    chats: Path
    pairs: Path


@pytest.fixture
def data(chats_file: Path, few_pairs: Path) -> Data:
    return Data(chats_file, few_pairs)


def train(stage: str, model: Path, rank: int, data: Data, root: Path, steps: OptimizerConfig = STEPS) -> Path:
    """The folder of a run of a few updates, with adapters of a rank or, with 0, of the whole weights."""
    if stage == "ppo":
        rates = {"learning_rate": steps.learning_rate, "max_updates": steps.max_updates}
        return train_small(model, data.chats, root, name=stage, lora_rank=rank, **rates)
    settings, run = (
        ModelConfig(str(model), lora_rank=rank, precision="fp32"),
        RunConfig(str(root / stage), tracking="none"),
    )
    if stage == "sft":
        rows = RowsConfig(str(data.chats), max_length=200, eval_size=8)
        train_sft(SftConfig("s", settings, rows, steps, FEW, run, merge_adapter=rank > 0), CHAT)
    else:
        rows = RowsConfig(str(data.pairs), max_length=200, eval_size=4)
        config = PreferenceConfig("d", settings, rows, optimizer=steps, samples=FEW, run=run, merge_adapter=rank > 0)
        train_preferences(config)
    return root / stage


@pytest.mark.parametrize("rank", [0, RANK], ids=["whole", "merged"])
@pytest.mark.parametrize("stage", STAGES)
def test_the_model_of_a_run_is_served(stage: str, rank: int, servable_models, data: Data, tmp_path: Path) -> None:
    run = train(stage, servable_models["llama"], rank, data, tmp_path)
    with VLLMServer(ServerOptions(str(run / "model"), max_length=256), tmp_path / "log.txt") as server:
        check_served_as_ours(server.url, run / "model")


def test_the_adapters_of_runs_are_served_beside_their_base(servable_models, data: Data, tmp_path: Path) -> None:
    base = servable_models["llama"]
    runs = {stage: train(stage, base, RANK, data, tmp_path) for stage in STAGES}
    with VLLMServer(ServerOptions(str(base), max_length=256, max_lora_rank=RANK), tmp_path / "log.txt") as server:
        said = [check_served_as_ours(server.url, base)]
        for name, run in runs.items():
            ask(server.url, "/v1/load_lora_adapter", lora_name=name, lora_path=str(run / "adapter"))
            said.append(check_served_as_ours(server.url, run / "adapter", name))
        assert check_served_as_ours(server.url, base) == said[0]
    assert len(set(map(tuple, said))) == 4, "each run changed the replies"


@pytest.mark.parametrize("family", ["qwen3", "gpt2"])
def test_other_families_with_several_ends_of_turn_are_served(
    family: str, servable_models, data: Data, tmp_path: Path
) -> None:
    """Every second token is an end of turn."""
    base = Path(shutil.copytree(servable_models[family], tmp_path / "base"))
    file = base / "generation_config.json"
    ends = {"eos_token_id": list(range(1, 512, 2)), "temperature": 0.6, "top_k": 20, "do_sample": True}
    file.write_text(json.dumps(json.loads(file.read_text()) | ends))
    run = train("sft", base, 0, data, tmp_path, OptimizerConfig(1e-4, global_batch=8, micro_batch=4, max_updates=1))
    with VLLMServer(ServerOptions(str(run / "model"), max_length=256), tmp_path / "log.txt") as server:
        replies = check_served_as_ours(server.url, run / "model")
    assert min(map(len, replies)) < 16, "no reply reached its end"


@pytest.mark.real
def test_a_real_model_is_served_with_its_template(real_model: Path, data: Data, tmp_path: Path) -> None:
    steps = OptimizerConfig(1e-4, warmup=0, global_batch=4, micro_batch=2, max_updates=2)
    run = train("sft", real_model, RANK, data, tmp_path, steps)
    options = ServerOptions(str(real_model), max_length=512, max_lora_rank=RANK)
    with VLLMServer(options, tmp_path / "log.txt") as server:
        before = check_served_as_ours(server.url, real_model)
        ask(server.url, "/v1/load_lora_adapter", lora_name="sft", lora_path=str(run / "adapter"))
        adapted = check_served_as_ours(server.url, run / "adapter", "sft")
    with VLLMServer(ServerOptions(str(run / "model"), max_length=512), tmp_path / "log.txt") as server:
        assert check_served_as_ours(server.url, run / "model") == adapted
    assert adapted != before
