"""Replies to audit on: pairs, chats, rankings, and the rollouts that TRL and verl log, in the files that they write."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lmgym.apps.audit.recorded import Sample, read_samples, turns_of
from lmgym.errors import InputError
from lmgym.text import Conversation, Turn

CHATML = (
    "<|im_start|>system\nYou are terse.<|im_end|>\n<|im_start|>user\nWhat is 2+2?<|im_end|>\n<|im_start|>assistant\n"
)
LLAMA = (
    "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nYou are terse.<|eot_id|><|start_header_id|>user"
    "<|end_header_id|>\n\nWhat is 2+2?<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
)
TERSE = Conversation((Turn("user", "What is 2+2?"),), "You are terse.")


def write(path: Path, *rows: dict) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_verls_rollouts_are_read_from_its_folder(tmp_path: Path) -> None:
    """As RayPPOTrainer._write_generations of verl 0.9.1 dumps them: texts decoded without special tokens."""
    asked = "system\nYou are terse.\nuser\nWhat is 2+2?\nassistant\n"
    for step in (1, 2):
        rows = [
            {"input": asked, "output": said, "gts": "4", "score": float(said == "4"), "step": step, "acc": said == "4"}
            for said in ("4", "Five, I think." if step == 1 else "It is 4.")
        ]
        write(tmp_path / f"rollouts/{step}.jsonl", *rows)
    notes: list[str] = []
    assert read_samples(tmp_path / "rollouts", notes=notes) == [Sample(TERSE, ("4", "Five, I think.", "4", "It is 4."))]
    assert notes[-1] == "4 prompts were rendered by a chat template, and are read as their turns"
    assert "not read: " in notes[0]


def test_trls_completions_are_read_from_its_folder(tmp_path: Path) -> None:
    """As GRPOTrainer.log of TRL 1.16 writes them: messages or texts as the data set had them, a column a reward."""
    folder = tmp_path / "out/completions"
    folder.mkdir(parents=True)
    chat = [{"role": "system", "content": "You are terse."}, {"role": "user", "content": "What is 2+2?"}]
    for step in (1, 2):
        table = {
            "step": [step] * 2,
            "prompt": [chat] * 2,
            "completion": [[{"role": "assistant", "content": said}] for said in ("4", f"No, {step}.")],
            "accuracy_reward": [1.0, 0.0],
            "advantage": [0.7, -0.7],
        }
        pq.write_table(pa.table(table), folder / f"completions_{step:05d}.parquet")
    assert read_samples(folder) == [Sample(TERSE, ("4", "No, 1.", "4", "No, 2."))]


def test_older_trls_completions_have_rendered_prompts(tmp_path: Path) -> None:
    table = {"step": [1, 1], "prompt": [CHATML] * 2, "completion": ["4", "5"], "reward": [1.0, 0.0]}
    pq.write_table(pa.table(table), tmp_path / "completions_00001.parquet")
    assert read_samples(tmp_path) == [Sample(TERSE, ("4", "5"))]


@pytest.mark.parametrize(
    "text",
    [CHATML, LLAMA, "system\n\nYou are terse.user\n\nWhat is 2+2?assistant\n\n", CHATML.replace("<|im_end|>", "")],
)
def test_rendered_prompts_become_turns(text: str) -> None:
    assert turns_of(text) == [
        {"role": "system", "content": "You are terse."},
        {"role": "user", "content": "What is 2+2?"},
    ]


def test_rendered_prompts_of_several_turns_keep_them() -> None:
    messages = turns_of("user\nHi\nassistant\nHello!\n\nYes?\nuser\nWhat does\na user do?\nassistant\n")
    assert messages is not None
    assert [message["content"] for message in messages] == ["Hi", "Hello!\n\nYes?", "What does\na user do?"]


@pytest.mark.parametrize(
    "text",
    ["What is a user\nof a system?", "user\nHi", "user\nHi\nassistant\nHello", "Write:\nuser\nHi\nassistant\n", ""],
)
def test_other_texts_are_no_rendered_prompts(text: str) -> None:
    assert turns_of(text) is None


def test_a_text_of_a_template_this_page_knows_in_real_tokenizers(tokenizers) -> None:
    from transformers import AutoTokenizer

    folder = Path(__file__).parents[4] / "outputs/models/smollm2-135m"
    if not folder.is_dir():
        pytest.skip("needs lmgym get smollm2-135m")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    chat = [{"role": "user", "content": "What is 2+2?"}]
    ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
    for skip in (True, False):
        found = turns_of(tokenizer.decode(ids, skip_special_tokens=skip))
        assert found is not None
        assert found[-1] == chat[0]


def test_the_good_replies_of_pairs_and_rankings_come_first(tmp_path: Path) -> None:
    pairs = write(
        tmp_path / "pairs.jsonl",
        {"prompt": "Why?", "chosen": "Because.", "rejected": "No."},
        {"prompt": "why? ", "chosen": "So.", "rejected": "Never."},
    )
    assert read_samples(pairs)[0].replies == ("Because.", "So.", "No.", "Never.")
    ranked = write(tmp_path / "ranked.jsonl", {"prompt": "Why?", "replies": ["c", "a", "b"], "ranks": [3, 1, 2]})
    assert read_samples(ranked)[0].replies == ("a", "b", "c")


def test_chats_and_bare_prompts(tmp_path: Path) -> None:
    said = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
    chats = write(tmp_path / "chats.jsonl", {"messages": said}, {"messages": said[:1]}, {"messages": []})
    notes: list[str] = []
    assert read_samples(chats, notes=notes) == [Sample(Conversation((Turn("user", "Hi"),)), ("Hello",))]
    assert "rejected" in notes[-1]
    bare = write(tmp_path / "bare.jsonl", *({"prompt": f"Question {i}?"} for i in range(5)))
    assert [sample.replies for sample in read_samples(bare, most=3)] == [(), (), ()]


def test_rows_without_a_prompt_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no prompts"):
        read_samples(write(tmp_path / "a.jsonl", {"score": 1}))
    with pytest.raises(InputError, match="no prompt that can be used"):
        read_samples(write(tmp_path / "b.jsonl", {"prompt": "", "completion": "x"}, {"prompt": None}))
