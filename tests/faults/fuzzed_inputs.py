"""Kinds of input that commands read: valid files, which of them are damaged, and the commands that a user would run.

The files are made once, by the commands that write them for users where there are such commands.
"""

import json
import random
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from damage import damage_file
from fuzzing import KINDS as ROW_KINDS
from fuzzing import make_file

ROOT = Path(__file__).parents[2]
ZERO2 = {
    "zero_optimization": {"stage": 2, "overlap_comm": False, "offload_optimizer": {"device": "cpu"}},
    "bf16": {"enabled": "auto"}, "fp16": {"enabled": "auto", "loss_scale": 0.0}, "gradient_clipping": "auto",
    "train_batch_size": "auto", "optimizer": {"type": "AdamW", "params": {"lr": 1e-5, "betas": [0.9, 0.95]}},
    "wall_clock_breakdown": False,
}  # fmt: skip
TRAIN = ("--precision=fp32", "--global_batch=4", "--micro_batch=2", "--max_length=96", "--eval_size=4")
QUICK_RUN = ("--max_updates=1",)
Words = tuple[str, ...]


@dataclass(frozen=True)
class Kind:
    """A kind of input, and the command that reads it."""

    base: str
    """folder of the valid files, below that of all of them"""
    damaged: str
    """pattern of the files below it that are damaged"""
    commands: Sequence[Words]
    """of which one is drawn; they run in the copy of the folder, and {base} is the folder of all valid files"""


def sft(*words: str) -> Words:
    return ("sft/experiments/chat.py", *TRAIN, "--dataset={base}/chats.jsonl", *words)


MODEL = (
    sft("--model=model", "--dry_run"),
    sft("--model=model", "--output=out", *QUICK_RUN),
    ("ppo/experiments/sentiment_words.py", "--precision=fp32", "--model=model", "--prompts={base}/prompts.jsonl",
     "--num_rollouts=4", "--global_batch=4", "--micro_batch=2", "--max_new_tokens=4",
     "--eval_size=2", "--max_updates=1", "--output=out"),
)  # fmt: skip
RESULTS = (
    ("playpen", "eval", "mock", "--skip_gameplay", "-r", "results"),
    ("lmgym", "dialogue", "rows", "results", "--output", "rows.jsonl"),
)
RUN = (
    ("lmgym", "report", "run"),
    ("lmgym", "games", "data", "run", "--min_return", "-1"),
    ("lmgym", "runs", "."),
    ("lmgym", "compare", "run", "{base}/run/run"),
)
EPISODES = (
    *RUN[:2],
    (
        "lmgym/apps/games/experiments/blackjack.py",
        "--model={base}/policy/model",
        "--replay=run/episodes/rollouts-00000001.jsonl",
    ),
)
DEBATES = (
    ("lmgym", "report", "."),
    ("lmgym", "debate", "data", ".", "--kind", "sft", "--output", "rows.jsonl"),
    ("lmgym", "debate", "data", ".", "--kind", "preferences", "--output", "rows.jsonl"),
    ("lmgym", "debate", "audit", "letter:e", "--transcripts", "transcripts.jsonl", "--questions", "2"),
)
NYU = (
    ("lmgym", "debate", "data", "rounds.jsonl", "--kind", "sft", "--output", "rows.jsonl"),
    ("lmgym", "debate", "data", "human.json", "--kind", "sft", "--output", "rows.jsonl"),
)
KINDS: dict[str, Kind] = {
    "a policy's folder": Kind("policy", "model/*", MODEL),
    "a scorer's folder": Kind(
        "scorer", "scorer/*", (("lmgym", "score", "scorer", "{base}/pairs.jsonl", "--output", "scores.jsonl"),)
    ),
    "an adapter's folder": Kind("adapter", "model/adapter_*", MODEL[:2]),
    "transcripts": Kind("debates", "transcripts.jsonl", DEBATES),
    "NYU's debates": Kind("nyu", "*", NYU),
    "questions": Kind(
        "questions", "questions.jsonl",
        (("lmgym", "debate", "audit", "letter:e", "--dataset", "questions.jsonl", "--questions", "2"),),
    ),
    "QuALITY's stories": Kind(
        "stories", "stories.jsonl",
        (("fuzzed_stories.py", "--dataset", "stories.jsonl", "--output", "out", "--rounds", "1"),),
    ),
    "static rows": Kind(
        "static", "rows.jsonl",
        (("playpen", "eval", "mock", "--suite", "static", "--static", "rows.jsonl", "-r", "out"),),
    ),
    "playpen's results": Kind("results", "results/**/*.json", RESULTS),
    "playpen's registries": Kind(
        "registries", "*_registry.json",
        (("playpen", "list", "models", "-v"), ("playpen", "list", "games", "-v"),
         ("playpen", "eval", "toy", "-r", "o")),
    ),
    "recorded episodes": Kind("run", "run/episodes/*.jsonl", EPISODES),
    "a run's folder": Kind("run", "run/*.json*", RUN),
    "a run's samples": Kind("run", "run/samples/*.jsonl", RUN[:1]),
    "DeepSpeed files": Kind(
        "deepspeed", "ds.json",
        (sft("--model={base}/policy/model", "--deepspeed=ds.json", "--dry_run"),),
    ),
    "a world's tables": Kind(
        "world", "world/*",
        (("lmgym", "baselines", "--world", "world"), ("lmgym", "baselines", "--world", "world"),
         ("lmgym", "world-policy", "--world", "world", "--output", "out"),
         ("lmgym", "world-model", "--world", "world", "--output", "out", "--steps", "1")),
    ),
}  # fmt: skip
SCRIPTS: dict[str, Words] = {
    "task setups": ("fuzzed_setups.py", "{base}/policy/model"),
    "headers": ("fuzzed_headers.py",),
}
"""scripts that draw what is odd in them by a number"""
EXPERIMENTS: dict[str, Words] = {
    **dict.fromkeys(("pairs", "pairs of messages", "ultrafeedback"), ("reward_models/experiments/hh_pairwise.py",)),
    "logs": ("reward_models/experiments/retry_accept.py",),
    "groups": ("reward_models/experiments/kwise_ranking.py",),
    "taught": ("sft/experiments/soft_targets.py",),
}
"""by the kind of rows; the others are conversations"""


def rows_command(kind: str, file: Path) -> Words:
    """The dry run that reads rows of a kind."""
    if kind == "prompts":
        words = ("--precision=fp32", "--model={base}/policy/model", f"--prompts={file.name}", "--eval_size=1")
        return ("ppo/experiments/sentiment_words.py", *words, "--dry_run")
    script = EXPERIMENTS.get(kind, ("sft/experiments/chat.py",))
    return (*script, *TRAIN[:4], "--model={base}/policy/model", f"--dataset={file.name}", "--dry_run")


@dataclass(frozen=True)
class Case:
    """A command on damaged files."""

    number: int
    kind: str
    damage: tuple[str, ...]
    words: Words
    most_files: int | None = None
    """that the command may open"""

    def __str__(self) -> str:
        return f"{self.number} ({self.kind}): {'; '.join(self.damage) or 'nothing'}: {' '.join(self.words)[:200]}"


def make_case(base: Path, folder: Path, seed: int, number: int, kinds: Sequence[str]) -> Case:
    """The case of a number: kinds take turns, damage and command are drawn. `folder` is made and receives the files."""
    rng = random.Random(f"inputs {seed} {number}")
    kind = kinds[number % len(kinds)]
    if kind in ROW_KINDS:
        folder.mkdir()
        place = list(ROW_KINDS).index(kind) + len(ROW_KINDS) * rng.randrange(5)
        file = make_file(folder, seed * 1_000_000 + number, place)
        return Case(number, kind, file.damage, _with_base(rows_command(kind, file.path), base))
    if kind in SCRIPTS:
        folder.mkdir()
        return Case(number, kind, (), _with_base((*SCRIPTS[kind], f"{seed}.{number}"), base))
    spec = KINDS[kind]
    shutil.copytree(base / spec.base, folder)
    files = sorted(path for path in folder.glob(spec.damaged) if path.is_file())
    damage = []
    for _ in range(rng.choice((1, 1, 1, 2))):
        path = rng.choice(files)
        if path.is_file():
            others = [other for other in files if other != path and other.is_file()]
            damage.append(damage_again(rng, path, others))
    words = _with_base(rng.choice(spec.commands), base)
    if rng.random() < 0.05:
        most = rng.randrange(1, 9)  # one for the command itself
        return Case(number, kind, (*damage, f"{most} more open files"), words, most)
    return Case(number, kind, tuple(damage), words)


def damage_again(rng: random.Random, path: Path, others: list[Path]) -> str:
    """`damage_file`, of a file that may be damaged already, so that it is none of its kind."""
    try:
        return damage_file(rng, path, others)
    except (ValueError, OSError, IndexError, RecursionError):  # pyarrow's errors are among them
        return "nothing more"


def _with_base(words: Words, base: Path) -> Words:
    return tuple(word.replace("{base}", str(base)) for word in words)


def make_base(base: Path, run: Callable[[Words, Path], int], kinds: Sequence[str]) -> None:
    """Writes the valid files of the kinds below `base`; `run` runs a command in a folder."""
    from demo_pairs import write_demo_pairs

    from lmgym.models.small_models import make_small_model

    base.mkdir(parents=True, exist_ok=True)
    write_demo_pairs(base / "pairs.jsonl", 40, seed=0)
    pairs = [json.loads(line) for line in (base / "pairs.jsonl").read_text().splitlines()]
    texts = [message["content"] for row in pairs for key in ("prompt", "chosen", "rejected") for message in row[key]]
    _lines(base / "chats.jsonl", [{"messages": [*row["prompt"], *row["chosen"]]} for row in pairs])
    _lines(base / "prompts.jsonl", [{"prompt": f"question {i}"} for i in range(12)])
    for name, family, head, folder in (
        ("policy", "llama", "causal", "model"), ("scorer", "llama", "classifier", "scorer"),
    ):  # fmt: skip
        made = make_small_model(base / name / folder, family, texts, layers=1, width=16, max_length=256, head=head)
        _sidecars(made)
    wanted = {KINDS[kind].base for kind in kinds if kind in KINDS}
    for name in sorted(wanted - {"policy", "scorer"}):
        (base / name).mkdir(exist_ok=True)
        MAKERS[name](base, base / name, run)


def _sidecars(folder: Path) -> None:
    """The files that older folders have beside the tokenizer."""
    names = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": {"content": "<pad>", "lstrip": False}}
    config = json.loads((folder / "tokenizer_config.json").read_text())
    names = {key: config[key] for key in names if key in config}
    (folder / "special_tokens_map.json").write_text(json.dumps(names))


def _lines(path: Path, rows: Sequence[object]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def _adapter(base: Path, folder: Path, run: Callable[[Words, Path], int]) -> None:
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    source = base / "policy/model"
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(source), LoraConfig(r=2, target_modules=["q_proj"]))
    model.peft_config["default"].base_model_name_or_path = str(source)
    model.save_pretrained(folder / "model")
    for path in source.glob("*token*"):
        shutil.copy(path, folder / "model")


def _debates(base: Path, folder: Path, run: Callable[[Words, Path], int]) -> None:
    _ran(run(("lmgym/apps/debate/experiments/scripted.py", "--rounds=4", "--output=out"), folder))
    rows = [json.loads(line) for line in (folder / "out/transcripts.jsonl").read_text().splitlines()]
    for row in rows[:2]:  # as best-of-n debaters leave them
        for speech in row["speeches"]:
            speech |= {"candidates": [{"text": f"{speech['text']} {i}", "score": i / 4} for i in (3, 1)],
                       "opponent_samples": ["no"], "p_first": 0.5}  # fmt: skip
    shutil.rmtree(folder / "out")
    _lines(folder / "transcripts.jsonl", rows)


def _nyu(base: Path, folder: Path, run: Callable[[Words, Path], int]) -> None:
    from nyu_rounds import to_nyu

    from lmgym.apps.debate.tournament.files import read_transcripts

    _debates(base, folder, run)
    rounds = read_transcripts(folder / "transcripts.jsonl")
    (folder / "transcripts.jsonl").unlink()
    _lines(folder / "rounds.jsonl", [to_nyu(one) for one in rounds])
    turns = [{"role": "Debater", "index": 0, "text": "yes <quote>a b c d</quote>"},
             {"role": "Judge", "text": "why?", "probabilities": [0.5, 0.5]},
             {"role": "Debater", "index": 1, "text": "no"},
             {"role": "Judge", "text": "so", "probabilities": [0.75, 0.25]}]  # fmt: skip
    human = {"storyTitle": "a", "story": "a b c d e f", "question": "who?", "answers": ["A", "B"], "turns": turns,
             "correctAnswer": "A"}  # fmt: skip
    (folder / "human.json").write_text(json.dumps([human, human | {"question": "where?"}]))


def _questions(base: Path, folder: Path, run: Callable[[Words, Path], int]) -> None:
    from lmgym.apps.debate.synthetic import synthetic_questions

    _lines(folder / "questions.jsonl", [question.task for question in synthetic_questions(3)])


def _stories(base: Path, folder: Path, run: Callable[[Words, Path], int]) -> None:
    answers = [{"untimed_answer": 2, "untimed_best_distractor": 3, "speed_answer": 1}]
    question = {"question": "Who?", "options": ["A", "B", "C", "D"], "gold_label": 2, "difficult": 1,
                "validation": answers, "speed_validation": answers}  # fmt: skip
    story = {"article_id": "1", "article": "One line.\nAnother line.\n\nAnd more.", "questions": [question] * 2}
    _lines(folder / "stories.jsonl", [story | {"text": story["article"]}] * 2)


def _static(base: Path, folder: Path, run: Callable[[Words, Path], int]) -> None:
    rows = [{"question": "2 + 2?", "answer": "4"}, {"prompt": "3?", "answer": 3, "task": "sums"}]
    rows += [{"question": "Paris?", "choices": ["Rome", "France"], "answer": answer} for answer in ("B", 1, "France")]
    _lines(folder / "rows.jsonl", [*rows, {"question": "?", "options": ["a", "b"], "answer": "a", "game": "letters"}])


def _results(base: Path, folder: Path, run: Callable[[Words, Path], int]) -> None:
    _ran(run(("playpen", "eval", "mock", "-g", "taboo", "-r", "results"), folder))
    for episode in sorted(folder.glob("results/clem/*/*/*/episode_*"))[3:]:
        shutil.rmtree(episode)


def _registries(base: Path, folder: Path, run: Callable[[Words, Path], int]) -> None:
    models = [{"model_name": "toy", "backend": "openai_compatible", "model_id": "toy", "context_size": "4k",
               "model_config": {"base_url": "http://127.0.0.1:9/v1", "requires_api_key": False}},
              {"model_name": "local", "backend": "huggingface_local", "huggingface_id": "gpt2"}]  # fmt: skip
    (folder / "model_registry.json").write_text(json.dumps(models))
    games = [{"game_name": "x", "game_path": "x", "players": 2, "description": "x", "benchmark": ["2.0"]}]
    (folder / "game_registry.json").write_text(json.dumps(games))


def _run(base: Path, folder: Path, run: Callable[[Words, Path], int]) -> None:
    words = ("--num_rollouts=4", "--eval_size=2", "--global_batch=4", "--micro_batch=4", "--max_updates=2")
    script = "lmgym/apps/games/experiments/blackjack.py"
    _ran(run((script, "--output=run", f"--model={base}/policy/model", *words), folder))
    for name in ("checkpoints", "model", "critic"):
        shutil.rmtree(folder / "run" / name)


def _deepspeed(base: Path, folder: Path, run: Callable[[Words, Path], int]) -> None:
    (folder / "ds.json").write_text(json.dumps(ZERO2))


def _world(base: Path, folder: Path, run: Callable[[Words, Path], int]) -> None:
    _ran(run(("lmgym", "world", "--rows", "1000", "--output", "world"), folder))
    for path in folder.glob("world/*.parquet"):
        if path.stem not in ("logs", "gold_eval", "sft"):
            path.unlink()  # no command of these reads it


def _ran(code: int) -> None:
    assert code == 0, "valid files are made by commands that work"


MAKERS = {
    "adapter": _adapter, "debates": _debates, "nyu": _nyu, "questions": _questions, "stories": _stories,
    "static": _static, "results": _results, "registries": _registries, "run": _run, "deepspeed": _deepspeed,
    "world": _world,
}  # fmt: skip
