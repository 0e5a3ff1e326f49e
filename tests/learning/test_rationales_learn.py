"""A judge learns from reasons to give its verdict in the asked form, which it does not know before."""

import json
from pathlib import Path

import pytest

from lmgym.config import ModelConfig, OptimizerConfig, RowsConfig, RunConfig, SamplesConfig
from lmgym.data.records import read_records
from lmgym.models.small_models import make_small_model
from lmgym.scoring.judge_models import load_judge_model
from lmgym.scoring.judge_prompts import NAMES
from lmgym.scoring.judge_settings import JUDGE_FILE, JudgeConfig
from lmgym.scoring.label_probabilities import Reading
from sft.config import SftConfig
from sft.judging import save_settings, validate_rationales
from sft.tasks import RATIONALES
from sft.train import train

THINGS = [
    *("apple", "bread", "chair", "door", "egg", "fish", "grape", "house", "ink", "jam"),
    *("kite", "lamp", "moon", "nest", "oak", "pen", "quilt", "rose", "sun", "tree"),
]
HOW = ("quickly", "slowly", "kindly", "at once")
TOKENS = 32


def rows() -> list[dict[str, str]]:
    """Pairs of which one reply does what was asked."""
    reasons = "It does what the user asked for."
    return [
        {"prompt": f"Name the {thing} {how}.", "chosen": f"The {thing}.", "rejected": "No.", "rationale": reasons}
        for thing in THINGS
        for how in HOW
    ]


def share_in_form(model: Path, file: Path, tokens: int | None) -> float:
    """Of verdicts on both orders of some pairs, those in the asked form; without `tokens` asked as its folder says."""
    chats, _ = validate_rationales(read_records(str(file)))
    asked = [chat.prompt for chat in chats[:40]]
    found: dict[int, Reading] = {}
    judge = load_judge_model(str(model), JudgeConfig(judge_tokens=tokens))
    assert judge.reasons, "asked for its reasons"
    judge.ask(asked, NAMES, found.__setitem__)
    return sum(not reading.fault for reading in found.values()) / len(asked)


@pytest.mark.slow
def test_the_share_of_verdicts_in_the_asked_form_rises_from_none_to_most(tmp_path: Path) -> None:
    file = tmp_path / "pairs.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows()))
    chats, _ = validate_rationales(read_records(str(file)))
    texts = [turn.text for chat in chats for turn in chat.conversation.turns]
    make_small_model(tmp_path / "start", "llama", texts, width=64, max_length=512)
    assert share_in_form(tmp_path / "start", file, TOKENS) < 0.1
    config = SftConfig(
        "judge",
        ModelConfig(str(tmp_path / "start"), precision="fp32"),
        RowsConfig(str(file), max_length=512, eval_size=8),
        optimizer=OptimizerConfig(learning_rate=5e-3, adam_beta2=0.99, epochs=6, global_batch=8, micro_batch=8),
        samples=SamplesConfig(sample_prompts=0),
        run=RunConfig(str(tmp_path / "run"), tracking="none", eval_updates=10_000, save_updates=-1),
    )
    save_settings(config, train(config, RATIONALES))
    assert json.loads((tmp_path / "run/model" / JUDGE_FILE).read_text())["judge_tokens"] == 64
    assert share_in_form(tmp_path / "run/model", file, None) > 0.9
