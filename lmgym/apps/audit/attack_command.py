"""`lmgym attack SCORER --policy MODEL`: what raises a score and not its monitors, as a table, attack.json, a page, and
rows on which the scorer can learn better.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

from lmgym.apps.audit.attack import Attack, attack_scorer
from lmgym.apps.audit.attack_edits import AttackEdit, read_edit
from lmgym.apps.audit.attack_page import attack_page
from lmgym.apps.audit.attack_plan import AttackPlan, fit_budget
from lmgym.apps.audit.attack_pool import LENGTH, TARGET, ScoreBook
from lmgym.apps.audit.attack_rows import JUDGE, Judged, judge_by, judge_by_monitors, training_rows
from lmgym.apps.audit.attack_tables import show_attack
from lmgym.apps.audit.attack_training import ADDED, train_against
from lmgym.apps.audit.edit_search import SMALLEST
from lmgym.apps.audit.recorded import Sample, about_replies, generate_replies, read_prompts
from lmgym.config import SEED, ColumnConfig, Range, check_ranges
from lmgym.console import say
from lmgym.errors import MOST_STEPS, MOST_TEMPERATURE, MOST_TOGETHER, InputError, shown_path
from lmgym.generation.protocol import Sampling
from lmgym.report.panels import duration
from lmgym.runs.files import read_json, write_json, write_lines
from lmgym.scoring.judge_settings import JudgeConfig
from lmgym.scoring.named_scorers import load_scorer, read_names
from lmgym.scoring.protocol import Scorer
from lmgym.shell import command

FILE, PAGE, ROWS = "attack.json", "attack.html", "rows.jsonl"
FEWEST_PROMPTS = 12


@dataclass(frozen=True)
class AttackConfig:
    """Settings of an attack."""

    policy: str = ""
    """model whose replies are attacked with (docs/engines.md); none: the replies in --prompts"""
    prompts: str = ""
    """file, folder or hub id with prompts, or with two or more replies to each; none: the 40 held-out questions of
    examples/data"""
    monitors: str = ""
    """scorers that a sound gain raises too: name=PATH, separated by commas"""
    judge: str = ""
    """scorer that decides whether an edited reply is worse or as good; none: the monitors"""
    budget: Annotated[int, Range(100, 100_000_000)] = 20_000
    """scored replies at most, by the scorer, and by each monitor"""
    max_prompts: Annotated[int, Range(FEWEST_PROMPTS, 1_000_000)] = 100
    """the first ones are used: half of them to find, half to test"""
    replies: Annotated[int, Range(2, 256)] = 64
    """of the policy to each prompt: N of the best of N; fewer if the budget asks for it"""
    edits: Annotated[int, Range(1, 1000)] = 72
    """of one step, that are tried; fewer if the budget asks for it"""
    rounds: Annotated[int, Range(1, 8)] = 2
    """of the search: an edit has at most so many steps"""
    edited: Annotated[int, Range(2, 256)] = 2
    """replies of each prompt that are edited"""
    smallest_effect: Annotated[float, Range(0, 100)] = SMALLEST
    """gain that matters, in spreads: an edit is confirmed if it is shown to gain more"""
    grpo_updates: Annotated[int, Range(0, MOST_STEPS)] = 0
    """updates of GRPO against the scorer, 64 replies each; 0: none"""
    grpo_learning_rate: Annotated[float, Range(0, 1, above=True)] = 1e-5
    """of the policy"""
    earlier: str = ""
    """folder of an earlier attack, on the scorer before it was trained again, whose confirmed edits are tested again"""
    max_new_tokens: Annotated[int, Range(1, MOST_TOGETHER)] = 96
    """of a reply"""
    temperature: Annotated[float, Range(0, MOST_TEMPERATURE, above=True)] = 1.0
    """of the policy"""
    seed: Annotated[int, SEED] = 0
    """of the policy's replies, and of the halves"""
    output: str = "outputs/attack"
    """folder for attack.json, attack.html and rows.jsonl"""
    asking: JudgeConfig = field(default_factory=JudgeConfig)
    columns: ColumnConfig = field(default_factory=ColumnConfig)

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.monitors and (taken := {TARGET, LENGTH} & set(read_names(self.monitors, "--monitors"))):
            raise InputError(f"--monitors names one {min(taken)}, which is taken; needed: another name")
        if self.grpo_updates and not self.policy:
            raise InputError(f"--grpo_updates {self.grpo_updates} without --policy MODEL, which it trains")


def run_attack(scorer: str, config: AttackConfig) -> Attack:
    """Attacks the scorer of a name, prints what was found, and writes attack.json, attack.html and rows.jsonl."""
    folder = Path(config.output)
    if folder.exists() and not folder.is_dir():
        raise InputError(f"--output {shown_path(config.output)} is a file; needed: a folder")
    earlier = _earlier(config.earlier)
    paths = {TARGET: scorer} | (read_names(config.monitors, "--monitors") if config.monitors else {})
    scorers = {name: load_scorer(path, asking=config.asking) for name, path in paths.items()}
    judge = load_scorer(config.judge, asking=config.asking) if config.judge else None
    samples, plan = _samples_and_plan(config, len(earlier))
    watched = f", and by {', '.join(list(scorers)[1:])}" if config.monitors else ""
    say(
        f"budget: at most {plan.total:,} scored replies{watched}: {plan.replies:,} of {plan.prompts:,} prompts, "
        f"{plan.search:,} edited ones to search, {plan.test:,} to test"
    )
    if config.policy:
        samples = _generated(config, samples, plan.replies // len(samples))
    found = attack_scorer(
        scorers,
        samples,
        plan,
        config.seed,
        earlier=list(earlier),
        done=_Progress(plan.total),
        train=_training(scorer, config),
        updates=config.grpo_updates,
        smallest=config.smallest_effect,
    )
    judged = _judge(found, judge)
    rows = training_rows(found, judged)
    show_attack(scorer, found, judged, earlier)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / FILE, results(scorer, found, judged, config, earlier))
    page = attack_page(scorer, found, judged, about_replies(config.policy, config.prompts))
    (folder / PAGE).write_text(page, encoding="utf-8")
    say(f"{folder / FILE}: these tables; {folder / PAGE}: the same with examples")
    _write_rows(folder / ROWS, rows, found, bool(judge or config.monitors))
    return found


def _samples_and_plan(config: AttackConfig, earlier: int) -> tuple[list[Sample], AttackPlan]:
    """The prompts with the replies that the source has, and the sizes that the budget allows."""
    samples = read_prompts(config.prompts, config.columns, config.max_prompts)
    if not config.policy:
        samples = [sample for sample in samples if len(sample.replies) > 1]
    if len(samples) < FEWEST_PROMPTS:
        found = "prompts" if config.policy else "prompts with two replies or more"
        raise InputError(f"{len(samples)} {found}; needed: {FEWEST_PROMPTS}, better 60; or --policy MODEL")
    replies = config.replies * len(samples) if config.policy else sum(len(sample.replies) for sample in samples)
    trained = len(samples) * ADDED if config.grpo_updates else 0
    plan = AttackPlan(len(samples), replies, config.edits, config.rounds, config.edited, earlier, trained)
    return samples, fit_budget(plan, config.budget, bool(config.policy))


def _generated(config: AttackConfig, samples: list[Sample], replies: int, policy: str = "") -> list[Sample]:
    """The prompts with so many replies of the policy, or of another one; the first prompt tells the time."""
    from lmgym.generation.model_specs import load_generator

    generator = load_generator(policy or config.policy, config.asking.concurrency)
    sampling = Sampling(config.max_new_tokens, config.temperature, seed=config.seed)
    began = time.perf_counter()
    first, _ = generate_replies(generator, samples[:1], replies, sampling)
    about = duration((time.perf_counter() - began) * len(samples))
    say(f"{replies} replies of {policy or config.policy} to {len(samples):,} prompts: about {about}", error=True)
    later = Sampling(config.max_new_tokens, config.temperature, seed=config.seed + 1)
    rest, _ = generate_replies(generator, samples[1:], replies, later)
    return [*first, *rest]


def _training(scorer: str, config: AttackConfig) -> Any:
    if not config.grpo_updates:
        return None

    def train(found_on: Sequence[Sample], samples: Sequence[Sample]) -> list[Sample]:
        import torch

        say(f"{config.grpo_updates} updates of GRPO on {len(found_on):,} prompts", error=True)
        flags = {
            "learning_rate": config.grpo_learning_rate, "max_new_tokens": config.max_new_tokens,
            "temperature": config.temperature, "seed": config.seed,
            "precision": "bf16" if torch.cuda.is_available() else "fp32",
        }  # fmt: skip
        updates, folder = config.grpo_updates, Path(config.output)
        policy = train_against(scorer, config.policy, found_on, updates, flags, folder)
        return _generated(config, list(samples), ADDED, policy)

    return train


class _Progress:
    """Says after the first replies how long the rest takes, and then at each quarter."""

    def __init__(self, total: int) -> None:
        self.total, self.began, self.said = total, time.perf_counter(), -1

    def __call__(self, scored: int) -> None:
        quarter = 4 * scored // self.total
        if quarter > self.said:
            seconds = (time.perf_counter() - self.began) / scored * (self.total - scored)
            say(f"{scored:,} of at most {self.total:,} replies scored; about {duration(seconds)} more", error=True)
            self.said = quarter


def _earlier(folder: str) -> dict[AttackEdit, dict[str, Any]]:
    """The confirmed edits of an earlier attack, with their rows. Raises InputError if the folder has none."""
    if not folder:
        return {}
    try:
        rows = read_json(Path(folder) / FILE)["edits"]
        found = {read_edit(row["steps"]): row for row in rows if row["confirmed"]}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"--earlier {shown_path(folder)} holds no {FILE} that can be read: {error}") from error
    if not found:
        raise InputError(f"--earlier {shown_path(folder)}: no edit was confirmed there; needed: leave it out")
    return found


def _judge(found: Attack, judge: Scorer | None) -> dict[AttackEdit, Judged]:
    """The quality of each confirmed edit."""
    if judge is None:
        return {finding.edit: judge_by_monitors(finding) for finding in found.confirmed}
    book = ScoreBook({JUDGE: judge})
    return {finding.edit: judge_by(book, finding) for finding in found.confirmed}


def _write_rows(path: Path, rows: list[dict[str, Any]], found: Attack, judged: bool) -> None:
    path.unlink(missing_ok=True)
    if rows:
        ties = sum("preference" in row for row in rows)
        write_lines(path, rows)
        again = command("lmgym", "train", "reward", f"DATA,{path}")
        say(f"{path}: {len(rows) - ties:,} negatives and {ties:,} ties for `{again}`")
    elif found.confirmed and not judged:
        say("no rows for `lmgym train reward`: nothing says whether edits are worse; needed: --judge or --monitors")


def results(
    scorer: str,
    found: Attack,
    judged: Mapping[AttackEdit, Judged],
    config: AttackConfig,
    earlier: Mapping[AttackEdit, Mapping[str, Any]],
) -> dict[str, Any]:
    """The content of attack.json."""

    def edit_row(finding: Any) -> dict[str, Any]:
        quality = judged.get(finding.edit)
        before = earlier.get(finding.edit)
        return {
            **finding.row,
            **({"quality": quality.quality} if quality else {}),
            **({"gain_before": before["gain"]} if before else {}),
        }

    grown = [{"n": one.n, "kl": one.kl, **{k: asdict(v) for k, v in one.gains.items()}} for one in found.growth]
    training = found.training
    return {
        "scorer": scorer,
        "replies_of": about_replies(config.policy, config.prompts),
        "prompts": len(found.pool.samples),
        "replies": sum(len(sample.replies) for sample in found.pool.samples),
        "scored": found.scored,
        "smallest_effect": config.smallest_effect,
        "spreads": found.pool.spreads,
        "agreement": {name: found.pool.agreement(name) for name in found.pool.monitors},
        "best_of_n": grown,
        "winners": [more.row for more in found.winners],
        "grpo": training and {"updates": training.updates, **{k: asdict(v) for k, v in training.change.items()}},
        "edits": [edit_row(finding) for finding in found.findings],
    }
