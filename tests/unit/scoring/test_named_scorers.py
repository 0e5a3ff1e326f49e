"""Names of scorers that are given on the command line, or follow from their paths."""

from pathlib import Path

import pytest

from lmgym.errors import InputError
from lmgym.scoring.named_scorers import read_names


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ("a=outputs/x/model, b=owner/name", ["a", "b"]),
        ("outputs/hh_pairwise/model", ["hh_pairwise"]),
        ("outputs/hh_pairwise/3/model,outputs/hh_pairwise/model", ["hh_pairwise_3", "hh_pairwise"]),
        ("~/short/checkpoints/checkpoint-40/", ["short_checkpoint_40"]),
        ("owner/reward-model#softmax[1]", ["reward_model"]),
        ("world:0", ["world_0"]),
        ("x/s/model,y/s/model,s_2=z,s_3=w", ["s", "s_4", "s_2", "s_3"]),
        ("outputs/lr=1e-5/model", ["lr_1e_5"]),
        ("./näher dran/model", ["n_her_dran"]),
        ("model", ["model"]),
        ("judge:openai:http://127.0.0.1:1/v1#smollm,judge:outputs/x/model", ["smollm", "x"]),
        ("judge:vllm:http://a:1,http://b:2,compare:vllm:http://a:1", ["a_1", "a_1_2"]),
        ("j=judge:anthropic:name,judge:openai:gpt", ["j", "gpt"]),
        ("rubrics/polite.yaml,polite.json#vllm:http://a:1", ["polite", "polite_2"]),
        ("rewards.py:short,~/x/rewards.py:long", ["short", "long"]),
        ("http://127.0.0.1:8900#helpful,https://h:1", ["helpful", "h_1"]),
    ],
)
def test_a_scorer_without_a_name_has_that_of_its_folder_made_unique(words: str, names: list[str]) -> None:
    assert list(read_names(words)) == names


def test_the_folder_one_stands_in_has_its_name_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tidy/model").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "tidy")
    assert read_names("model,.") == {"tidy": "model", "tidy_2": "."}


@pytest.mark.parametrize("words", ["", " , ", "a=", "=x", "a=x,=y"])
def test_an_empty_name_or_path_is_refused(words: str) -> None:
    with pytest.raises(InputError, match=r"--scorers '.*': needed \[name=\]PATH,\[name=\]PATH"):
        read_names(words)


def test_a_name_that_is_given_twice_is_refused() -> None:
    with pytest.raises(InputError, match="names a twice"):
        read_names("a=x,a=y")
