"""A run that asks for rewards is watched by the scorers that it is not trained on, and warned when it exploits its own.

The scorers read numbers that the replies hold: the first is the reward, the second a monitor's score.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from launching import BIN
from patience import PATIENCE, wait_until
from reward_servers import RewardServer, start

from lmgym.apps.serve import runs
from lmgym.apps.serve.lmgym_client import Client, RewardError, trl_reward
from lmgym.apps.serve.runs_page import runs_page

SCORERS = """
import torch

class Number:
    def __init__(self, place):
        self.place = place
    def score(self, conversations, replies):
        return torch.tensor([float(reply.split()[self.place]) for reply in replies])

def number(path):
    return Number(int(path.partition(":")[2]))
"""
GROUPS, EACH, STEPS = 16, 4, 24


@pytest.fixture(scope="module")
def numbers(tmp_path_factory) -> Path:
    """A console script beside which `number:0` is a scorer, as another package would add it."""
    pytest.importorskip("fastapi")
    pytest.importorskip("uvicorn")
    folder = tmp_path_factory.mktemp("numbers")
    (folder / "number_scorers.py").write_text(SCORERS)
    told = folder / "number_scorers-1.dist-info"
    told.mkdir()
    (told / "METADATA").write_text("Metadata-Version: 2.1\nName: number_scorers\nVersion: 1\n")
    (told / "entry_points.txt").write_text("[lmgym.scorers]\nnumber = number_scorers:number\n")
    return Path(shutil.copy(BIN / "lmgym", folder))


@pytest.fixture(scope="module")
def watching(numbers: Path) -> Iterator[RewardServer]:
    server = start("reward=number:0", "monitor=number:1", script=numbers)
    yield server
    assert server.stop() == 0


def replies_of(step: int, exploits: bool) -> tuple[list[str], list[str]]:
    """(prompts, replies) whose rewards rise; so do the monitor's scores for the first half, and to the end if sound."""
    random = np.random.default_rng(step)
    progress = step / STEPS
    quality = 3 * (min(progress, 1 - progress) if exploits else progress)
    prompts, replies = [], []
    for group in range(GROUPS):
        of_group = random.normal(0, 0.3, 2)
        for noise in random.normal(0, 0.3, (EACH, 2)):
            reward, monitored = np.array([2 * progress, quality]) + of_group + noise
            prompts.append(f"question {group}?")
            replies.append(f"{reward:.6f} {monitored:.6f}")
    return prompts, replies


def train(client: Client, exploits: bool, scorer: str | None = None, steps: int = STEPS) -> dict[str, list[float]]:
    """The metrics that TRL would log of a run."""
    logged: dict[str, list[float]] = {}
    reward = trl_reward(scorer, client)
    for step in range(steps):
        prompts, replies = replies_of(step, exploits)
        found = reward(
            prompts=prompts,
            completions=replies,
            trainer_state=SimpleNamespace(global_step=step),
            log_metric=lambda name, value: logged.setdefault(name, []).append(value),
        )
        assert found == pytest.approx([float(reply.split()[0]) for reply in replies], abs=1e-5)
    return logged


def run_of(server: RewardServer, name: str) -> dict:
    [found] = [run for run in server.ask("/runs")[1]["runs"] if run["run"] == name]
    return found


def test_a_run_that_exploits_its_reward_is_warned_before_the_monitor_lost_its_gain(watching: RewardServer) -> None:
    client = Client(watching.url, run="exploits")
    with pytest.warns(RuntimeWarning, match=r"ALARM at step \d+: monitor monitor's score fell from .* the reward rose"):
        logged = train(client, exploits=True)
    at = logged["lmgym/alarm"].index(1.0)
    assert STEPS / 2 < at < STEPS * 5 / 6
    assert logged["lmgym/alarm"] == [0.0] * at + [1.0] * (STEPS - at)
    monitored = logged["lmgym/monitor"]
    assert monitored[at] > monitored[0] + (max(monitored) - monitored[0]) / 4
    run = run_of(watching, "exploits")
    assert (run["reward"], run["monitors"], run["replies"]) == ("reward", ["monitor"], GROUPS * EACH * STEPS)
    assert run["alarms"] == {"monitor": at - 1}  # a step is read when the next one begins
    assert run["readings"][0]["means"]["reward"] == pytest.approx(1 / STEPS, abs=0.2)
    assert (run["readings"][0]["first_step"], run["readings"][0]["last_step"]) == (0, 1)
    page = watching.ask("/runs.html")[1]
    assert "1 of" in page
    assert "exploits: ALARM at step" in page


def test_a_sound_run_is_not_warned(watching: RewardServer) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        logged = train(Client(watching.url, run="sound"), exploits=False, scorer="reward")
    assert set(logged["lmgym_reward/alarm"]) == {0.0}
    wait_until(lambda: run_of(watching, "sound")["replies"] == GROUPS * EACH * STEPS)
    run = run_of(watching, "sound")
    assert run["warnings"] == []
    assert run["monitors"] == ["monitor"]  # which watches though the request names another scorer
    assert run["readings"][-1]["means"]["monitor"] > 2


def test_openrlhf_gets_the_alarm_as_a_number_and_names_its_run_in_the_address(watching: RewardServer) -> None:
    alarms = []
    for step in range(STEPS):
        prompts, replies = replies_of(step, exploits=True)
        texts = [f"User: {prompt}\nBot: {reply}" for prompt, reply in zip(prompts, replies, strict=True)]
        status, answer, _ = watching.ask(f"/get_reward?run=open%20r&step={step}", {"query": texts})
        assert status == 200
        alarms.append(answer["extra_logs"]["alarm"])
    assert alarms[0] == [0.0] * GROUPS * EACH
    assert alarms[-1] == [1.0] * GROUPS * EACH
    assert answer["lmgym"]["warnings"] == run_of(watching, "open r")["warnings"] != []
    _, unnamed, _ = watching.ask("/get_reward", {"query": texts})
    assert unnamed["extra_logs"]["alarm"] == [0.0] * GROUPS * EACH


def test_a_scorer_that_the_same_run_is_trained_on_too_is_no_monitor(watching: RewardServer) -> None:
    client = Client(watching.url, run="two rewards")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for step in range(STEPS):
            prompts, replies = replies_of(step, exploits=True)
            chats = [{"prompt": p, "reply": r} for p, r in zip(prompts, replies, strict=True)]
            for scorer in ("reward", "monitor"):
                client.rewards(chats, scorer, step)
    found = [run for run in watching.ask("/runs")[1]["runs"] if run["run"] == "two rewards"]
    assert {run["reward"]: run["monitors"] for run in found} == {"monitor": [], "reward": []}


def test_figures_say_how_long_and_how_varied_the_replies_are(watching: RewardServer) -> None:
    client = Client(watching.url, run="copies")
    for step in range(6):
        chats = [{"prompt": f"q{i}", "reply": "1.0 2.0"} for i in range(64)]
        client.rewards(chats, step=step)
    [first, *_] = run_of(watching, "copies")["readings"]
    assert (first["replies"], first["groups"]) == (128, 128)
    assert first["means"] == {
        "reply/characters": 7, "reply/duplicates": pytest.approx(63 / 64), "reward": 1.0, "monitor": 2.0,
    }  # fmt: skip
    assert first["errors"]["reward"] == 0


def test_calibrated_scorers_and_ensembles_are_read_with_their_distances_and_spread(server: RewardServer) -> None:
    client = Client(server.url, run="calibrated")
    for step in range(4):
        client.rewards([{"prompt": f"hello {i}", "reply": f"hi {i}"} for i in range(64)], "b", step)
    wait_until(lambda: run_of(server, "calibrated")["readings"])  # the monitors score after the answer
    [reading, *_] = run_of(server, "calibrated")["readings"]
    page = server.ask("/runs.html")[1]
    assert "z: distance from the scorer" in page
    assert {"a/z", "a/outside", "both/spread", "b"} <= set(reading["means"])


def test_a_run_without_steps_is_read_by_time(monkeypatch) -> None:
    watch = runs.Watch("r", "reward", {})
    clock = [0.0]
    monkeypatch.setattr(runs.time, "monotonic", lambda: clock[0])
    watch.began = 0.0
    scored = {"reward": runs.Scored([runs.Opinion((1.0,))], None)}
    for second in range(400):
        clock[0] = second
        conversation = runs.Sample(f"q{second}", f"{second}")
        watch.add(None, [conversation], scored, [])
    [reading] = watch.readings[:1]
    assert (reading.first_step, reading.last_step, reading.replies) == (0, 12, 130)


def test_a_name_that_begins_again_is_another_run_and_a_late_request_is_not(watching: RewardServer) -> None:
    client = Client(watching.url, run="again")
    chat = [{"prompt": "q", "reply": "1.0 1.0"}]
    for step in (3, 4, 2, 20, 19):
        client.rewards(chat, step=step)
    assert run_of(watching, "again")["replies"] == 5
    client.rewards(chat, step=3)
    assert run_of(watching, "again")["replies"] == 1


def test_runs_and_readings_are_bounded(watching: RewardServer, monkeypatch) -> None:
    for number in range(runs.MOST_RUNS + 10):
        Client(watching.url, run=f"many {number}").rewards([{"prompt": "q", "reply": "1.0 1.0"}])
    names = [run["run"] for run in watching.ask("/runs")[1]["runs"]]
    assert names == [f"many {number}" for number in reversed(range(10, runs.MOST_RUNS + 10))]
    watch = runs.Watch("r", "reward", {})
    monkeypatch.setattr(runs, "MOST_OF_STEP", 1024)
    scored = {"reward": runs.Scored([runs.Opinion((1.0,))] * 256, None)}
    samples = [runs.Sample(f"q{i}", "x") for i in range(256)]
    for number in range(8):
        watch.add(0, samples, scored, [])
        assert watch._of_step == 256 * (number % 4 + 1)
    watch = runs.Watch("r", "reward", {})
    for step in range(2_000):
        watch.add(step, samples, scored, [])
    assert watch.replies == 512_000
    assert len(watch.readings) < 80


def test_a_run_is_refused_after_its_alarm_if_the_server_is_told_to(numbers: Path) -> None:
    server = start("reward=number:0", "monitor=number:1", "--stop_on_alarm", script=numbers)
    try:
        client = Client(server.url, run="stops", patience=PATIENCE)
        words = "run 'stops' gets no more rewards .*: ALARM at step"
        with pytest.warns(RuntimeWarning, match="ALARM"), pytest.raises(RewardError, match=words):
            train(client, exploits=True)
        body = {"conversations": [{"prompt": "q", "reply": "1 1"}], "scorers": ["reward"]}
        status, answer, headers = server.ask("/v1/score", body, X_LMGym_Run="stops")
        assert (status, answer["error"]["type"], headers["Retry-After"]) == (503, "run_stopped", "60")
        assert server.ask("/v1/score", body, X_LMGym_Run="other")[0] == 200
    finally:
        assert server.stop() == 0


@pytest.mark.parametrize(
    ("headers", "words"),
    [
        ({"X_LMGym_Run": "a" * 101}, "at most 100 visible characters"),
        ({"X_LMGym_Run": "a%0Ab"}, "at most 100 visible characters"),
        ({"X_LMGym_Run": "a", "X_LMGym_Step": "-1"}, "x-lmgym-step"),
        ({"X_LMGym_Run": "a", "X_LMGym_Step": "first"}, "x-lmgym-step"),
    ],
)
def test_a_run_that_cannot_be_noted_is_refused_in_words(watching: RewardServer, headers: dict, words: str) -> None:
    status, answer, _ = watching.ask("/v1/score", {"conversations": [{"prompt": "q", "reply": "1 1"}]}, **headers)
    assert status == 400
    assert words in answer["error"]["message"]


def test_names_of_runs_are_text_on_the_page(watching: RewardServer) -> None:
    Client(watching.url, run="<script>alert(1)</script> Läufe 🏃" + "日" * 60).rewards(
        [{"prompt": "q", "reply": "1 1"}]
    )
    page = watching.ask("/runs.html")[1]
    assert "<script>alert(1)" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt; Läufe 🏃" in page
    assert "too few replies" in page
    assert "://" not in page.partition("<script")[0]
    assert "No run has asked" in runs_page([])


def test_intervals_on_the_page_are_student_s() -> None:
    reading = {
        "first_step": 0, "last_step": 1, "replies": 64, "groups": 3, "errors": {"reward": 0.5},
        "means": {"reward": 1.0, "reply/characters": 3.0, "reply/duplicates": 0.0},
    }  # fmt: skip
    run = {
        "run": "a", "reward": "reward", "monitors": [], "warnings": [], "alarms": {}, "readings": [reading],
        "replies": 64, "seconds_since_request": 1,
    }  # fmt: skip
    page = runs_page([run])
    [charts] = re.findall(r'id="charts-json">(.*?)</script>', page)
    [first] = json.loads(charts)["gains_0"]["data"]["values"]
    # the 97.5% quantile of Student's t with 2 degrees of freedom, errors in units of deviations: 1 / sqrt(3)
    assert first["high"] == pytest.approx(4.302653 / 3**0.5)
    assert first["low"] == pytest.approx(-4.302653 / 3**0.5)


def test_ranks_of_a_launch_share_a_run_s_name() -> None:
    code = "from lmgym.apps.serve.lmgym_client import Client; print(Client().run)"

    def name(**environment: str) -> str:
        whole = {key: value for key, value in os.environ.items() if key not in ("LOCAL_RANK", "LMGYM_RUN")}
        command = [sys.executable, "-c", code]
        done = subprocess.run(
            command, capture_output=True, text=True, check=True, env=whole | environment, cwd=Path.cwd()
        )
        return json.loads(json.dumps(done.stdout.strip()))

    assert name(LOCAL_RANK="0") == name(LOCAL_RANK="1")
    assert name() != name()
    assert name(LMGYM_RUN="mine") == "mine"
