"""`lmgym ab` and `lmgym deploy` on the command line."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from lmgym.apps.world.policies import PolicySpec, load_policies, read_policy
from lmgym.apps.world.world import World
from lmgym.cli.main import main
from lmgym.errors import InputError
from lmgym.generation.protocol import Sampling
from lmgym.scoring.best_of_n import BestOfN
from lmgym.text import Conversation, Turn
from reward_models.logs import read_log
from reward_models.metrics.labels import ACCEPTED_AND_CONTINUED, JOINT_BITS, MESSAGES_FIRST_DAYS, RESPONDS_180S


def ab(*words: object) -> Result:
    """Runs a command of lmgym."""
    return CliRunner().invoke(main, [str(word) for word in words])


def without_times(record: dict) -> dict:
    """The content of an ab.json without times."""
    return {**record, "policies": [{**arm, "seconds": 0} for arm in record["policies"]]}


def test_the_same_seed_gives_the_same_table_except_for_times(tmp_path: Path) -> None:
    words = ["ab", "bots", "bots@gold:2", "--users", 40, "--days", 8]
    first, again, other = (
        ab(*words, "--seed", seed, "--output", tmp_path / name) for seed, name in ((0, "a"), (0, "b"), (1, "c"))
    )
    assert first.exit_code == again.exit_code == other.exit_code == 0, first.output
    a, b, c = (json.loads((tmp_path / name / "ab.json").read_text()) for name in "abc")
    assert without_times(a) == without_times(b) != without_times(c)
    tables = [re.findall("[│┃].*", result.stdout) for result in (first, again)]
    assert tables[0] == tables[1]
    assert len(tables[0]) == 1 + 5 * 2  # a row a figure and policy: no day 30 in 8 days
    assert a["design"]["users"] == 40
    assert [arm["users"] for arm in a["policies"]] == [20, 20]
    assert "users, " in first.stderr
    assert "seconds" not in first.stdout


def test_paired_users_are_the_same_and_give_smaller_intervals(tmp_path: Path) -> None:
    result = ab("ab", "bots", "bots@gold:4", "--users", 50, "--days", 5, "--paired", "--output", tmp_path, "--logs")
    assert result.exit_code == 0, result.output
    record = json.loads((tmp_path / "ab.json").read_text())
    assert [arm["users"] for arm in record["policies"]] == [50, 50]
    length = record["comparisons"][0]["figures"]["conversation length"]
    assert length["relative"] > 0.3
    assert length["p_value"] < 1e-4
    assert length["low"] < length["difference"] < length["high"]
    values = [arm["figures"]["conversation length"] for arm in record["policies"]]
    assert length["difference"] == pytest.approx(values[1]["value"] - values[0]["value"])
    assert all(value["low"] < value["value"] < value["high"] for value in values)
    users = [set(pq.read_table(tmp_path / f"logs/{n}/logs.parquet")["user_id"].to_pylist()) for n in (1, 2)]
    assert users[0] == users[1] <= set(range(50))


def test_behaviour_experiments_read_the_apps_logs(tmp_path: Path) -> None:
    result = ab("deploy", "bots", "--users", 60, "--days", 6, "--output", tmp_path)
    assert result.exit_code == 0, result.output
    assert "logs " in result.stdout
    for label in (JOINT_BITS, ACCEPTED_AND_CONTINUED, MESSAGES_FIRST_DAYS, RESPONDS_180S):
        log = read_log(str(tmp_path / "logs.parquet"), "train", label)
        assert len(log.usable) > 0.9 * len(log.labels)  # some times are not known
        bits = log.labels[log.usable].reshape(len(log.usable), -1)
        assert (np.nanstd(np.where(bits == -100, np.nan, bits), axis=0) > 0).all()


def test_a_model_and_the_best_of_its_replies_by_a_scorer_are_policies(small_models, scorer_folders, tmp_path) -> None:
    policy, scorer = small_models["llama"], scorer_folders["gpt2"]
    words = ["--users", 6, "--days", 2, "--max_new_tokens", 8, "--paired", "--output", tmp_path]
    result = ab("ab", policy, f"{policy}@{scorer}:3", *words)
    assert result.exit_code == 0, result.output
    found = [arm["policy"] for arm in json.loads((tmp_path / "ab.json").read_text())["policies"]]
    assert found == [str(policy), f"{policy}@{scorer}:3"]


def test_the_hidden_utility_is_a_ceiling_and_a_random_scorer_a_floor() -> None:
    world = World(0)
    bots, gold, chance = load_policies(["bots", "bots@gold:8", "bots@random:8"], world)
    assert isinstance(gold, BestOfN)
    assert isinstance(chance, BestOfN)
    conversations = [  # of 300 kinds: a random scorer gives the same reply to the same message one score
        Conversation((Turn("user", f"tell me about {thing}."),), persona.text)
        for thing in world.grammar.topic_of
        for persona in world.grammar.vocabulary.personas
    ]
    worth = [
        world.utility(conversations, [one.text for [one] in policy.reply(conversations, 1, Sampling())]).mean()
        for policy in (bots, gold, chance)
    ]
    assert worth[1] > worth[0] + 0.8
    assert abs(worth[2] - worth[0]) < 0.25


def test_a_folder_with_an_at_sign_is_a_folder(tmp_path: Path) -> None:
    (tmp_path / "me@gold:3").mkdir()
    assert read_policy(str(tmp_path / "me@gold:3")) == PolicySpec(str(tmp_path / "me@gold:3"))
    assert read_policy(f"{tmp_path}/me@gold:3@gold:2") == PolicySpec(f"{tmp_path}/me@gold:3", "gold", 2)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "found 0; needed: at least 2 policies"),
        (["bots"], "found 1; needed: at least 2 policies, a baseline"),
        (["bots", "nowhere"], "'nowhere' is not a folder; needed: a folder, owner/name of the hub"),
        (["bots", "nowhere@gold:2"], "policy 'nowhere' of 'nowhere@gold:2' is not a folder"),
        (["bots", "bots@nowhere:2"], "scorer 'nowhere' of 'bots@nowhere:2' is not a folder"),
        (["bots", "bots@gold"], "ends in @gold; needed: @SCORER:N, such as bots@gold:4"),
        (["bots", "bots@gold:-1"], "ends in @gold:-1; needed: @SCORER:N"),
        (["bots", "bots@gold:0"], "the best of 0 replies; needed: 1 or more"),
        (["bots", "bots", "--users", "0"], "0 users for 2 policies; needed: 2 or more with each, so 4 in all"),
        (["bots", "bots", "--users", "0", "--paired"], "0 users who meet every policy; needed: 2 or more"),
        (["bots", "bots", "--days", "0"], "0 days; needed: 1 to 100"),
        (["bots", "bots", "--days", "2", "--logs"], "2 days give no logs"),
        (["bots", "bots", "--temperature", "-1"], "temperature=-1.0; needed"),
        (["bots", "tests", "--users", "20"], "tests"),
    ],
)
def test_a_mistake_in_a_policy_or_the_design_is_refused_in_a_line(
    words: list[str], message: str, tmp_path: Path
) -> None:
    result = ab("ab", *words, "--output", tmp_path / "out")
    assert result.exit_code == 2
    assert message in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert result.stderr.startswith("error: ")
    assert not (tmp_path / "out").exists()


def test_a_policy_without_eos_is_refused(small_models, tmp_path: Path) -> None:
    folder = tmp_path / "endless"
    shutil.copytree(small_models["llama"], folder)
    for name in ("config.json", "generation_config.json", "tokenizer_config.json", "special_tokens_map.json"):
        if (folder / name).exists():
            settings = json.loads((folder / name).read_text())
            settings.pop("eos_token_id", None)
            settings.pop("eos_token", None)
            (folder / name).write_text(json.dumps(settings))
    with pytest.raises(InputError, match="has no eos: its replies would never end; needed: an eos_token"):
        load_policies([str(folder)], World(0))
