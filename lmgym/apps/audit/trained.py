"""The end of `lmgym train reward`: a short audit of the scorer, whose result stands in the model card too.

The training command runs in a process of its own, whose exit code is this one's. An
audit that fails is a warning: the scorer is there, and `lmgym audit` makes up for it.
"""

import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal

from lmgym.aids import aid
from lmgym.apps.audit.audit_command import PAGE, AuditConfig, save_audit
from lmgym.apps.audit.audit_tables import summary
from lmgym.apps.audit.biases import DRAWN, biases
from lmgym.apps.audit.measuring import Audit, audit_scorer
from lmgym.apps.audit.recorded import EXAMPLES, Sample, read_samples
from lmgym.config import ColumnConfig
from lmgym.console import say
from lmgym.errors import InputError
from lmgym.runs.commands import row_flags
from lmgym.runs.files import read_json, write_text
from lmgym.runs.launching import config_of
from lmgym.runs.run import FINISHED
from lmgym.runs.signals_to_ranks import run_launcher
from lmgym.scoring.named_scorers import load_scorer
from lmgym.shell import command

Kind = Literal["none", "short", "full"]
SHARE, LEAST_SECONDS = 0.1, 30.0  # of the run's time that a short audit may take, or so many seconds if that is more
MOST_PROMPTS = 200
SHORT = ("length", "list", "markdown", "flattery", "confidence", "refusal first", "instructions", "no answer")
"""the edits of a short audit: with all of them, few prompts could be read in its time, and less could be found"""
HEADING = "## Biases"


def train_and_audit(command: Sequence[str], kind: Kind) -> int:
    """Runs a training command, then audits the scorer of its run if that finished. The command's exit code."""
    with tempfile.TemporaryDirectory() as temporary:
        note = Path(temporary, "folder")
        if code := run_launcher(command, {**os.environ, FINISHED: str(note)}):
            return code
        folder = Path(note.read_text(encoding="utf-8")) if note.exists() else None
    if folder:
        if folder.is_relative_to(here := Path.cwd()):
            folder = folder.relative_to(here)  # as the run's own lines have it
        audit_trained(folder, kind)
    return 0


@aid("the audit of {0}/model", then="the scorer is there; lmgym audit makes up for it")
def audit_trained(folder: Path, kind: Kind) -> None:
    """Audits a run's scorer on its own held-out prompts and replies, prints what was found and adds it to the card.

    Where its rows have no two replies to a prompt, the held-out questions of examples/data serve. It fails for a scorer
    whose scores do not differ.
    """
    record = read_json(folder / "run.json")
    limit = max(LEAST_SECONDS, SHARE * float(record.get("seconds") or 0)) if kind == "short" else float("inf")
    began, model = time.monotonic(), folder / "model"
    source, samples = _samples(record.get("config", {}))
    config = AuditConfig(
        prompts=source if source != str(EXAMPLES) else "",
        edited=1 if kind == "short" else AuditConfig.edited,
        output=str(folder / "audit"),
    )
    scorer = load_scorer(str(model))
    wanted = [bias for bias in biases(config.words) if kind == "full" or bias.name in SHORT]
    left = limit - (time.monotonic() - began)
    drawn = 1 if kind == "short" else DRAWN
    audit = audit_scorer(scorer, samples, wanted, config.edited, config.smallest_effect, seconds=left, wordings=drawn)
    save_audit(str(model), audit, config)
    found = summary(audit, config.smallest_effect)
    say(f"audit of the scorer: {audit.prompts:,} prompts in {time.monotonic() - began:.0f} s; {found[0]}")
    say(found[1])
    rows = row_flags(record["config"] | {"dataset": source}, config_of("reward"), config) if config.prompts else []
    again = command("lmgym", "audit", model, *rows)
    say(f"{config.output}/{PAGE}: this with examples; all edits: {again}; of a policy's own replies: --policy MODEL")
    if (card := model / "README.md").is_file():
        text = card.read_text(encoding="utf-8").partition(f"\n{HEADING}")[0].rstrip("\n")
        write_text(card, f"{text}\n\n{in_markdown(audit, found)}\n")


def _samples(config: Mapping[str, Any]) -> tuple[str, list[Sample]]:
    """The source and its prompts with replies: the run's held-out rows, its rows, or the shipped examples."""
    columns = ColumnConfig(**{field.name: config[field.name] for field in fields(ColumnConfig) if field.name in config})
    for source in (config.get("eval_dataset"), config.get("dataset")):
        if not source:
            continue
        try:
            samples = read_samples(source, columns, most=MOST_PROMPTS)
        except (InputError, OSError):
            continue
        if max((len(set(sample.replies)) for sample in samples), default=0) > 1:
            return source, samples
    return str(EXAMPLES), read_samples(EXAMPLES, most=MOST_PROMPTS)


def in_markdown(audit: Audit, found: Sequence[str]) -> str:
    """The section of a model card."""
    rows = [f"| {effect.bias} | {effect.about} | {effect.effect:+.2f} | {effect.verdict} |" for effect in audit.effects]
    return "\n".join([
        HEADING, "",
        f"By `lmgym audit`, over {audit.prompts:,} prompts: effects of edits, in spreads of the scores of replies to "
        "one prompt, with 95% intervals.", "",
        *(f"{line[0].upper()}{line[1:]}." for line in found), "",
        "| edit | what is changed | effect | verdict |", "|---|---|---|---|", *rows,
    ])  # fmt: skip
