"""Settings of other libraries, typed by their users: the flag here, or the sentence."""

import importlib
import json
import re
from pathlib import Path
from typing import Any

import pytest

from lmgym.runs.fields import flatten
from lmgym.runs.flags import override
from lmgym.runs.other_names import LIBRARIES, subjects
from lmgym.runs.other_names.answers import STAGES, Answer, Row, read
from lmgym.runs.other_names.lookup import answer, find, stage_of

ROOT = Path(__file__).parents[4]
EXPERIMENTS = {
    "reward": "reward_models.experiments.hh_pairwise",
    "sft": "sft.experiments.chat",
    "preference": "preferences.experiments.dpo",
    "ppo": "ppo.experiments.hh_harmless",
}
CONFIGS = {stage: importlib.import_module(name).CONFIG for stage, name in EXPERIMENTS.items()}

# of each kind of answer, as a user typed them after `lmgym train reward hh_pairwise` or another stage's experiment
TYPED = {
    "reward": {
        "bf16": "write --precision bf16",
        "report_to": "write --tracking: all is wandb,tensorboard, wandb is auto",
        "use_peft": "--lora_rank 16; 0 trains every weight",
        "eval_steps": "write --eval_updates",
        "per_device_eval_batch_size": "evaluations have --micro_batch",
        "beta": "not a setting of this experiment; --beta in lmgym train preference, --init_kl_coef in lmgym train ppo",
        "no_remove_unused_columns": "columns that are not known stay unread, and are named",
        "model_name_or_path": "write --model",
    },
    "sft": {
        "packing": "rows are always packed",
        "adapter": "--lora_rank 16; for qlora with --load_in_4bit",
        "logger.wandb.project": "write --wandb_project",
    },
    "preference": {
        "loss_type": "write --loss: sigmoid is dpo",
        "precompute_ref_log_probs": "--reference_source computed; without LoRA always",
        "ipo": "write --loss ipo",
        "chosen_key": "write --chosen_column",
    },
    "ppo": {
        "beta": "write --init_kl_coef",
        "zero_stage": "write --deepspeed: 0 is no flag, 1 is zero1, 2 is zero2, 3 is zero3",
        "actor.eps_clip": "write --cliprange",
        "actor_rollout_ref.ref.model.path": "write --reference",
        "actor_rollout_ref.model.path": "write --model",
        "rollout_batch_size": "write --num_rollouts: the value times --num_generations",
        "trainer.eval_updates": "write --eval_updates",
    },
}


def mistake(config: Any, capsys, *words: str) -> list[str]:
    """The lines of the error for wrong flags."""
    with pytest.raises(SystemExit) as stopped:
        override(config, words)
    assert stopped.value.code == 2
    return capsys.readouterr().err.splitlines()


@pytest.mark.parametrize("stage", CONFIGS)
def test_a_flag_of_another_library_is_answered(stage: str, capsys) -> None:
    words = [word for name in TYPED[stage] for word in (f"--{name}", "1")]
    title, *lines = mistake(CONFIGS[stage], capsys, *words)
    assert title == f"error: {len(TYPED[stage])} unknown flags (--help all lists those that there are)"
    assert lines == [f"  --{name}: {said}" for name, said in TYPED[stage].items()]


def test_one_unknown_flag_is_one_line(capsys) -> None:
    assert mistake(CONFIGS["reward"], capsys, "--hub_model_id", "a/b", "--epochs", "2") == [
        "error: unknown flag --hub_model_id: write --push_to_hub (--help all lists them)"
    ]
    [line] = mistake(CONFIGS["reward"], capsys, "--epoch", "2")
    assert line == "error: unknown flag --epoch; did you mean --epochs? (--help all lists them)"
    [line] = mistake(CONFIGS["reward"], capsys, "--qqqq", "2")
    assert line == "error: unknown flag --qqqq (--help all lists them)"


def test_several_unknown_flags_are_named_once_each_and_before_wrong_values(capsys) -> None:
    words = ["--epochs", "many", "--epoch", "2", "--lr=1", "--lr", "2", "--qqqq"]
    assert mistake(CONFIGS["sft"], capsys, *words) == [
        "error: 3 unknown flags (--help all lists those that there are)",
        "  --epoch; did you mean --epochs?",
        "  --lr: write --learning_rate",
        "  --qqqq",
    ]


def test_very_many_and_very_long_flags_are_bounded(capsys) -> None:
    lines = mistake(CONFIGS["sft"], capsys, *(f"--x{'y' * 10**4}{n}\x1b[31m\n" for n in range(100)))
    assert len(lines) == 42
    assert lines[-1] == "  and 60 more"
    assert max(map(len, lines)) < 320
    assert all(line.isprintable() for line in lines)


def test_others_options_that_are_absurd_by_likeness_are_answered_by_meaning() -> None:
    answers = {
        ("sft", "ring_attn_size"): "a sequence is on one GPU",
        ("sft", "excess_length_strategy"): "a row that is too long loses its oldest turns",
        ("sft", "finetuning_type"): "--lora_rank 16 for lora; 0 trains every weight",
        ("ppo", "rollout.n"): "write --num_generations",
        ("ppo", "total_epochs"): "write --epochs",
        ("ppo", "use_vllm"): "write --engine vllm",
        ("ppo", "data.train_batch_size"): "write --num_rollouts: the value times --num_generations",
    }
    for (stage, name), said in answers.items():
        assert answer(name, flatten(CONFIGS[stage])) == said


def test_a_name_that_libraries_mean_otherwise_is_answered_for_each() -> None:
    known = flatten(CONFIGS["ppo"])
    assert answer("batch_size", known) == "TRL, LLaMA-Factory: write --num_rollouts; axolotl: write --global_batch"
    assert find("axolotl", "batch_size", "ppo").flag == "global_batch"
    assert find("TRL", "batch_size", "ppo").flag == "num_rollouts"
    assert answer("path", known) is None, "too many things are called so"


def test_another_models_setting_is_never_taken_for_the_policys() -> None:
    known = flatten(CONFIGS["ppo"])
    for name in (
        "critic.optim.lr_warmup_steps_ratio",
        "reward_model.rollout.prompt_length",
        "global_profiler.save_path",
    ):
        assert not str(answer(name, known)).startswith("write"), name
    assert answer("critic.optim.lr", known) == "write --critic_learning_rate"


def test_misspellings_of_other_libraries_names_are_answered_too(capsys) -> None:
    [line] = mistake(CONFIGS["sft"], capsys, "--per_device_train_batchsize", "1")
    assert "--per_device_train_batchsize; did you mean per_device_train_batch_size? write --micro_batch (" in line
    for unlike in ("--max_tokenz_x", "--top_q", "--engine_mem"):
        assert "did you mean" not in mistake(CONFIGS["ppo"], capsys, unlike, "1")[0], unlike


def test_flags_of_another_stage_are_said_to_be_so() -> None:
    assert answer("engine", flatten(CONFIGS["sft"])) == (
        "not a setting of this experiment; --engine in lmgym train ppo"
    )
    assert answer("excess_length_strategy", flatten(CONFIGS["ppo"])) == (
        "of lmgym train reward, sft, preference: a row that is too long loses its oldest turns"
    )


def test_an_experiment_is_of_its_own_stage() -> None:
    assert {stage: stage_of(flatten(config)) for stage, config in CONFIGS.items()} == {one: one for one in CONFIGS}
    assert stage_of({"host", "port"}) is None


def of_tables() -> list[tuple[str, Row]]:
    modules = dict.fromkeys([*(one for tables in LIBRARIES.values() for one in tables), subjects])
    return [(module.__name__, row) for module in modules for row in read(module.NAMES).rows]


def test_every_flag_that_an_answer_names_is_one_of_its_stages() -> None:
    own = {stage: flatten(CONFIGS[stage]).keys() | {"num_gpus", "nodes"} for stage in STAGES}
    assert len(of_tables()) > 1000
    for module, row in of_tables():
        for stage in row.stages:
            assert set(re.findall(r"--(\w+)", row.answer.text)) <= own[stage], (module, row.name, stage)


def test_no_name_has_two_answers_in_one_stage_of_a_library() -> None:
    seen: dict[tuple[str, str, frozenset[str]], str] = {}
    for module, row in of_tables():
        assert seen.setdefault((module, row.name, row.stages), row.answer.text) == row.answer.text, row.name


DRAWN = json.loads((Path(__file__).parent / "drawn_names.json").read_text(encoding="utf-8"))
"""Settings drawn from the six libraries' own configs (25 each, sorted names, `random.Random(72).sample`, August 2026):
the stage, and by hand the flag, a word of the sentence, or = for a flag of the same name"""


def test_a_hundred_and_fifty_names_drawn_from_the_libraries_configs_are_answered_right() -> None:
    assert [len(names) for names in DRAWN.values()] == [25] * 6
    for library, names in DRAWN.items():
        for name, (stage, wanted) in names.items():
            known = flatten(CONFIGS[stage])
            if wanted == "=":
                assert name in known
            else:
                assert wanted in str(answer(name, known)), (library, name, answer(name, known))
                assert wanted in str(find(library, name, stage)), (library, name, find(library, name, stage))


SEVERAL = "In several libraries"
BY_WORD = "All of them, by a word in the name"
"""titles of the page's tables of no one library"""


def in_words(row: Row) -> str:
    return re.sub(r"(--[a-z_]\w*)", r"`\1`", str(row.answer).removeprefix("write "))


Group = tuple[str, tuple[str, ...]]
"""the title of a table, and the stages of its rows"""


def groups() -> dict[Group, dict[str, list[str]]]:
    """The names by table and answer, without flags of the same name, also behind dots.

    A sentence that two libraries have stands in one table for all of them, with those names that all answer alike.
    """
    titles: dict[object, str] = {}
    for library, modules in LIBRARIES.items():
        titles.setdefault(modules[0], library)
        for module in modules[1:]:
            titles.setdefault(module, "transformers")
    rows = [(title, row) for module, title in titles.items() for row in read(module.NAMES).rows]  # type: ignore[attr-defined]
    libraries: dict[Answer, set[str]] = {}
    answers: dict[str, set[Answer]] = {}
    for title, row in rows:
        libraries.setdefault(row.answer, set()).add(title)
        answers.setdefault(row.name, set()).add(row.answer)
    found: dict[Group, dict[str, list[str]]] = {(title, STAGES): {} for title in [*titles.values(), SEVERAL, BY_WORD]}
    for title, row in [*rows, *((BY_WORD, row) for row in read(subjects.NAMES).rows)]:
        shared = title != BY_WORD and row.answer.form is None and len(libraries[row.answer]) > 1
        home = SEVERAL if shared and len(answers[row.name]) == 1 else title
        stages = tuple(stage for stage in STAGES if stage in row.stages)
        names = found.setdefault((home, stages), {}).setdefault(in_words(row), [])
        if row.answer.text != f"--{row.name.rpartition('.')[2]}" and f"`{row.name}`" not in names:
            names.append(f"`{row.name}`")
    return found


def page() -> str:
    """The page's tables: of each library, by stages."""
    parts: dict[str, list[str]] = {}
    for (title, stages), answers in groups().items():
        lines = [f"| {', '.join(names)} | {said} |" for said, names in answers.items() if names]
        if lines:
            of = "every stage" if stages == STAGES else ", ".join(stages)
            parts.setdefault(title, []).append("\n".join([f"| elsewhere | {of} |", "|---|---|", *lines]))
    return "\n\n".join(f"### {title}\n\n" + "\n\n".join(tables) for title, tables in parts.items())


def test_the_page_for_users_of_other_libraries_has_the_tables() -> None:
    text = (ROOT / "docs/coming_from.md").read_text(encoding="utf-8")
    found = text[text.index("### TRL\n") :]
    assert found.strip() == page().strip(), "the table was changed: put what page() returns at the end of the page"
