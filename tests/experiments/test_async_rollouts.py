"""Rollouts that are sampled one iteration ahead: at once, or by a thread while an iteration trains; what fails then."""

import copy
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from launching import read_metrics, words
from ppo_in_process import Go
from safetensors.torch import load_file

import ppo.setup
from lmgym.errors import InputError, RunStopped, ServerError
from ppo.weight_sync import SamplingPolicy

AHEAD = {"async_rollouts": 1, "max_updates": 16}  # four iterations of four updates


class Failing:
    """A generator that fails when `fails` is asked with the number of the call."""

    def __init__(self, inner: Any, fails: Callable[[int], bool]) -> None:
        self.inner, self.fails = inner, fails
        self.threads: list[str] = []
        """that called"""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def generate(self, *given: Any) -> Any:
        self.threads.append(threading.current_thread().name)
        if self.fails(len(self.threads)):
            raise ServerError(f"http://gone: no answer to call {len(self.threads)}")
        return self.inner.generate(*given)


class Elsewhere:
    """A sampler with weights of its own and a generator that may fail."""

    runs_elsewhere = True

    def __init__(self, fails: Callable[[int], bool], actor: Any, *given: Any) -> None:
        self.trained, self.own, self.whole = actor, copy.deepcopy(actor), actor.decoder
        self.inner = SamplingPolicy(self.own, *given)
        self.generator = Failing(self.inner.generator, fails)
        self.recovered: list[str] = []

    @torch.no_grad()
    def sync(self, version: int, proves: bool = False) -> None:
        for own, trained in zip(self.own.parameters(), self.trained.parameters(), strict=True):
            own.copy_(trained)
        self.inner.sync(version)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def recover(self, error: ServerError) -> None:
        self.recovered.append(str(error))


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[int], bool]], list[Elsewhere]]:
    """From here on runs sample with such a sampler; those that were made."""

    def put(fails: Callable[[int], bool] = lambda call: False) -> list[Elsewhere]:
        made: list[Elsewhere] = []

        def make(*given) -> Elsewhere:
            made.append(Elsewhere(fails, *given))
            return made[-1]

        monkeypatch.setattr(ppo.setup, "SamplingPolicy", make)
        return made

    return put


def assert_same_weights(one: Path, other: Path) -> None:
    a, b = (load_file(folder / "model/model.safetensors") for folder in (one, other))
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_the_first_iteration_is_fresh_and_others_are_one_iteration_old(go: Go, capsys) -> None:
    folder = go(**AHEAD)
    found = read_metrics(folder)
    assert list(found["rollout/staleness"].values()) == [0, 4, 4, 4]
    gaps = list(found["rollout/logprob_mismatch_max"].values())
    assert gaps[0] < 1e-4 < min(gaps[1:]), "the trainer has moved on"
    assert found["sampler/weight"][4] == 1 != found["sampler/weight"][8]
    said = words(capsys.readouterr().out)
    assert "token_truncate, p_old / p_sampler of each token, at most 2" in said
    assert "sampled one iteration ahead" in said


def test_a_thread_that_waits_for_another_process_gives_the_same_run(go: Go, elsewhere) -> None:
    at_once = go(name="at_once", **AHEAD)
    made = elsewhere()
    in_thread = go(name="in_thread", **AHEAD)
    assert_same_weights(at_once, in_thread)
    [sampler] = made
    assert sampler.generator.threads.count("rollouts") == 3, "all iterations' but the first"
    assert read_metrics(at_once)["reward/mean"] == read_metrics(in_thread)["reward/mean"]


def test_weights_that_would_sample_the_next_iteration_and_are_not_the_trainers_are_refused(go: Go, monkeypatch) -> None:
    sync = SamplingPolicy.sync
    monkeypatch.setattr(
        SamplingPolicy, "sync", lambda own, version=0, proves=False: sync(own, version) if not version else None
    )
    with pytest.raises(InputError, match="the sampler's weights are not the trainer's: sampled after update 0 of this"):
        go(**AHEAD)


def test_training_does_not_wait_for_the_rollouts_that_are_sampled_ahead(go: Go, elsewhere, monkeypatch) -> None:
    trained, waited = threading.Event(), []

    def fails(call: int) -> bool:
        if threading.current_thread().name == "rollouts" and not waited:
            waited.append(trained.wait(60))
        return False

    elsewhere(fails)
    step = ppo.setup.PlainEngine.step
    monkeypatch.setattr(ppo.setup.PlainEngine, "step", lambda engine: (trained.set(), step(engine))[1])
    go(**AHEAD)
    assert waited == [True], "an update was made while the first rollouts ahead were not there"


@pytest.mark.parametrize(("ahead", "failing"), [(0, (2, 3)), (1, (3, 4)), (1, (1, 2))])
def test_a_server_that_fails_twice_is_recovered_and_the_iteration_is_played_again(
    ahead: int, failing: tuple[int, ...], go: Go, elsewhere, capsys
) -> None:
    # call 1 is the evaluation before step 1, 2 the first iteration, 3 the second, by a thread if sampled ahead
    made = elsewhere(lambda call: call in failing)
    folder = go(async_rollouts=ahead)
    assert [error[-1:] for error in made[0].recovered] == [str(call) for call in failing]
    out = words(capsys.readouterr().out)
    assert f"the sampler's server failed: http://gone: no answer to call {failing[0]}; try 1 of 3" in out
    if ahead and failing[0] == 3:
        assert list(read_metrics(folder)["rollout/staleness"].values()) == [0, 0], "by the weights of when it was back"
    elsewhere()
    if failing[0] != 3:
        assert_same_weights(folder, go(name="without", async_rollouts=ahead))


def test_a_server_that_stays_away_ends_the_run_at_its_last_checkpoint(go: Go, elsewhere) -> None:
    made = elsewhere(lambda call: call > 3)
    with pytest.raises(RunStopped, match=r"server failed 4 times: http://gone.*the last checkpoint is good") as stopped:
        go(max_updates=16, save_updates=4)
    assert (stopped.value.outcome, stopped.value.exit_code) == ("server_failed", 69)
    assert len(made[0].recovered) == 3
    elsewhere()
    done = go(max_updates=16, save_updates=4)
    assert_same_weights(done, go(name="whole", max_updates=16, save_updates=4))


def test_an_error_of_ones_own_engine_is_not_retried(go: Go, monkeypatch) -> None:
    def fail(*given, **settings):
        raise ServerError("the served judge is gone")

    monkeypatch.setattr("ppo.rollouts.run_episodes", fail)
    with pytest.raises(ServerError, match="the served judge is gone"):
        go()


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"method": "dapo", "num_generations": 4}, "async_rollouts=1 with max_refills=10: rewards decide"),
        ({"opponents": "pool:somewhere"}, "async_rollouts=1 with opponents=pool:/"),
        ({"async_rollouts": 2}, "async_rollouts=2; needed: 0 to 1"),
    ],
)
def test_what_needs_its_own_iteration_is_refused(settings: dict, why: str, go: Go) -> None:
    with pytest.raises(InputError, match=why):
        go(**AHEAD | settings)
