"""`lmgym audit SCORER`: what moves a scorer though it should not, as a table, audit.json and a page."""

from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

from lmgym.apps.audit.audit_page import audit_page
from lmgym.apps.audit.audit_tables import ABOUT_TABLE, audit_table, not_looked_for, summary
from lmgym.apps.audit.biases import biases
from lmgym.apps.audit.measuring import SMALLEST, Audit, audit_scorer, style_of
from lmgym.apps.audit.recorded import Sample, about_replies, generate_replies, read_prompts
from lmgym.config import SEED, ColumnConfig, Means, Range, check_ranges
from lmgym.console import CleanConsole, say
from lmgym.errors import MOST_TEMPERATURE, MOST_TOGETHER, InputError, shown_path
from lmgym.generation.protocol import Sampling
from lmgym.runs.files import write_json
from lmgym.scoring.judge_settings import JudgeConfig
from lmgym.scoring.named_scorers import load_scorer
from lmgym.statistics import notes

FILE, PAGE = "audit.json", "audit.html"
WIDTH = 80  # columns of the table


@dataclass(frozen=True)
class AuditConfig:
    """Settings of an audit."""

    prompts: Annotated[str, Means("rows")] = ""
    """file, folder or hub id with prompts, or with replies to audit on; none: the 40 held-out questions of
    examples/data"""
    policy: str = ""
    """model whose own replies are audited (docs/engines.md); none: those of --prompts"""
    max_prompts: Annotated[int, Range(1, 1_000_000)] = 200
    """the first ones are used"""
    replies: Annotated[int, Range(2, 256)] = 4
    """of the policy to each prompt: their scores give the unit of effects"""
    edited: Annotated[int, Range(1, 256)] = 2
    """replies of each prompt that are edited, the first ones"""
    words: tuple[str, ...] = ("certainly", "important")
    """words to look for"""
    rewriter: str = ""
    """model that makes replies longer and shorter, each twice; none: no such row"""
    base: str = ""
    """model that the scorer was made from: its replies are scored beside the others; none: no such line"""
    smallest_effect: Annotated[float, Range(0.01, 100)] = SMALLEST
    """effect that matters, in spreads: the table says how many prompts are needed to find it"""
    max_new_tokens: Annotated[int, Range(1, MOST_TOGETHER)] = 96
    """of a reply; a rewrite may have three times as many"""
    temperature: Annotated[float, Range(0, MOST_TEMPERATURE, above=True)] = 1.0
    """of the policy"""
    seed: Annotated[int, SEED] = 0
    """of the policy's replies"""
    output: str = "outputs/audit"
    """folder for audit.json and audit.html"""
    asking: JudgeConfig = field(default_factory=JudgeConfig)
    columns: ColumnConfig = field(default_factory=ColumnConfig)

    def __post_init__(self) -> None:
        check_ranges(self)
        if bad := [word for word in self.words if not word.strip() or len(word) > 80]:
            raise InputError(f"words has {bad[0][:80]!r}; needed: words of 1 to 80 characters")


def run_audit(scorer: str, config: AuditConfig) -> Audit:
    """Audits the scorer of a name, prints the table, and writes audit.json and audit.html."""
    folder = Path(config.output)
    if folder.exists() and not folder.is_dir():
        raise InputError(f"--output {shown_path(config.output)} is a file; needed: a folder")
    loaded = load_scorer(scorer, asking=config.asking)
    samples = _samples(config)
    wanted = biases(config.words)
    if config.rewriter:
        from lmgym.apps.audit.rewriting import length_by_rewriting
        from lmgym.generation.model_specs import load_generator

        sampling = Sampling(max_new_tokens=3 * config.max_new_tokens, temperature=0)
        rewriter = load_generator(config.rewriter, config.asking.concurrency)
        wanted.insert(0, length_by_rewriting(rewriter, samples, config.edited, sampling))
    total = len(samples)
    audit = audit_scorer(
        loaded,
        samples,
        wanted,
        config.edited,
        config.smallest_effect,
        lambda n: say(f"{n:,} of {total:,} prompts", error=True),
        steadiness=True,
    )
    if config.base:
        audit = replace(
            audit, own_style=style_of(loaded, samples, _replies_of(config.base, config, samples), audit.spread)
        )
    show_audit(scorer, audit, config)
    save_audit(scorer, audit, config)
    say(f"{folder / FILE}: this table; {folder / PAGE}: the same with examples")
    return audit


def save_audit(scorer: str, audit: Audit, config: AuditConfig) -> None:
    """Writes audit.json and audit.html to the config's output folder."""
    folder = Path(config.output)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / FILE, results(scorer, audit, config))
    below = not_looked_for(audit, _given(config))
    about = about_replies(config.policy, config.prompts)
    page = audit_page(scorer, audit, about, [f"{below[0].upper()}{below[1:]}."])
    (folder / PAGE).write_text(page, encoding="utf-8")


def _samples(config: AuditConfig) -> list[Sample]:
    """The prompts with the replies to audit on."""
    samples = read_prompts(config.prompts, config.columns, config.max_prompts)
    return _replies_of(config.policy, config, samples) if config.policy else samples


def _replies_of(model: str, config: AuditConfig, samples: list[Sample]) -> list[Sample]:
    """The prompts with replies of a model in place of theirs."""
    from lmgym.generation.model_specs import load_generator

    sampling = Sampling(config.max_new_tokens, config.temperature, seed=config.seed)
    say(f"{config.replies} replies of {model} to each of {len(samples):,} prompts", error=True)
    policy = load_generator(model, config.asking.concurrency)
    samples, ends = generate_replies(policy, samples, config.replies, sampling)
    if ends["length"]:
        say(f"{ends['length']:,} of {ends.total():,} replies were cut at max_new_tokens={config.max_new_tokens}")
    return samples


def results(scorer: str, audit: Audit, config: AuditConfig) -> dict[str, Any]:
    """The content of audit.json."""
    return {
        "scorer": scorer,
        "replies_of": about_replies(config.policy, config.prompts),
        "prompts": audit.prompts,
        "replies": audit.replies,
        "spread": audit.spread,
        "smallest_effect": config.smallest_effect,
        "longer_replies": asdict(audit.longer),
        "own_style": asdict(audit.own_style),
        "steadiness": asdict(audit.steadiness),
        "not_looked_for": not_looked_for(audit, _given(config)).partition(": ")[2].split("; "),
        "biases": [
            effect.row | {"left_out": audit.left_out.get(effect.bias, 0), "prompts_needed": needed}
            for effect, needed in zip(audit.effects, audit.needed, strict=True)
        ],
    }


def show_audit(name: str, audit: Audit, config: AuditConfig) -> None:
    """Prints the table of biases with what it rests on, and what it says nothing of."""
    say(f"{name}: a spread of {audit.spread:.4g} within prompts, over {audit.replies:,} replies to {audit.prompts:,}")
    CleanConsole(width=WIDTH).print(audit_table(audit))
    say(ABOUT_TABLE)
    for line in summary(audit, config.smallest_effect):
        say(line)
    say(not_looked_for(audit, _given(config)))
    for note in notes((effect.effect for effect in audit.effects if not effect.wordings), "prompt"):
        say(note)


def _given(config: AuditConfig) -> list[str]:
    return [name for name in ("base", "rewriter") if getattr(config, name)]
