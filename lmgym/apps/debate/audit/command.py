"""`lmgym debate audit JUDGE`: what moves a judge though it says nothing about the answer."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal

from lmgym.apps.audit.verdicts import ABOUT_COLUMNS, effects_table
from lmgym.apps.debate.audit.judges import load_judge
from lmgym.apps.debate.audit.measuring import SMALLEST, Audit, audit_judge, rounds_to_audit
from lmgym.apps.debate.data import read_questions
from lmgym.apps.debate.formats import DEBATERS
from lmgym.apps.debate.synthetic import DIFFICULTY, QUESTIONS, synthetic_questions
from lmgym.apps.debate.tournament.files import read_transcripts
from lmgym.apps.debate.transcript import Transcript
from lmgym.config import SEED, Range, check_ranges
from lmgym.console import CleanConsole, say
from lmgym.errors import MOST_TOGETHER, InputError
from lmgym.runs.files import write_json
from lmgym.runs.flags import override
from lmgym.statistics import notes

USAGE = "lmgym debate audit JUDGE [FLAGS]"
FILE = "audit.json"


@dataclass(frozen=True)
class AuditConfig:
    """Settings of an audit."""

    questions: Annotated[int, QUESTIONS] = 40
    """rounds to audit, one for each question"""
    difficulty: Annotated[float, DIFFICULTY] = 0.5
    """of the made-up questions: share of facts about the same person or thing"""
    dataset: str = ""
    """file of questions of your own; none: made-up ones"""
    transcripts: str = ""
    """folder or file of debates: their speeches are audited, in place of scripted ones"""
    speeches: Annotated[int, Range(1, 16)] = 1
    """of each side in a scripted round"""
    letters: str = "el"
    """letters of letter judges to look for"""
    both_orders: bool = False
    """judge each round with both namings, as tournaments do: a preference for a name cancels"""
    on_long: Literal["refuse", "cut"] = "refuse"
    """of a causal model's texts that are longer than its context: cut leaves out their beginning"""
    smallest_effect: Annotated[float, Range(0.001, 0.5)] = SMALLEST
    """change of P(win) that matters: the table says how many questions are needed to find it"""
    concurrency: Annotated[int, Range(1, MOST_TOGETHER)] = 8
    """most requests to a served judge at a time"""
    seed: Annotated[int, SEED] = 0
    """of the made-up questions"""
    output: str = "outputs/audit"
    """folder for audit.json"""

    def __post_init__(self) -> None:
        check_ranges(self)
        if not self.letters.isalpha() or len(self.letters) > 26:
            raise InputError(f"letters={self.letters[:40]!r}; needed: 1 to 26 letters, such as el")


def run_audit(words: Sequence[str]) -> None:
    """Audits the judge that the first word names, prints the table and writes it as audit.json."""
    helping = {"-h", "--help"} & set(words)
    if not words or (words[0].startswith("-") and not helping):
        raise InputError(f"{USAGE}: no JUDGE; needed: a model (docs/engines.md), scorer:NAME, letter:X or FILE.py")
    config = override(AuditConfig(), words if helping else words[1:])
    judge, prompts = load_judge(words[0], config.both_orders, config.on_long, config.concurrency)
    rounds = (
        recorded_rounds(config) if config.transcripts else rounds_to_audit(_questions(config), prompts, config.speeches)
    )
    audit = audit_judge(
        judge, rounds, config.letters, lambda n: say(f"{n} of {len(rounds)} rounds", error=True), config.smallest_effect
    )
    show_audit(words[0], audit)
    path = Path(config.output) / FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [effect.row for effect in audit.effects]
    write_json(path, {"judge": words[0], "right": asdict(audit.accuracy), "biases": rows})
    say(f"{path}: this table")


def recorded_rounds(config: AuditConfig) -> list[Transcript]:
    """The recorded debates of two debaters, before their verdicts, at most as many as there are questions to audit."""
    found = [t for t in read_transcripts(config.transcripts) if t.format.debaters == DEBATERS]
    return [t.up_to(len(t.format.slots) - 1) for t in found[: config.questions]]


def _questions(config: AuditConfig):
    if config.dataset:
        return read_questions(config.dataset)[: config.questions]
    return synthetic_questions(config.questions, difficulty=config.difficulty, seed=config.seed)


def show_audit(name: str, audit: Audit) -> None:
    """Prints the judge's accuracy and the table of biases."""
    say(f"{name}: P(right answer) - .5 is {audit.accuracy:+.3f} in the rounds as they were")
    title = "effects on P(win) of the side that is favoured, with 95% intervals"
    CleanConsole(width=130).print(effects_table(title, audit.effects))
    say(ABOUT_COLUMNS)
    for note in notes([audit.accuracy, *(row.effect for row in audit.effects)], "question"):
        say(note)
