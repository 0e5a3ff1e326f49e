"""A mixture of experts with adapters, also on its fused experts: what learns, what is saved, and what is refused."""

import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from families import FAMILIES, OTHERS, Family, alone
from family_stages import (
    reward_config,
    sft_config,
    train_reward_model,
    train_sft,
)
from launching import read_lines, read_metrics
from ppo_in_process import PLAIN, train_small
from transformers import AutoModelForCausalLM

from lmgym.errors import InputError
from lmgym.models.forward.packed_rows import pack_rows
from lmgym.models.forward.policies import PolicyModel
from lmgym.models.loading import load_classifier, load_tokenizer
from lmgym.models.lora import add_lora
from reward_models.pairwise import PairTask
from sft.tasks import CHAT

LORA = 4
BY_NAME = {family.name: family for family in (*FAMILIES, *OTHERS)}
ADAPTED = ("mixtral", "qwen3_moe")  # whose experts peft adapts
EACH = pytest.mark.parametrize(
    "family", [pytest.param(BY_NAME[name], id=name) for name in ADAPTED] + [
        pytest.param(BY_NAME[name], id=name, marks=pytest.mark.slow) for name in ("qwen2_moe", "granitemoe", "gpt_oss")
    ]
)  # fmt: skip


def with_lora(config, scorer: bool = False):
    """The config with adapters, merged into the model that is saved."""
    name = "scorer" if scorer else "policy"
    settings = replace(getattr(config, name), lora_rank=LORA, lora_alpha=8)
    return replace(config, **{name: settings}) if scorer else replace(config, policy=settings, merge_adapter=True)


def moved(folder: Path, source: Path) -> set[str]:
    """The last parts of the names of weights that a saved policy does not share with the model that it began from."""
    after, before = (
        dict(AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).named_parameters())
        for path in (folder, source)
    )
    different = [name.removesuffix(".weight") for name in after if not torch.equal(after[name], before[name])]
    return {name.rpartition(".")[2] for name in different}


@EACH
@torch.no_grad()
def test_a_reward_model_with_adapters_is_saved_merged(
    family: Family, family_folder, few_pairs: Path, held_out_pairs: Path, tmp_path: Path
) -> None:
    config = reward_config(family_folder(family), few_pairs, held_out_pairs, tmp_path / "run")
    ran = train_reward_model(with_lora(config, scorer=True))
    assert (ran.padded, "Warning" in ran.said) == (0, False)
    rows = PairTask().prepare(config, load_tokenizer(str(family_folder(family)))).evaluation
    saved = torch.tensor([[line["chosen"], line["rejected"]] for line in read_lines(tmp_path / "run/scores.jsonl")])
    folder = str(tmp_path / "run/model")
    model = load_classifier(folder, load_tokenizer(folder), fresh_head=False)[0].eval()
    found = [[alone(model, row.replies.prefix + suffix)[0] for suffix in row.replies.suffixes] for row in rows]
    torch.testing.assert_close(torch.tensor(found), saved, rtol=0, atol=1e-4)


@EACH
@torch.no_grad()
def test_sft_with_adapters_is_saved_merged(family: Family, family_folder, chats_file: Path, tmp_path: Path) -> None:
    source = family_folder(family)
    config = with_lora(sft_config(source, chats_file, tmp_path / "run"))
    ran = train_sft(config)
    assert (ran.padded, "Warning" in ran.said) == (0, False)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "run/model", dtype=torch.float32).eval()
    examples = CHAT.prepare(config, load_tokenizer(str(source))).evaluation
    for example, line in zip(examples, read_lines(tmp_path / "run/held_out.jsonl"), strict=True):
        logits = alone(model, example.ids)[example.places]
        nats = torch.nn.functional.cross_entropy(logits, torch.tensor(example.targets))
        assert line["loss"] == pytest.approx(nats.item(), abs=1e-4)
    changed = moved(tmp_path / "run/model", source)
    assert changed >= {"q_proj", "k_proj", "v_proj", "o_proj"}
    assert ({"gate_up_proj", "gate"} <= changed) == ("gate_up_proj" in changed) == (family.name in ADAPTED)


@pytest.mark.parametrize("lora_rank", [0, LORA])
@torch.no_grad()
def test_grpo_samples_from_the_policy_that_learns(
    lora_rank: int, family_folder, chats_file: Path, tmp_path: Path
) -> None:
    with torch.enable_grad(), warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        train_small(
            family_folder(BY_NAME["qwen3_moe"]), chats_file, tmp_path, PLAIN, "run", method="grpo", num_generations=4,
            num_rollouts=8, micro_batch=4, max_updates=4, eval_updates=4, learning_rate=1e-2, lora_rank=lora_rank,
            lora_alpha=8,
        )  # fmt: skip
    metrics = read_metrics(tmp_path / "run")
    assert max(metrics["rollout/logprob_mismatch"].values()) < 1e-4
    assert (tmp_path / "run/adapter/adapter_config.json").is_file() == bool(lora_rank)


def test_packed_rows_with_adapted_experts_are_the_rows_alone(family_folder) -> None:
    model = add_lora(AutoModelForCausalLM.from_pretrained(family_folder(BY_NAME["mixtral"])).float(), LORA, 8, 0.0)
    torch.manual_seed(0)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.3)
    rows = [list(range(5, 45)), list(range(60, 90))]
    targets = torch.tensor(rows[0][-6:] + rows[1][-3:])
    policy = PolicyModel(model.eval())
    assert policy.decoder.packed
    wanted = torch.cat([alone(model, row)[-n - 1 : -1] for row, n in zip(rows, (6, 3), strict=True)]).log_softmax(-1)
    found = policy(pack_rows(rows, [6, 3]), targets)
    torch.testing.assert_close(found, wanted.gather(1, targets[:, None])[:, 0], rtol=0, atol=1e-5)


def test_what_adapters_of_experts_cannot_do_is_refused(family_folder) -> None:
    def model():
        return AutoModelForCausalLM.from_pretrained(family_folder(BY_NAME["qwen3_moe"]))

    with pytest.raises(
        InputError, match=r"--lora_dropout 0\.1: adapters of experts have no dropout; needed: 0, or --lora"
    ):
        add_lora(model(), LORA, 8, 0.1)
    add_lora(model(), LORA, 8, 0.1, "q_proj,k_proj,v_proj,o_proj")
    sharded = model()
    sharded.get_input_embeddings().weight.ds_id = 0
    with pytest.raises(
        InputError, match="experts cannot be trained under ZeRO-3; needed: --deepspeed zero2, or --lora"
    ):
        add_lora(sharded, LORA, 8, 0.0)
    with pytest.raises(InputError, match="'gate_proj' matches no linear layer; there are k_proj"):
        add_lora(model(), LORA, 8, 0.0, "gate_proj")
