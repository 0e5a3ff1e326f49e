"""trlx's config: read, changed and written as its programs do; unknown names are refused with the nearest."""

import copy
import importlib
import re
from pathlib import Path

import pytest

from lmgym.errors import InputError
from ppo.trlx.data.default_configs import PPOConfig, TRLConfig, default_ppo_config, default_sft_config
from ppo.trlx.trainer.accelerate_rft_trainer import RFTConfig

HH = """
train:
  seq_length: 512
  epochs: 10000
  total_steps: 1500
  batch_size: 32
  checkpoint_interval: 10000
  eval_interval: 500
  pipeline: PromptPipeline
  trainer: AcceleratePPOTrainer
  checkpoint_dir: checkpoints/ppo_hh
model:
  model_path: some/chat-model
  num_layers_unfrozen: 2
tokenizer:
  tokenizer_path: some/chat-model
  truncation_side: left
optimizer:
  name: adamw
  kwargs: {lr: 8e-6, betas: [0.9, 0.95], eps: 1.0e-8, weight_decay: 1.0e-6}
scheduler:
  name: cosine_annealing
  kwargs: {T_max: 10000, eta_min: 8.0e-6}
method:
  name: ppoconfig
  num_rollouts: 64
  chunk_size: 16
  init_kl_coef: 0.05
  target: 6
  scale_reward: running
  gen_kwargs: {max_new_tokens: 128, top_k: 0, top_p: 1.0, do_sample: true}
"""


def read(text: str, folder: Path) -> TRLConfig:
    path = folder / "hh.yml"
    path.write_text(text)
    return TRLConfig.load_yaml(path)


def test_a_yaml_file_is_read_with_trlx_defaults_for_what_it_leaves_out(tmp_path) -> None:
    config = read(HH, tmp_path)
    assert isinstance(config.method, PPOConfig)
    assert (config.method.target, config.method.ppo_epochs, config.method.lam) == (6, 4, 0.95)
    assert (config.train.seed, config.train.checkpoint_dir) == (1000, "checkpoints/ppo_hh")
    assert config.model.num_layers_unfrozen == 2


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (("num_rollouts: 64", "num_rollout: 64"), r"method.num_rollout (did you mean num_rollouts?)"),
        (("  batch_size: 32", "  batchsize: 32"), r"train.batchsize (did you mean batch_size?)"),
        (("model_path: some/chat-model\n", "model: some/chat-model\n"), r"model.model (did you mean model_path?)"),
        (("optimizer:\n", "optimiser:\n"), r"optimiser (did you mean optimizer?)"),
        (("  eval_interval: 500\n", ""), r"train lacks eval_interval"),
        (("name: ppoconfig", "name: ppo"), r"method.name is 'ppo'; needed: PPOConfig, RFTConfig or SFTConfig"),
        (("name: ppoconfig", "name: ilqlconfig"), r"ILQL, offline training on rewards, is not here; needed: PPO"),
        (("name: ppoconfig", "name: DPOConfig"), r"DPO is not run by trlx.train here; needed: lmgym train"),
        ((HH, "- 1\n"), r"the config is a list of 1 item; needed: a mapping with method"),
        ((HH, "train: {a: [\n"), r"needed: a YAML file"),
    ],
)  # fmt: skip
def test_a_wrong_yaml_file_is_refused_in_one_line_with_the_nearest_name(wrong, said: str, tmp_path) -> None:
    with pytest.raises(InputError, match=re.escape(said)) as refused:
        read(HH.replace(*wrong), tmp_path)
    assert str(refused.value).startswith(str(tmp_path / "hh.yml"))
    assert str(refused.value).isprintable()


def test_all_unknown_names_of_a_section_are_named_at_once_and_a_missing_file_is_told(tmp_path) -> None:
    with pytest.raises(InputError, match=r"method\.cliprang .*cliprange\?\); method\.gama .*gamma\?"):
        read(HH.replace("  init_kl_coef", "  cliprang: 0.1\n  gama: 1\n  init_kl_coef"), tmp_path)
    with pytest.raises(InputError, match="No such file"):
        TRLConfig.load_yaml(tmp_path / "none.yml")


def test_a_config_is_the_same_after_a_dict_and_the_dict_is_a_copy() -> None:
    config = default_ppo_config()
    values = config.to_dict()
    assert TRLConfig.from_dict(values) == config
    assert values["optimizer"]["kwargs"]["lr"] == 3e-5
    values["method"]["gen_kwargs"]["max_new_tokens"] = 1
    assert config.method.gen_kwargs["max_new_tokens"] == 40
    assert '"init_kl_coef": 0.001' in str(config)


def test_dotted_names_and_sections_update_a_copy() -> None:
    base = default_ppo_config()
    before = copy.deepcopy(base)
    given = {"train.seed": 7, "method.gen_kwargs.top_k": 5, "optimizer.kwargs.lr": 1e-6, "model": {"model_path": "x"}}
    for found in (TRLConfig.update(base, given), TRLConfig.update(base.to_dict(), given)):
        assert (found.train.seed, found.model.model_path, found.optimizer.kwargs["lr"]) == (7, "x", 1e-6)
        assert found.method.gen_kwargs == {"max_new_tokens": 40, "top_k": 5, "top_p": 1.0, "do_sample": True}
    assert base == before
    assert TRLConfig.update(base, {}) == base


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"train.sead": 1}, "train.sead (did you mean seed?)"),
        ({"methods.gamma": 1}, "methods (did you mean method?)"),
        ({"init_kl_coeff": 0.1}, "'init_kl_coeff' is no section of the config; did you mean method.init_kl_coef?"),
        ({"train": {"epoch": 1}}, "train.epoch (did you mean epochs?)"),
    ],
)  # fmt: skip
def test_an_update_of_an_unknown_name_is_refused_with_the_nearest(given: dict, said: str) -> None:
    with pytest.raises(InputError, match=re.escape(said)):
        TRLConfig.update(default_ppo_config(), given)


def test_evolve_merges_and_refuses_unknown_names_and_attributes_have_no_typos() -> None:
    config = default_sft_config()
    found = config.evolve(method={"gen_kwargs": {"max_new_tokens": 9}}, train={"tags": ["a"]})
    assert (found.method.gen_kwargs["max_new_tokens"], found.method.gen_kwargs["top_p"]) == (9, 1.0)
    assert (found.train.tags, config.train.tags) == (["a"], [])
    with pytest.raises(InputError, match=r"train\.batch_sise \(did you mean batch_size\?\)"):
        config.evolve(train={"batch_sise": 1})
    config.train.batch_size = 4
    with pytest.raises(AttributeError):
        config.train.batch_sise = 4  # type: ignore[attr-defined]


def test_configs_are_where_trlx_programs_import_them_from() -> None:
    for module, names in {
        "ppo.trlx.data.default_configs": ("ModelConfig", "OptimizerConfig", "PPOConfig", "SchedulerConfig"),
        "ppo.trlx.data.configs": ("TrainConfig", "TokenizerConfig", "TRLConfig"),
        "ppo.trlx.data.method_configs": ("MethodConfig",),
        "ppo.trlx.models.modeling_ppo": ("PPOConfig",),
        "ppo.trlx.models.modeling_ilql": ("ILQLConfig",),
        "ppo.trlx.trainer.accelerate_sft_trainer": ("SFTConfig",),
        "ppo.trlx.trainer.accelerate_rft_trainer": ("RFTConfig",),
    }.items():  # fmt: skip
        assert all(hasattr(importlib.import_module(module), name) for name in names), module
    assert RFTConfig(gen_kwargs={}, n_improve_steps=1).start_percentile == 0.7


def test_what_has_no_equivalent_is_refused_wherever_it_is_asked_for() -> None:
    module = importlib.import_module("ppo.trlx.data.default_configs")
    assert hasattr(importlib.import_module("ppo.trlx.trainer.accelerate_dpo_trainer"), "DPOConfig")
    for make, said in (
        (module.default_ilql_config, r"ILQL.*needed: PPO on a reward_fn"),
        (lambda: module.ILQLConfig(name="ilqlconfig", tau=0.7), r"ILQL.*needed: PPO on a reward_fn"),
        (lambda: module.DPOConfig(name="DPOConfig", beta=0.1), r"DPO.*needed: lmgym train preference dpo"),
        (module.default_nemo_1_3b_config, r"NeMo.*needed: default_ppo_config"),
        (module.default_nemo_2b_config, r"NeMo.*needed: default_ppo_config"),
        (module.default_nemo_20b_config, r"NeMo.*needed: default_ppo_config"),
    ):
        with pytest.raises(InputError, match=said):
            make()
