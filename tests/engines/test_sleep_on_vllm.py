"""`--engine_sleep` with a real vLLM: on a CPU it answers that it sleeps, and keeps everything."""

import json
from pathlib import Path

import pytest
from ppo_in_process import train_small

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("vllm")]


def test_it_is_asked_to_sleep_and_woken_in_each_iteration_and_has_its_weights(
    servable_models, chats_file: Path, tmp_path: Path
) -> None:
    given = {"engine": "vllm", "engine_sleep": True, "max_prompt": 200, "lora_rank": 8}
    run = train_small(servable_models["llama"], chats_file, tmp_path, **given)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    gaps = [line["engine/sync_gap"] for line in lines if "engine/sync_gap" in line]
    assert len(gaps) == 2
    assert max(gaps) < 1e-5
    assert "wake up the engine" in (run / "engine/vllm.log").read_text()
