"""Training on the replies of servers: by adapters and by weights, what is refused, and servers that die.

They are `vllm_stub.py`; tests/engines does the same with a real vLLM.
"""

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from patience import wait_until
from ppo_in_process import train_small
from safetensors.torch import load_file
from vllm_stubs import VLLMStub

from lmgym.errors import InputError, RunStopped
from lmgym.generation.vllm_generator import refuse_unfit_server
from lmgym.models.loading import load_tokenizer
from ppo import engine_sampler, sync_proof

ADAPTERS = {"lora_rank": 2, "lora_alpha": 4}


@pytest.fixture(scope="module")
def process(talkative_models) -> Iterator[VLLMStub]:
    """A server of the small llama, which lives as long as the tests."""
    process = VLLMStub(talkative_models["llama"])
    yield process
    process.kill()


@pytest.fixture
def stub(process: VLLMStub) -> Callable[..., VLLMStub]:
    """The same as a new server, with faults."""
    return process.tell


def lines_of(run: Path) -> list[dict]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("settings", [
    pytest.param(ADAPTERS, id="adapters"),
    pytest.param({}, id="weights"),
    pytest.param({"num_layers_unfrozen": 1, "method": "grpo", "num_generations": 4}, id="one layer"),
])  # fmt: skip
def test_a_server_samples_from_the_weights_of_each_iteration(
    settings: dict, stub, talkative_models, chats_file: Path, tmp_path: Path
) -> None:
    server = stub()
    run = train_small(talkative_models["llama"], chats_file, tmp_path, engine=server.engine, **settings)
    lines = [line for line in lines_of(run) if "engine/sync_gap" in line]
    assert len(lines) == 2
    assert all(line["engine/sync_gap"] < 1e-5 for line in lines)
    assert all(line["sampler/kl"] < 1e-5 and line["sampler/weight"] == 1 for line in lines), "of all replies"
    assert not list((run / "engine").glob("adapters/*")), "what was unloaded is deleted"


def test_several_servers_share_the_prompts(process, stub, talkative_models, chats_file: Path, tmp_path: Path) -> None:
    other = VLLMStub(talkative_models["llama"])
    engine = f"{stub().engine},{other.url}/v1#policy"
    run = train_small(talkative_models["llama"], chats_file, tmp_path, engine=engine)
    other.kill()
    assert all(line["sampler/kl"] < 1e-5 for line in lines_of(run) if "sampler/kl" in line)


@pytest.mark.parametrize(("lies", "settings", "expected"), [
    (["keeps_weights"], {}, "all trained weights were changed and synced, and the server"),
    (["misses_norms"], {}, "all trained weights were changed and synced, and the server"),
    (["keeps_adapter"], ADAPTERS, "14 of 14 layers of the server did not follow"),
    (["stale_cache"], {}, "after the sync of version 0, server and trainer differ"),
    (["biased"], ADAPTERS, "all trained weights were changed and synced, and the server"),
    (["ignores_temperature"], {}, "ignores the seed or the temperature"),
    (["no_logprobs"], {}, "an answer that makes no sense"),
])  # fmt: skip
def test_a_server_that_lies_is_refused_before_step_1(
    lies: list[str], settings: dict, expected: str, stub, talkative_models, chats_file: Path, tmp_path: Path
) -> None:
    with pytest.raises((InputError, RuntimeError), match=expected):
        train_small(talkative_models["llama"], chats_file, tmp_path, engine=stub(*lies).engine, **settings)
    assert not lines_of(tmp_path / "run")


SLOWLY: dict[str, Any] = {"learning_rate": 1e-7, "ppo_epochs": 1, "global_batch": 16}
"""one update an iteration, which hardly changes a log-probability"""


@pytest.mark.parametrize(("lie", "settings", "expected"), [
    ("keeps_weights@5", {}, "all trained weights were changed and synced, and the server"),
    ("is_late@5", {}, "all trained weights were changed and synced, and the server"),
    ("keeps_a_layer@5", {}, r"did not follow, model\.layers\.1\.mlp\.up_proj first|changed and synced, and the server"),
    ("keeps_adapter@5", ADAPTERS, "14 of 14 layers of the server did not follow|changed and synced, and the server"),
    ("garbage_ids@5", {}, "server and trainer differ|all trained weights were changed and synced"),
    ("answers_the_first_prompt@5", {}, "server and trainer differ|all trained weights were changed and synced"),
])  # fmt: skip
def test_a_server_that_begins_to_lie_ends_the_run_with_a_checkpoint_within_two_proofs(
    lie: str, settings: dict, expected: str, stub, talkative_models, chats_file: Path, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr(engine_sampler, "PROVE_EVERY", 3)
    with pytest.raises(RunStopped, match=expected) as stopped:
        train_small(
            talkative_models["llama"], chats_file, tmp_path, engine=stub(lie).engine, max_updates=12,
            eval_updates=0, **SLOWLY, **settings,
        )  # fmt: skip
    done = len(lines_of(tmp_path / "run")) - 1  # the first is of the evaluation before step 1
    assert 2 <= done <= 8
    assert (tmp_path / f"run/checkpoints/step-{done:08d}/loop.json").exists()
    assert f"saved after update {done}: the same command goes on" in str(stopped.value)


def test_a_run_one_step_ahead_proves_between_requests(
    stub, talkative_models, chats_file: Path, tmp_path: Path, capfd, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = SLOWLY | {"async_rollouts": 1, "max_updates": 4, "eval_updates": 2}
    monkeypatch.setattr(engine_sampler, "PROVE_EVERY", 1)
    run = train_small(talkative_models["llama"], chats_file, tmp_path, engine=stub().engine, **given)
    assert len([line for line in lines_of(run) if "engine/sync_gap" in line]) == 4
    assert "proved again" not in capfd.readouterr().out


def test_log_probabilities_that_are_shifted_are_noticed_though_each_proof_allows_them(
    stub, talkative_models, chats_file: Path, tmp_path: Path, capfd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sync_proof, "LEAST", {"fp32": 0.05})  # as in 16 bits
    monkeypatch.setattr(sync_proof, "LEAST_CHANGE", {"fp32": 6.0})
    given = {"engine": stub("biased@4").engine, "max_updates": 4, "eval_updates": 0, **SLOWLY}
    train_small(talkative_models["llama"], chats_file, tmp_path, **given)
    said = " ".join(capfd.readouterr().out.split())
    assert "iteration 3: the mean of p / q, which is 1 for replies that were sampled with q, is 1.01" in said
    assert "though a new proof shows that the server has its weights; the run goes on" in said
    ratios = [line["sampler/ratio"] for line in lines_of(tmp_path / "run") if "sampler/ratio" in line]
    assert ratios == pytest.approx([1, 1, 1.01, 1.01], abs=1e-3)


@pytest.mark.parametrize("settings", [
    pytest.param(ADAPTERS, id="adapters", marks=pytest.mark.slow), pytest.param({}, id="weights")
])  # fmt: skip
def test_a_server_that_dies_is_awaited_and_nothing_changes(
    settings: dict, talkative_models, chats_file: Path, tmp_path: Path, capfd
) -> None:
    model, server = talkative_models["llama"], VLLMStub(talkative_models["llama"])
    first = train_small(model, chats_file, tmp_path, name="first", engine=server.engine, **settings)

    def kill() -> None:
        wait_until(lambda: (tmp_path / "second/metrics.jsonl").exists() and lines_of(tmp_path / "second"))
        server.kill()
        server.start()

    killer = threading.Thread(target=kill)
    killer.start()
    second = train_small(model, chats_file, tmp_path, name="second", engine=server.engine, **settings)
    killer.join()
    server.kill()
    assert "the sampler's server failed" in capfd.readouterr().out
    ours, theirs = (load_file(run / "model/model.safetensors") for run in (first, second))
    assert all((ours[name] == theirs[name]).all() for name in ours)


@pytest.mark.parametrize(("settings", "expected"), [
    ({"engine": "openai:http://127.0.0.1:9#m"}, r"--engine 'openai:.*needed: vllm, vllm:URL"),
    ({"engine": "vllm:http://127.0.0.1:9"}, "does not answer as vLLM does"),
    ({"engine": "vllm:http://127.0.0.1:9", "top_p": 0.9}, "--top_k, --top_p or --repetition_penalty, after which"),
    ({"engine": "vllm:http://127.0.0.1:9", "policy_over": "actions"}, "--policy_over actions"),
    ({"engine": "vllm:http://127.0.0.1:9", "modules_to_save": "lm_head", **ADAPTERS}, "--modules_to_save"),
])  # fmt: skip
def test_what_no_server_can_do_is_refused_in_words(
    settings: dict, expected: str, talkative_models, chats_file: Path, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=expected):
        train_small(talkative_models["llama"], chats_file, tmp_path, **settings)


def test_a_server_of_another_model_is_refused(stub, small_models, chats_file: Path, tmp_path: Path) -> None:
    server = stub()
    with pytest.raises(InputError, match=r"serves policy; needed: one of them"):
        train_small(server.model, chats_file, tmp_path, engine=f"{server.engine}#other")
    with pytest.raises(InputError, match=r"reads 256 tokens and a prompt with its reply may have 300"):
        refuse_unfit_server(server.url, "", load_tokenizer(str(server.model)), [9, 8, 7], 300)
    with pytest.raises(InputError, match=r"the vocabulary of 'policy' .* is not the policy's"):
        refuse_unfit_server(server.url, "", load_tokenizer(str(small_models["bert"])), [9, 99, 199], 200)
