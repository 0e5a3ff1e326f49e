"""Every stage with decoders of many families: packed as padded, saved, loaded again, and on two ranks under ZeRO."""

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from families import DIFFERENT, FAMILIES, LAYERS, NO_SCORER_CLASS, WINDOW, Family, alone
from families_table import STAGES
from family_stages import (
    FROZEN,
    TEMPERATURE,
    UNFROZEN,
    Ran,
    chat,
    preference_config,
    reward_config,
    sft_config,
    train_grpo,
    train_ppo,
    train_preferences,
    train_reward_model,
    train_sft,
)
from large_epsilon_script import EPSILON
from launching import ROOT, flags, launch, read_lines, read_metrics, run
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from lmgym.models.critics import VALUE_HEAD
from lmgym.models.forward.packed_rows import pack_rows
from lmgym.models.forward.policies import load_policy
from lmgym.models.loading import load_classifier, load_tokenizer
from lmgym.scoring.scorers import HFScorer
from lmgym.text import Conversation, Turn
from ppo.actor_critic import ActorCritic
from preferences.tasks import PreferenceTask
from reward_models.pairwise import PairTask
from sft.tasks import CHAT

BAR = 1e-5  # between packed or saved, and alone
SAME = 1e-3  # of the way that weights have gone
BEST_OF = 3
EACH = pytest.mark.parametrize(
    "family",
    [pytest.param(f, id=f.name, marks=[] if f.name in DIFFERENT else pytest.mark.slow) for f in FAMILIES],
)


@pytest.fixture(scope="module")
def held_out(tmp_path_factory, held_out_pairs: Path) -> Path:
    """Eight pairs: a recurrent layer without its kernels is a loop over tokens."""
    path = tmp_path_factory.mktemp("held") / "out.jsonl"
    path.write_text("".join(held_out_pairs.read_text().splitlines(keepends=True)[:8]))
    return path


@pytest.fixture(scope="module")
def ran(tmp_path_factory, family_folder, few_pairs: Path, held_out: Path, chats_file: Path) -> Callable[..., Ran]:
    """A stage's run with a family, made once; `padded` has its rows padded, if they are not anyhow."""
    known: dict[tuple[str, str, bool], Ran] = {}

    def go(stage: str, family: Family, padded: bool = False) -> Ran:
        padded &= not family.why_padded
        key = (stage, family.name, padded)
        if key not in known:
            folder = tmp_path_factory.mktemp(f"{stage}-{family.name}") / "run"
            model, packed = family_folder(family), False if padded else None
            if stage == "reward":
                known[key] = train_reward_model(reward_config(model, few_pairs, held_out, folder, packed))
            elif stage == "preference":
                known[key] = train_preferences(preference_config(model, few_pairs, held_out, folder, packed))
            elif stage == "sft":
                known[key] = train_sft(sft_config(model, chats_file, folder, packed))
            else:
                known[key] = {"ppo": train_ppo, "grpo": train_grpo}[stage](model, chats_file, folder, padded)
        return known[key]

    return go


def assert_laid(packed: Ran, padded: Ran, family: Family) -> None:
    """Rows of the first run are packed, unless the family cannot: then it says why. Those of the other are not."""
    assert padded.padded > 0
    if family.why_padded:
        assert f"rows of this {family.name} are padded: {family.why_padded}" in packed.said
        assert packed.said.count("are padded") == 1
    else:
        assert packed.padded == 0
        assert "are padded" not in packed.said


def assert_same_updates(
    found: Mapping[str, torch.Tensor], wanted: Mapping[str, torch.Tensor], start: Mapping[str, torch.Tensor]
) -> None:
    """The weights went the same way."""
    assert found.keys() == wanted.keys()
    way, apart = (
        torch.stack([(one[name] - other[name]).double().norm() for name in found]).norm().item()
        for one, other in ((wanted, start), (found, wanted))
    )
    assert way > 0.02, "or there is nothing to compare"
    assert apart < SAME * way
    worst = max(found, key=lambda name: (found[name] - wanted[name]).abs().max().item())
    assert (found[worst] - wanted[worst]).abs().max() < 1e-5, worst


ROWS, COUNTS = [list(range(5, 45)), list(range(60, 90))], [6, 3]
TARGETS = torch.tensor([i for row, n in zip(ROWS, COUNTS, strict=True) for i in row[-n:]])


def assert_same_policy(actor: ActorCritic, model) -> torch.Tensor | None:
    """The log-probabilities of what was trained are those of each row alone by the model of its folder; its values."""
    wanted = [
        (alone(model, row)[-n - 1 : -1] / TEMPERATURE).log_softmax(-1) for row, n in zip(ROWS, COUNTS, strict=True)
    ]
    logprobs, values, _ = actor(pack_rows(ROWS, COUNTS), TARGETS)
    torch.testing.assert_close(torch.cat(wanted).gather(1, TARGETS[:, None])[:, 0], logprobs, rtol=0, atol=BAR)
    return values


def causal(folder: Path):
    """A folder's model as transformers loads it."""
    model, info = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    return model.eval()


def policy(folder: Path):
    """A causal model's folder, loaded by us: with an embedding of each token of its tokenizer."""
    return load_policy(str(folder), load_tokenizer(str(folder)))


def scorer(folder: Path):
    """A scorer's folder, loaded by us."""
    return load_classifier(str(folder), load_tokenizer(str(folder)), fresh_head=False)[0].eval()


def weights(model) -> dict[str, torch.Tensor]:
    """By the model's own names: some families' files have others."""
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


@EACH
@torch.no_grad()
def test_a_reward_model_learns_packed_as_padded_and_its_folder_scores_as_each_reply_alone(
    family: Family, ran, family_folder, few_pairs: Path, held_out: Path, tmp_path: Path, record_family
) -> None:
    record_family(STAGES, family.name, reward_model="ok")
    packed, padded = ran("reward", family), ran("reward", family, padded=True)
    assert_laid(packed, padded, family)
    folder, source = packed.folder / "model", str(family_folder(family))
    loaded, start = [scorer(folder)], load_classifier(source, load_tokenizer(source))[0]
    assert_same_updates(*map(weights, (loaded[0], scorer(padded.folder / "model"), start)))
    tokenizer = load_tokenizer(str(folder))
    config = reward_config(folder, few_pairs, held_out, tmp_path / "run")
    rows = PairTask().prepare(config, tokenizer).evaluation
    saved = torch.tensor([[line["chosen"], line["rejected"]] for line in read_lines(packed.folder / "scores.jsonl")])
    assert saved.std() > 0.1
    if family.name not in NO_SCORER_CLASS:
        loaded.append(AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32).eval())
    for model in loaded:
        found = [[alone(model, row.replies.prefix + suffix)[0] for suffix in row.replies.suffixes] for row in rows]
        torch.testing.assert_close(torch.tensor(found), saved, rtol=0, atol=BAR)


@EACH
@torch.no_grad()
def test_sft_learns_packed_as_padded_and_its_folder_predicts_as_each_row_alone(
    family: Family, ran, family_folder, chats_file: Path, tmp_path: Path, record_family
) -> None:
    record_family(STAGES, family.name, SFT="ok")
    packed, padded = ran("sft", family), ran("sft", family, padded=True)
    assert_laid(packed, padded, family)
    model, other = (causal(one.folder / "model") for one in (packed, padded))
    assert_same_updates(*map(weights, (model, other, policy(family_folder(family)))))
    config = sft_config(family_folder(family), chats_file, tmp_path / "run")
    examples = CHAT.prepare(config, load_tokenizer(str(packed.folder / "model"))).evaluation
    lines = read_lines(packed.folder / "held_out.jsonl")
    assert len(lines) == len(examples) > 4
    assert max(len(example.ids) for example in examples) > 2 * WINDOW
    for example, line in zip(examples, lines, strict=True):
        nats = F.cross_entropy(alone(model, example.ids)[example.places], torch.tensor(example.targets))
        assert line["loss"] == pytest.approx(nats.item(), abs=BAR)


@EACH
@torch.no_grad()
def test_dpo_learns_packed_as_padded_and_its_rewards_are_those_of_each_reply_alone(
    family: Family, ran, family_folder, few_pairs: Path, held_out: Path, tmp_path: Path, record_family
) -> None:
    record_family(STAGES, family.name, DPO="ok")
    packed, padded = ran("preference", family), ran("preference", family, padded=True)
    assert_laid(packed, padded, family)
    model, other = (causal(one.folder / "model") for one in (packed, padded))
    before = policy(family_folder(family)).eval()
    assert_same_updates(*map(weights, (model, other, before)))
    config = preference_config(family_folder(family), few_pairs, held_out, tmp_path / "run")
    tokenizer = load_tokenizer(str(packed.folder / "model"))
    examples = PreferenceTask(config.loss).prepare(config, tokenizer).evaluation
    lines = read_lines(packed.folder / "scores.jsonl")
    for example, line in zip(examples, lines, strict=True):
        for side, suffix in zip(("chosen", "rejected"), example.replies.suffixes, strict=True):
            ids, targets = [*example.replies.prefix, *suffix], torch.tensor([*suffix[1:], tokenizer.eos_token_id])
            now, then = (
                -F.cross_entropy(alone(one, ids)[-len(suffix) :], targets, reduction="sum") for one in (model, before)
            )
            assert line[side] == pytest.approx(0.1 * (now - then).item(), abs=1e-4)


@EACH
@torch.no_grad()
def test_ppo_with_frozen_layers_learns_packed_as_padded_and_its_folder_is_the_policy_that_learned(
    family: Family, ran, family_folder, record_family
) -> None:
    record_family(STAGES, family.name, PPO_frozen_layers="ok")
    packed, padded = ran("ppo", family), ran("ppo", family, padded=True)
    assert_laid(packed, padded, family)
    metrics = read_metrics(packed.folder)
    assert max(metrics["rollout/logprob_mismatch"].values()) < 1e-4, "the sampler is not the policy that learns"
    model, before = causal(packed.folder / "model"), weights(policy(family_folder(family)))
    after = weights(model)
    assert_same_updates(after, weights(causal(padded.folder / "model")), before)
    [actor], [other] = packed.built, padded.built
    rest = {n: p for n, p in actor.state_dict().items() if not n.startswith("policy.")}
    assert_same_updates(rest, {n: other.state_dict()[n] for n in rest}, dict.fromkeys(rest, torch.zeros(())))
    frozen = {name for name, p in actor.causal.named_parameters() if not p.requires_grad}
    assert any(f".{FROZEN - 1}." in name for name in frozen)
    assert not any(f".{FROZEN}." in name for name in frozen)
    assert {name for name in after if torch.equal(after[name], before[name])} == frozen
    again = ActorCritic(model, frozen_layers=FROZEN, temperature=TEMPERATURE)
    again.value_head.load_state_dict(load_file(packed.folder / "critic" / VALUE_HEAD))
    values = assert_same_policy(actor, model)
    torch.testing.assert_close(again(pack_rows(ROWS, COUNTS), TARGETS)[1], values, rtol=0, atol=BAR)
    assert values.abs().max() > 1e-3


@EACH
@torch.no_grad()
def test_grpo_with_adapters_learns_and_its_folder_is_the_policy_that_learned(
    family: Family, ran, family_folder, record_family
) -> None:
    record_family(STAGES, family.name, GRPO_with_LoRA="ok")
    found = ran("grpo", family)
    assert max(read_metrics(found.folder)["rollout/logprob_mismatch"].values()) < 1e-4
    model, before = causal(found.folder / "model"), weights(policy(family_folder(family)))
    changed = {name for name, tensor in weights(model).items() if not torch.equal(tensor, before[name])}
    assert any(f".{LAYERS - 1}." in name for name in changed)
    assert not any("norm" in name or "embed" in name for name in changed), "adapters are on linear layers"
    [actor] = found.built
    assert_same_policy(actor, model)


@EACH
@torch.no_grad()
def test_best_of_n_talks_with_the_policy_and_takes_the_reply_that_the_reward_model_likes_most(
    family: Family, ran, tmp_path: Path, record_family
) -> None:
    record_family(STAGES, family.name, chat="ok")
    talks, likes = ran("ppo", family).folder / "model", ran("reward", family).folder / "model"
    said = ["tell me about soup and about the garden, please.", "and what about sundays?"]
    turns, notes = chat(talks, likes, tmp_path / "sessions", said, BEST_OF)
    assert [turn["user"] for turn in turns] == said
    assert (f"rows of this {family.name} are padded" in notes) == bool(family.why_padded)
    judge, past = HFScorer.load(likes), []
    for turn in turns:
        past.append(Turn("user", turn["user"]))
        replies = [candidate["text"] for candidate in turn["candidates"]]
        assert len(replies) == BEST_OF
        assert len(set(replies)) > 1
        scores = judge.score([Conversation(tuple(past))] * BEST_OF, replies)
        found = [candidate["scores"]["judge"] for candidate in turn["candidates"]]
        assert found == pytest.approx(scores.tolist(), abs=BAR)
        assert turn["selected"] == int(scores.argmax())
        past.append(Turn("bot", turn["reply"]))


# --- two ranks, rows of different lengths

LAUNCHED = [family for family in FAMILIES if family.name in ("gemma2", "mixtral", "falcon")]
TRAIN = {
    "global_batch": 4, "micro_batch": 1, "max_updates": 4, "learning_rate": 0.1, "precision": "fp32",
    "save_updates": -1, "tracking": "none",
}  # fmt: skip
EXPERIMENTS = {"reward": "reward_models/experiments/hh_pairwise.py", "sft": "sft/experiments/chat.py"}


@pytest.fixture(scope="module")
def launched(tmp_path_factory, family_folder, few_pairs: Path, held_out_pairs: Path, chats_file: Path):
    """The folder of a stage's run with a family: of plain Python, or of two ranks with a DeepSpeed config."""

    def go(stage: str, family: Family, config: str = "", **plant: str) -> Path:
        folder = tmp_path_factory.mktemp("launched") / "run"
        values = {"model": family_folder(family), "output": folder, **TRAIN}
        if stage == "ppo":
            script = ROOT / "tests/experiments/ppo_script.py"
            values |= {"prompts": chats_file, "num_layers_unfrozen": UNFROZEN, "global_batch": 8, "max_updates": 8}
            plant["LMGYM_TEST_EPS"] = str(EPSILON)
        else:
            script = ROOT / "tests/experiments/large_epsilon_script.py"
            plant["LMGYM_TEST_EXPERIMENT"] = str(ROOT / EXPERIMENTS[stage])
            values |= {"log_updates": 1, "eval_updates": 100, "max_length": 96}
            values |= {"dataset": few_pairs, "eval_dataset": held_out_pairs} if stage == "reward" else {}
            values |= {"dataset": chats_file, "eval_size": 8, "sample_prompts": 0} if stage == "sft" else {}
        values |= {"deepspeed": ROOT / "configs" / config} if config else {}
        done = run(launch("forks" if config else "fork", *flags(**values), script=script), **plant)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-5000:]
        return folder

    return go


@pytest.fixture(scope="module")
def alone_run(launched, tmp_path_factory) -> Callable[..., tuple[Path, dict[str, str]]]:
    """A stage's run of plain Python, made once, and what has PPO play its rollouts again."""
    known: dict[tuple[str, str], tuple[Path, dict[str, str]]] = {}

    def go(stage: str, family: Family) -> tuple[Path, dict[str, str]]:
        if (stage, family.name) not in known:
            file = str(tmp_path_factory.mktemp("rollouts") / "replies.json")
            of_ppo = stage == "ppo"
            folder = launched(stage, family, **({"LMGYM_TEST_RECORD": file} if of_ppo else {}))
            known[stage, family.name] = folder, {"LMGYM_TEST_REPLAY": file} if of_ppo else {}
        return known[stage, family.name]

    return go


@pytest.mark.slow
@pytest.mark.parametrize("family", LAUNCHED, ids=lambda family: family.name)
@pytest.mark.parametrize("stage", ["reward", "sft", "ppo"])
def test_two_ranks_under_zero_2_and_3_learn_what_plain_python_does(
    stage: str, family: Family, launched, alone_run, family_folder, record_family
) -> None:
    record_family(STAGES, family.name, two_ranks="ZeRO 2, 3")
    wanted, replay = alone_run(stage, family)
    load = scorer if stage == "reward" else causal
    source = str(family_folder(family))
    start = load_classifier(source, load_tokenizer(source))[0] if stage == "reward" else policy(Path(source))
    for config in ("zero2.json", "zero3.json"):
        found = launched(stage, family, config, **replay)
        assert_same_updates(*map(weights, (load(found / "model"), load(wanted / "model"), start)))
        losses = "loss/policy" if stage == "ppo" else "train/loss"
        assert read_metrics(found)[losses] == pytest.approx(read_metrics(wanted)[losses], abs=BAR)
