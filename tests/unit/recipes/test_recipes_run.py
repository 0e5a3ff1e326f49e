"""Each recipe as a student runs it: it learns, on rows of its own and on a file's, and its folder loads."""

import ast
import json
import math
import re
import runpy
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

import recipes.dpo
import recipes.ppo
import recipes.reward
import recipes.sft
from lmgym.scoring.scorers import HFScorer
from lmgym.text import Conversation, Turn

FOLDER = Path(__file__).parents[3] / "recipes"
NAMES = ["sft", "reward", "dpo", "ppo"]


@pytest.fixture
def begin(small_models: dict[str, Path], tmp_path: Path) -> list[str]:
    """The flags of a small model and an output folder."""
    return ["--model", str(small_models["llama"]), "--out", str(tmp_path / "out"), "--device", "cpu"]


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_is_one_file_of_at_most_250_lines_on_torch_and_transformers(name: str) -> None:
    text = (FOLDER / f"{name}.py").read_text()
    assert len(text.splitlines()) <= 250
    nodes = list(ast.walk(ast.parse(text)))
    imported = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    imported |= {str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)}
    assert {path.partition(".")[0] for path in imported} - set(sys.stdlib_module_names) == {"torch", "transformers"}


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_is_a_script_that_says_what_it_does(name: str, monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "argv", [f"{name}.py", "--help"])
    with pytest.raises(SystemExit, match="0"):
        runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")
    said = capsys.readouterr().out
    assert "on one page" in said
    assert "--lr" in said


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_takes_the_devices_of_the_machine_and_names_them(name: str, monkeypatch, capsys) -> None:
    parse = runpy.run_path(str(FOLDER / f"{name}.py"))["parse"]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for has_mps in (False, True):
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda has_mps=has_mps: has_mps)
        assert parse([]).device == "cpu"
        if has_mps:
            assert parse(["--device", "mps"]).device == "mps"
        else:
            with pytest.raises(SystemExit, match="2"):
                parse(["--device", "mps"])
            last = capsys.readouterr().err.splitlines()[-1]
            assert re.search(r"argument --device: invalid choice: '?mps'? \(choose from '?cpu'?\)$", last)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert parse([]).device == "cuda"


def test_sft_learns_short_answers_and_where_they_end(begin: list[str], tmp_path: Path, capsys) -> None:
    losses = recipes.sft.main([*begin, "--steps", "40", "--lr", "5e-3", "--batch", "12"])
    said = capsys.readouterr().out
    before, after = re.search(r"held-out loss a token ([0-9.]+) -> ([0-9.]+)", said).groups()  # type: ignore[union-attr]
    assert losses[0] > 6
    assert losses[-1] < 1.6
    assert float(after) < float(before) - 1.5
    answer = re.search(r"-> '(.*)'\n", said).group(1)  # type: ignore[union-attr]
    assert 0 < len(answer) < 20, "32 tokens without an eos are longer"
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "out").num_parameters() > 0


def test_the_reward_model_learns_what_is_preferred_and_its_folder_scores_everywhere(
    begin: list[str], small_models: dict[str, Path], tmp_path: Path, capsys
) -> None:
    losses = recipes.reward.main([*begin, "--steps", "8", "--lr", "3e-3"])
    assert losses[0] > 0.6
    assert "8 of 8 right\n" in capsys.readouterr().out
    folder = str(tmp_path / "out")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    rows = [{"prompt": "What is tea?", "chosen": "A drink.", "rejected": "The answer to that is a drink."}]
    pairs = [recipes.reward.encode(tokenizer, row) for row in rows]
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    own = recipes.reward.scores(model, recipes.reward.collate(pairs, tokenizer.pad_token_id)).tolist()
    assert own[0] > own[1]
    replies = [rows[0]["chosen"], rows[0]["rejected"]]
    by_ppo = recipes.ppo.load_scorer(folder, "cpu")
    assert [by_ppo(rows[0], reply) for reply in replies] == pytest.approx(own, rel=1e-5)
    asked = Conversation((Turn("user", "What is tea?"),))
    assert HFScorer.load(folder).score([asked, asked], replies).tolist() == pytest.approx(own, rel=1e-4)


def test_dpo_learns_what_is_preferred(begin: list[str], tmp_path: Path, capsys) -> None:
    losses = recipes.dpo.main([*begin, "--steps", "10", "--lr", "3e-3", "--batch", "8"])
    assert losses[0] == pytest.approx(math.log(2), abs=1e-5)
    assert losses[-1] < 0.15
    assert "8 of 8 right\n" in capsys.readouterr().out
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "out").num_parameters() > 0


def words_begun(row: dict, reply: str) -> float:
    """The share of 4 tokens that begin a word."""
    return reply.count(" ") / 4


@pytest.mark.parametrize("method", ["ppo", "grpo"])
def test_ppo_and_grpo_raise_the_reward(method: str, begin: list[str], tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(recipes.ppo, "reward", words_begun)
    settings = "--steps 8 --lr 1e-2 --rollouts 64 --batch 16 --length 4 --beta 0.01"
    rewards = recipes.ppo.main([*begin, "--method", method, *settings.split()])
    assert rewards[0] < 0.5
    assert sum(rewards[-2:]) / 2 > rewards[0] + 0.25
    assert "step 8/8  reward" in capsys.readouterr().out
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "out").num_parameters() > 0


def test_replies_are_drawn_from_the_policy_whatever_its_generation_config_says(small_models: dict[str, Path]) -> None:
    policy = AutoModelForCausalLM.from_pretrained(small_models["llama"]).eval()
    for name, value in {"temperature": 0.01, "top_k": 1, "top_p": 0.1, "repetition_penalty": 9.0}.items():
        setattr(policy.generation_config, name, value)
    prompt, size = [5, 6, 7], policy.config.vocab_size
    torch.manual_seed(0)
    ids, _, _ = recipes.ppo.sample(policy, [prompt] * 4000, 1, eos=1)
    counts = ids[:, -1].bincount(minlength=size).double()
    wanted = 4000 * policy(torch.tensor([prompt])).logits[0, -1].softmax(-1).detach().double()
    chi_square = float(((counts - wanted) ** 2 / wanted).sum())
    assert chi_square < size + 5 * math.sqrt(2 * size)


@pytest.mark.parametrize("name", NAMES)
def test_each_reads_a_file(name: str, begin: list[str], chats_file: Path, few_pairs: Path, monkeypatch, capsys) -> None:
    recipe = {"sft": recipes.sft, "reward": recipes.reward, "dpo": recipes.dpo, "ppo": recipes.ppo}[name]
    data = chats_file if name == "sft" else few_pairs
    sizes = ["--rollouts", "4", "--length", "4"] if name == "ppo" else ["--held_out", "4"]
    found = recipe.main([*begin, "--data", str(data), "--steps", "2", "--batch", "4", *sizes])
    assert len(found) == 2
    said = capsys.readouterr().out
    assert "step 2/2" in said
    if name != "ppo":
        assert "4 held out, 0 left out" in said


@pytest.mark.parametrize("name", ["sft", "reward", "dpo"])
def test_a_file_of_rows_that_do_not_fit_is_refused_in_one_line(name: str, begin: list[str]) -> None:
    recipe = {"sft": recipes.sft, "reward": recipes.reward, "dpo": recipes.dpo}[name]
    with pytest.raises(SystemExit, match="needed: 2"):
        recipe.main([*begin, "--max_length", "4"])


@pytest.mark.parametrize("recipe", [recipes.reward, recipes.dpo])
def test_a_prompt_is_learned_from_or_held_out_never_both(recipe, begin: list[str], tmp_path: Path, capsys) -> None:
    rows = [{"prompt": f"{i % 3}?", "chosen": f"yes {i}", "rejected": f"no {i}"} for i in range(9)]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    recipe.main([*begin, "--data", str(tmp_path / "pairs.jsonl"), "--steps", "1", "--held_out", "1"])
    assert "6 pairs to train on, 3 held out, 0 left out" in capsys.readouterr().out


def test_commands_that_are_printed_are_understood() -> None:
    recipe_of = {"sft": recipes.sft, "reward": recipes.reward, "dpo": recipes.dpo, "ppo": recipes.ppo}
    texts = [(FOLDER / name).read_text() for name in ("README.md", *(f"{name}.py" for name in NAMES))]
    found = [re.findall(r"python recipes/(\w+)\.py([^#`\n]*)", text) for text in texts]
    assert min(map(len, found)) >= 1
    for name, flags in (command for commands in found for command in commands):
        assert recipe_of[name].parse(flags.split()).model
