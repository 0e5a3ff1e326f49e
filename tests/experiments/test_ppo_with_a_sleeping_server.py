"""A server of the run's own that sleeps while the policy trains: when, and what happens if it does not wake.

It is `vllm_stub.py`, which refuses requests and weights while it sleeps.
"""

import json
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from ppo_in_process import train_small
from vllm_stubs import VLLMStub

from lmgym.errors import InputError
from lmgym.generation.vllm_server import Installed, ServerOptions
from ppo import engine_sampler

pytestmark = pytest.mark.usefixtures("vllm_environment")


@pytest.fixture
def own_server(talkative_models, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., list[VLLMStub]]]:
    """Makes the run's own server the stub, with faults; returns the processes that there are."""
    made: list[VLLMStub] = []

    def use(*lies: str) -> list[VLLMStub]:
        class Server:
            def __init__(self, options: ServerOptions, log: Path) -> None:
                assert options.sleeps
                self.log, self.url = log, ""

            def start(self) -> None:
                made.append(VLLMStub(talkative_models["llama"], *([] if made else lies)))
                self.url = made[-1].url

            def restart(self) -> None:
                self.start()

            def stop(self) -> None:
                pass

        monkeypatch.setattr(engine_sampler, "VLLMServer", Server)
        return made

    yield use
    for process in made:
        process.kill()


def times_slept(server: VLLMStub) -> int:
    with urllib.request.urlopen(urllib.request.Request(f"{server.url}/slept", b"null", method="POST")) as answer:
        return json.load(answer)["times"]


@pytest.mark.parametrize("settings", [{}, {"lora_rank": 2, "lora_alpha": 4}], ids=["weights", "adapters"])
def test_it_sleeps_once_an_iteration_and_has_the_weights_when_it_samples(
    settings: dict, own_server, talkative_models, chats_file: Path, tmp_path: Path
) -> None:
    made = own_server()
    run = train_small(talkative_models["llama"], chats_file, tmp_path, engine="vllm", engine_sleep=True, **settings)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    trained = [line for line in lines if "engine/sync_gap" in line]
    assert len(trained) == 2
    assert all(line["engine/sync_gap"] < 1e-5 and line["sampler/kl"] < 1e-5 for line in trained)
    assert [times_slept(server) for server in made] == [2]


@pytest.mark.parametrize(
    ("lie", "expected"), [("dies_at_wake", "does not wake up: "), ("sleeps_on", "was woken and still sleeps")]
)
def test_one_that_does_not_wake_is_started_again_with_a_line(
    lie: str, expected: str, own_server, talkative_models, chats_file: Path, tmp_path: Path, capfd
) -> None:
    made = own_server(lie)
    train_small(talkative_models["llama"], chats_file, tmp_path, engine="vllm", engine_sleep=True)
    said = [line for line in capfd.readouterr().err.splitlines() if expected in line]
    assert len(said) == 1
    assert said[0].startswith("vLLM failed (http")
    assert said[0].endswith("; it is started again")
    assert len(made) == 2


def test_one_that_refuses_to_sleep_ends_the_run_in_one_line(
    own_server, talkative_models, chats_file: Path, tmp_path: Path
) -> None:
    own_server("has_no_sleep")
    with pytest.raises(InputError, match=r"does not sleep .*needed: vLLM 0.32, or no --engine_sleep"):
        train_small(talkative_models["llama"], chats_file, tmp_path, engine="vllm", engine_sleep=True)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"engine": "vllm:http://a:1"}, "only a server that the run starts sleeps; needed: --engine vllm, or no"),
        ({}, "engine_sleep with engine=None: only a server"),
        ({"engine": "vllm", "async_rollouts": 1}, "the server samples while the policy trains; needed: --async_roll"),
    ],
)
def test_no_other_server_sleeps_nor_one_that_samples_ahead(
    settings: dict, expected: str, talkative_models, chats_file: Path, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=expected):
        train_small(talkative_models["llama"], chats_file, tmp_path, engine_sleep=True, **settings)


def test_a_server_is_told_at_its_start_that_it_will_sleep_where_it_has_a_gpu(tmp_path: Path) -> None:
    options = ServerOptions("m", sleeps=True)
    for on_cpu in (False, True):
        installed = Installed(tmp_path / "python", "0.32.0", on_cpu)
        assert ("--enable-sleep-mode" in options.command(installed, 1)) == (not on_cpu)
        assert options.environment(installed, 1)["VLLM_SERVER_DEV_MODE"] == "1"
    assert "--enable-sleep-mode" not in ServerOptions("m").command(Installed(tmp_path, "0.32.0", False), 1)
