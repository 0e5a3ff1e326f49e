"""PPO as a user launches it: one run under every launcher and ZeRO stage, with the rollouts of plain Python played
again, so that what differs is the engine alone.
"""

import json
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest
import torch
from launching import ROOT, flags, largest_difference, launch, read_lines, read_metrics, read_weights, run, words
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

SCRIPT = ROOT / "tests/experiments/ppo_script.py"
SAMPLING = ROOT / "tests/experiments/ppo_sampling_script.py"
# Adam hides a gradient that is too large throughout, unless its epsilon is as large as the gradients
EPS = {"LMGYM_TEST_EPS": "0.1"}
SECONDS = 560  # other work may have the processors
NAMES = {"loss/policy", "loss/value", "policy/approx_kl", "values/mean", "returns/std", "policy/entropy"}
Go = Callable[..., tuple[CompletedProcess[str], Path]]


@pytest.fixture(scope="module")
def go(tmp_path_factory, talkative_models: dict[str, Path], chats_file: Path) -> Go:
    """Launches the script and returns how it ended and its folder."""

    def begin(
        kind: str, *more: object, family: str = "gpt2", config: str | None = None, fails: bool = False,
        plant: dict[str, str] = EPS, **changes,
    ) -> tuple[CompletedProcess[str], Path]:  # fmt: skip
        folder = tmp_path_factory.mktemp("ppo") / "run"
        values = {"model": talkative_models[family], "prompts": chats_file, "output": folder, "tracking": "none"}
        values |= {"learning_rate": 0.1, "save_updates": -1, **changes}
        if config:
            values["deepspeed"] = ROOT / "configs" / config
        done = run(launch(kind, *flags(**values), *more, script=SCRIPT), seconds=SECONDS, **plant)
        assert (done.returncode == 0) != fails, done.stdout[-3000:] + done.stderr[-5000:]
        return done, folder

    return begin


@pytest.fixture(scope="module")
def recorded(go: Go, tmp_path_factory) -> Callable[..., tuple[Path, dict[str, str]]]:
    """A run of plain Python with some flags: its folder, and what makes another run play its rollouts again."""
    known: dict[str, tuple[Path, dict[str, str]]] = {}

    def record(*more: object, **changes) -> tuple[Path, dict[str, str]]:
        key = json.dumps([more, changes], default=str, sort_keys=True)
        if key not in known:
            file = tmp_path_factory.mktemp("rollouts") / "replies.json"
            _, folder = go("fork", *more, plant=EPS | {"LMGYM_TEST_RECORD": str(file)}, **changes)
            assert len({len(one["ids"]) for one in json.loads(file.read_text()).values()}) > 3, "lengths differ"
            known[key] = folder, EPS | {"LMGYM_TEST_REPLAY": str(file)}
        return known[key]

    return record


def replies_of(folder: Path) -> list[list[tuple]]:
    """The first replies of each iteration, by rank 0."""
    files = sorted((folder / "samples").glob("rollouts-*"))
    return [[(row["prompt"], row["tokens"], row["reply"], row["reward"]) for row in read_lines(path)] for path in files]


def assert_same_run(found: Path, wanted: Path, bar: float = 1e-5) -> None:
    """Equal rollouts, losses (the issue's bar is 1e-4) and final weights."""
    a, b = read_metrics(found), read_metrics(wanted)
    assert list(b["loss/policy"]) == [4, 8, 12]
    assert max(b["policy/approx_kl"].values()) < 0.1, "a step so large that rounding decides would compare nothing"
    assert a["rollout/trained_tokens"] == b["rollout/trained_tokens"], "the same tokens"
    for own, every in zip(replies_of(found), replies_of(wanted), strict=True):
        assert own[:4] == every[::2], "of two ranks the first has one episode in two"
    for name in NAMES & b.keys():
        assert a[name] == pytest.approx(b[name], abs=bar), name
    moved = largest_difference(read_weights(wanted), read_start(wanted))
    assert moved > 2e-3, "or there is nothing to compare"
    assert largest_difference(read_weights(found), read_weights(wanted)) < min(bar, moved / 100)


def read_start(folder: Path) -> dict[str, torch.Tensor]:
    """The weights that a run began from."""
    start = json.loads((folder / "run.json").read_text())["config"]["model"]
    state = AutoModelForCausalLM.from_pretrained(start, dtype=torch.float32).state_dict()
    return {name: state[name] for name in read_weights(folder)}


def slow(*values):
    return pytest.param(*values, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("kind", "config"),
    [
        ("forks", "zero3.json"),
        slow("torchrun", None),
        slow("deepspeed", "zero1.json"),
        slow("deepspeed", "zero2.json"),
    ],
)
def test_two_ranks_learn_from_the_same_rollouts_what_plain_python_does(
    kind: str, config: str | None, go: Go, recorded
) -> None:
    wanted, replay = recorded()
    _, found = go(kind, config=config, plant=replay)
    assert_same_run(found, wanted)


@pytest.mark.parametrize(
    ("kind", "config"),
    [
        ("forks", "zero2.json"),
        slow("forks", "zero2_offload.json"),
        slow("forks", "zero3.json"),
        slow("torchrun", None),
    ],
)
def test_so_they_do_with_micro_batches_by_tokens(kind: str, config: str | None, go: Go, recorded) -> None:
    wanted, replay = recorded()
    _, found = go(kind, config=config, plant=replay, tokens_per_micro_batch=80)
    assert_same_run(found, wanted)


@pytest.mark.parametrize(
    ("family", "config"),
    [
        slow("llama", "zero2.json"),
        slow("llama", "zero1.json"),
        slow("llama", "zero2_offload.json"),
        slow("llama", "zero3.json"),
        slow("llama", None),
        slow("qwen3", "zero2.json"),
    ],
)
def test_so_do_two_ranks_of_other_families(family: str, config: str | None, go: Go, recorded) -> None:
    wanted, replay = recorded(family=family)
    _, found = go("forks", config=config, plant=replay, family=family)
    assert_same_run(found, wanted)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "config"), [("gpt2", "zero2.json"), ("gpt2", "zero3.json"), ("llama", "zero3.json")]
)
def test_so_do_two_ranks_of_which_the_lower_layers_are_frozen(family: str, config: str, go: Go, recorded) -> None:
    wanted, replay = recorded(num_layers_unfrozen=1, family=family)
    _, found = go("deepspeed", config=config, plant=replay, num_layers_unfrozen=1, family=family)
    assert_same_run(found, wanted)
    moved = {n: (x - read_start(found)[n]).abs().max().item() for n, x in read_weights(found).items()}
    frozen = [n for n, x in moved.items() if x == 0]
    layers = "transformer.h." if family == "gpt2" else "model.layers."
    assert any(name.startswith(f"{layers}0.") for name in frozen)
    assert not any(name.startswith(f"{layers}1.") for name in frozen if "bias" not in name)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "config"),
    [
        ("torchrun", None),
        ("deepspeed", "zero1.json"),
        ("deepspeed", "zero2.json"),
        ("deepspeed", "zero2_offload.json"),
        ("deepspeed", "zero3.json"),
    ],
)
def test_so_do_two_ranks_with_a_critic_of_its_own_and_with_adapters(
    kind: str, config: str | None, go: Go, recorded, scorer_folders: dict[str, Path]
) -> None:
    for changes in ({"critic": scorer_folders["llama"], "critic_learning_rate": 0.02}, {"lora_rank": 4}):
        wanted, replay = recorded(family="llama", **changes)
        _, found = go(kind, config=config, plant=replay, family="llama", **changes)
        assert_same_run(found, wanted)
        model = AutoModelForCausalLM.from_pretrained(found / "model")
        ids = AutoTokenizer.from_pretrained(found / "model")("and now", return_tensors="pt")
        assert torch.isfinite(model(**ids).logits).all(), "an ordinary folder"
        saved, plain = (load_file(next((folder / "critic").glob("*.safetensors"))) for folder in (found, wanted))
        assert saved.keys() == plain.keys()
        assert all(torch.allclose(saved[name], plain[name], atol=1e-4) for name in saved)


@pytest.mark.parametrize(
    ("kind", "config", "changes"),
    [
        ("forks", "zero2.json", {"method": "grpo", "num_generations": 16}),
        slow("torchrun", None, {"method": "reinforce_pp_baseline", "num_generations": 4, "learning_rate": 0.05}),
        slow("deepspeed", "zero1.json", {"method": "gspo", "num_generations": 4, "cliprange": 0.01}),
        slow("deepspeed", "zero3.json", {"method": "cispo", "num_generations": 16, "entropy_coef": 0.01}),
        slow("deepspeed", "zero3.json", {"method": "reinforce_pp", "lora_rank": 4}),
        slow("deepspeed", "zero2.json", {"method": "dapo", "num_generations": 4, "num_layers_unfrozen": 1}),
    ],
)
def test_so_do_two_ranks_without_a_critic_that_hold_groups_whole_or_share_them(
    kind: str, config: str | None, changes: dict, go: Go, recorded
) -> None:
    wanted, replay = recorded(family="llama", **changes)
    _, found = go(kind, config=config, plant=replay, family="llama", **changes)
    assert_same_run(found, wanted)
    assert not (found / "critic").exists()
    assert read_metrics(found).keys() == read_metrics(wanted).keys()


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        slow("llama", {}),
        slow("gpt2", {"num_layers_unfrozen": 1}),
        slow("qwen3", {"lora_rank": 4}),
        slow("llama", {"num_layers_unfrozen": 1}),
    ],
)
def test_ranks_call_the_head_alike_however_many_pieces_their_logits_are(
    family: str, changes: dict, go: Go, recorded, talkative_models
) -> None:
    words_known = AutoModelForCausalLM.from_pretrained(talkative_models[family]).config.vocab_size
    wanted, replay = recorded(family=family, **changes)
    plant = replay | {"LMGYM_TEST_LOGITS": str(6 * words_known)}  # a micro-batch has 2 replies of at most 8 tokens
    _, found = go("forks", config="zero3.json", family=family, plant=plant, stall_timeout=60, **changes)
    assert_same_run(found, wanted)


@pytest.mark.slow
def test_ranks_agree_on_whether_the_frozen_layers_states_are_kept(go: Go, recorded) -> None:
    wanted, replay = recorded(num_layers_unfrozen=1)
    plant = replay | {"LMGYM_TEST_CACHE": "1", "LMGYM_TEST_RANK": "1"}
    _, found = go("deepspeed", config="zero3.json", plant=plant, num_layers_unfrozen=1, stall_timeout=60)
    assert_same_run(found, wanted)


def assert_same_talks(found: Path, wanted: Path) -> None:
    assert read_metrics(found)["rollout/trained_tokens"] == read_metrics(wanted)["rollout/trained_tokens"]
    assert largest_difference(read_weights(wanted), read_start(wanted)) > 1e-3, "or there is nothing to compare"
    assert largest_difference(read_weights(found), read_weights(wanted)) < 1e-5


def test_ranks_whose_episodes_have_other_numbers_of_turns_learn_together(go: Go, scorer_folders) -> None:
    plant = EPS | {"LMGYM_TEST_TALKS": "1", "LMGYM_TEST_RANK": "1"}
    same = {"critic": scorer_folders["gpt2"], "num_rollouts": 8, "max_updates": 4, "stall_timeout": 60}
    # at 4 a micro-batch one rank has all of its rows in one, whose first forward could serve twice; at 2 none has
    whole, cut = (go("forks", plant=plant, micro_batch=size, **same)[1] for size in (4, 2))
    assert_same_talks(whole, cut)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "config"), [("gpt2", "zero3.json"), ("llama", "zero2.json"), ("llama", "zero3.json")]
)
def test_so_do_they_under_zero_2_and_3(family: str, config: str, go: Go, scorer_folders) -> None:
    plant = EPS | {"LMGYM_TEST_TALKS": "1", "LMGYM_TEST_RANK": "1"}
    same = {"num_rollouts": 8, "max_updates": 8, "micro_batch": 2, "stall_timeout": 120, "family": family}
    for critic in ("head", scorer_folders[family]):
        _, wanted = go("torchrun", plant=plant, critic=critic, **same)
        _, found = go("deepspeed", config=config, plant=plant, critic=critic, **same)
        assert_same_talks(found, wanted)


@pytest.mark.parametrize(
    ("kind", "config", "changes"),
    [
        ("forks", "zero2.json", {}),
        slow("deepspeed", "zero2.json", {"lora_rank": 4, "method": "grpo", "num_generations": 4}),
        slow("deepspeed", "zero3.json", {"entropy_coef": 0.01}),
        slow("deepspeed", "zero2.json", {"num_layers_unfrozen": 1}),
        slow("torchrun", None, {"critic": "llama"}),
    ],
)
def test_two_ranks_choose_and_learn_the_actions_that_one_does(
    kind: str, config: str | None, changes: dict, go: Go, scorer_folders
) -> None:
    plant = EPS | {"LMGYM_TEST_TALKS": "1"}
    if "critic" in changes:
        changes = changes | {"critic": scorer_folders[changes["critic"]]}
    changes = {"policy_over": "actions", "action_scores": "token", "max_new_tokens": 24, "max_updates": 8, **changes}
    same = {"family": "llama", "plant": plant, **changes}
    wanted, found = (go(how, config=of_kind, **same)[1] for how, of_kind in (("fork", None), (kind, config)))
    assert_same_talks(found, wanted)
    a, b = read_metrics(found), read_metrics(wanted)
    for name in (NAMES | {"reward/mean", "kl/reference"}) & b.keys():
        assert a[name] == pytest.approx(b[name], abs=1e-4), name
    assert b["policy/ratio"][4] != 1.0, "of two epochs the second has moved"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "config"),
    [
        ("torchrun", None),
        ("deepspeed", "zero1.json"),
        ("deepspeed", "zero2_offload.json"),
        ("deepspeed", "zero3.json"),
    ],
)
def test_on_two_ranks_too_a_head_warms_up_alone(kind: str, config: str | None, go: Go) -> None:
    _, folder = go(kind, config=config, critic_warmup=3, weight_decay=0.1, schedule="constant_with_warmup")
    assert largest_difference(read_weights(folder), read_start(folder)) == 0
    losses = read_metrics(folder)["loss/value"]
    assert losses[12] < losses[4]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "config"), [("deepspeed", "zero2.json"), ("deepspeed", "zero3.json")])
def test_bf16_moves_fp32_weights_at_a_small_rate(kind: str, config: str, go: Go) -> None:
    _, folder = go(kind, config=config, plant={}, precision="bf16", learning_rate=1e-5, schedule="constant_with_warmup")
    after, before = read_weights(folder), read_start(folder)
    matrices = [name for name in after if after[name].ndim == 2 and "wpe" not in name]
    moved = {name: (after[name].float() - before[name]).abs().mean().item() for name in matrices}
    # twelve steps of 1e-5; in bf16 a weight of .02 moves by 6e-5 or not at all
    assert all(2e-6 < x < 2e-4 for x in moved.values()), moved
    off_grid = [(after[name] != after[name].to(torch.bfloat16)).float().mean().item() for name in matrices]
    assert all(after[name].dtype == torch.float32 for name in matrices)
    assert min(off_grid) > 0.5, "what was saved was not rounded to bf16"


@pytest.mark.slow
def test_under_zero_3_ranks_sample_different_lengths_a_hundred_times(talkative_models, tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    command = launch("deepspeed", talkative_models["gpt2"], file, script=SAMPLING)
    done = run(command, seconds=SECONDS)
    assert done.returncode == 0, done.stderr[-3000:]
    ranks = json.loads(file.read_text())
    assert len(ranks) == 2
    for found in ranks:
        assert found["phases"] == 100
        assert found["largest_gap"] < 1e-5, "the sampler's log-probabilities are those of the weights that learn"
        assert found["moved"] > 1e-3, "weights changed between the phases"
    assert ranks[0]["tokens"] != ranks[1]["tokens"]


@pytest.mark.slow
def test_what_cannot_work_is_refused_before_step_1_in_one_line(go: Go, scorer_folders, tmp_path: Path) -> None:
    cases = [
        ({"global_batch": 15, "num_rollouts": 15}, "global_batch=15 cannot be shared by 2 ranks; use 14 or 16"),
        ({"critic": scorer_folders["bert"]}, "has another tokenizer"),
        ({"prompts": tmp_path / "absent.jsonl"}, "absent.jsonl"),
    ]
    for changes, said in cases:
        done, folder = go("torchrun", fails=True, **changes)
        assert said in words(done.stderr), done.stderr[-2000:]
        assert words(done.stderr).count(said) == 1, "one rank speaks"
        file = folder / "metrics.jsonl"
        assert not file.exists() or not file.read_text()
