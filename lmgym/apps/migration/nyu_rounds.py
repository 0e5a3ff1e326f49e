"""DPO in rounds and PPO of NYU's debate project, which play the rounds that they train on: the experiment's file."""

import re
from collections.abc import Mapping
from typing import Any

from lmgym.apps.migration.commands import Translation, display
from lmgym.apps.migration.nyu_entries import Entry, file_name
from lmgym.apps.migration.nyu_files import literal
from lmgym.errors import InputError, shown
from lmgym.origin import names_code_or_address

EPOCH_SIZE = 2048
"""rounds of an epoch of theirs, unless it is set"""
HELD_OUT = 64
"""questions to evaluate on; of theirs nothing is held out"""
SPEECH_TOKENS = 300
JUDGE = "theirs is an OpenAI model of their own; here any model's spec that gives log-probabilities, letter:X or random"
DPO = """CONFIG = IterativeConfig(
    name={name},
    data=PromptConfig(prompts={prompts}, eval_size={held_out}),
    rounds=RoundConfig(
        prompts_per_round={speeches}, num_generations=2, max_new_tokens={tokens}, temperature=0.5, renew_reference=True
    ),
    judge=JudgeConfig(weights="p_win=1,won=0", missing_eos_penalty=0.0),
)
QUESTIONS, JUDGE = {questions}, "JUDGE"


def work(config: IterativeConfig) -> None:
    \"\"\"Debaters' first speeches, of two samples the better against one of the opponent.\"\"\"
    from lmgym.apps.debate.data import quality, read_questions
    from lmgym.apps.debate.formats import debate
    from lmgym.apps.debate.players.models import model_judge
    from lmgym.apps.debate.prompts.debate import PROMPTS
    from lmgym.apps.debate.training.preference_pairs import train_on_debates

    questions = read_questions(QUESTIONS, quality)
    train_on_debates(config, questions, debate(rounds=1), PROMPTS, model_judge(JUDGE, PROMPTS))
"""
PPO = """CONFIG = PPOConfig(
    name={name},
    rollout=RolloutConfig(prompts="questions", max_new_tokens={tokens}, temperature=0.5, eval_size={held_out}),
    limits=LimitConfig(max_kl=0.0),
)
QUESTIONS, JUDGE = {questions}, "JUDGE"


def work(config: PPOConfig) -> None:
    \"\"\"Self-play; P(win) less .67 is the reward for the right answer, less .33 for the wrong one.\"\"\"
    from lmgym.apps.debate.data import quality, read_questions
    from lmgym.apps.debate.formats import debate
    from lmgym.apps.debate.players.models import model_judge
    from lmgym.apps.debate.prompts.debate import PROMPTS
    from lmgym.apps.debate.training.ppo_setup import debate_rounds
    from ppo.train import train

    questions = read_questions(QUESTIONS, quality)
    train(config, debate_rounds(questions, debate(rounds=1), PROMPTS, model_judge(JUDGE, PROMPTS), (0.67, 0.33)))
"""
IMPORTS = {
    "dpo": "from preferences.iterative.config import IterativeConfig, JudgeConfig, PromptConfig, RoundConfig",
    "ppo": "from ppo.config import LimitConfig, PPOConfig, RolloutConfig",
}


def write_experiment(found: Translation, entry: Entry, kind: str, dataset: Mapping[str, Any], epoch_size: int) -> None:
    """Put the command that writes the experiment before the one that trains.

    Raises InputError for rounds that are no debates, which training does not play.
    """
    structure = str(entry.values.get("speech_structure") or "default_debate").lower()
    if structure != "default_debate":
        raise InputError(
            f"{shown(entry.name)}: speech_structure={display(structure)} with rounds that training plays; needed: "
            "default_debate, or rows of an experiment with multi_round_branching, as judge_preferences"
        )
    file = file_name(entry)
    name = file.removesuffix(".py")
    split = str(dataset.get("split_type") or "train").lower()
    path = dataset.get("full_dataset_file_path") or dataset.get(f"{split}_file_path")
    if not isinstance(path, str) or names_code_or_address(path):
        path = "QUESTIONS"
        source = f"QuALITY.v1.0.1.htmlstripped.{ {'val': 'dev'}.get(split, split) }"
        found.lines.append(f'fill in "QUESTIONS" in {file}: {source}, from their data/datasets')
    found.lines.append(f'fill in "JUDGE" in {file}: {JUDGE}')
    values = {
        "name": literal(name),
        "prompts": literal(f"outputs/{name}_prompts.jsonl"),
        "held_out": HELD_OUT,
        "speeches": 2 * epoch_size,
        "tokens": SPEECH_TOKENS,
        "questions": literal(path),
    }
    title = re.sub(r"[^A-Za-z0-9 .,_-]", "", entry.name)[:80].strip() or "An entry"
    body = (DPO if kind == "dpo" else PPO).format(**values)
    text = "\n".join([
        f'"""{title}, of NYU\'s debate project."""', "", "from lmgym.runs.flags import override",
        "from lmgym.runs.launch import launch", IMPORTS[kind], "", body, "",
        'if __name__ == "__main__":', "    config = override(CONFIG)", "    launch(lambda: work(config))", "",
    ])  # fmt: skip
    found.before.append(f"cat > {file} <<'END'\n{text}END")
    found.command = f"{'ppo' if kind == 'ppo' else 'preference'} {file}"
