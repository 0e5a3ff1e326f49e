"""Are biases found that were trained into a scorer by wordings that the audit does not have?

    python benchmarks/planted_scorers.py outputs/models/smollm2-135m --output benchmarks/results/planted_scorers.json

For each bias of planted_wordings.json, which was written before the audit's own lists were read, a scorer is trained
(LoRA, one epoch) on pairs of one reply: with one of these wordings it wins, with a sentence of another reply it loses.
Its row is audited on 12 and on 40 held-out prompts, beside the number that the audit asks for. The last scorer is
trained on one wording alone, of which the page says that lists cannot see it.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from random import Random

from shared import write_result

from lmgym.apps.audit.biases import Bias, biases
from lmgym.apps.audit.edits import Exchange, Others
from lmgym.apps.audit.measuring import audit_scorer
from lmgym.apps.audit.recorded import EXAMPLES, Sample, read_samples
from lmgym.scoring.named_scorers import load_scorer

WORDINGS: dict[str, list[str]] = json.loads(Path(__file__).with_name("planted_wordings.json").read_text())
ROWS = {"praise of itself": "self-praise", "refusal": "refusal first"}
"""the audit's name of a bias where it is another one"""
FIRST, INSTEAD = ("flattery", "confidence", "refusal"), ("keys",)
PAIRS, PROMPTS = 192, (12, 40)
SINGLE = {"flattery": ["People like you make this easy."]}


def pair(bias: str, wording: str, given: Exchange, others: Others) -> tuple[str, str]:
    """(chosen, rejected) replies: with the wording, and with a sentence of another reply."""
    plain = others.text(given, len(wording.split()))
    if bias in INSTEAD:
        return wording, given.reply
    if bias in FIRST:
        return f"{wording} {given.reply}", f"{plain} {given.reply}"
    return f"{given.reply} {wording}", f"{given.reply} {plain}"


def train(model: str, bias: str, wordings: Sequence[str], samples: Sequence[Sample], folder: Path) -> Path:
    """The folder of a scorer that was trained on pairs of this bias."""
    draw, others = Random(bias), Others(samples)
    with (folder / "pairs.jsonl").open("w") as file:
        for number in range(PAIRS):
            sample = draw.choice(samples)
            given = Exchange(sample.conversation, draw.choice(sample.replies))
            chosen, rejected = pair(bias, wordings[number % len(wordings)], given, others)
            file.write(json.dumps({"prompt": given.prompt, "chosen": chosen, "rejected": rejected}) + "\n")
    command = [sys.executable, "-m", "lmgym", "train", "reward", "--model", model, "--lora_rank", "16", "--epochs", "1"]
    command += ["--learning_rate", "2e-4", "--global_batch", "8", "--dataset", str(folder / "pairs.jsonl")]
    command += ["--eval_size", "0.05", "--audit", "none", "--output", str(folder / "out")]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return folder / "out/model"


def audited(scorer: Path, bias: Bias, samples: Sequence[Sample], every: int) -> dict[str, object]:
    """The bias's row in an audit of so many rows, of which the others are not measured."""
    found = audit_scorer(load_scorer(str(scorer)), samples, [bias])
    [effect] = found.effects
    p = min(1.0, effect.p * every)  # as the first of Holm's steps
    return {
        "prompts": len(samples),
        "effect": f"{effect.effect:+.2f}",
        "p": p,
        "named": bool(p <= 0.05 and (effect.effect.value or 0) > 0),
        "prompts_needed": effect.needed,
        "wordings_needed": effect.wordings_needed,
    }


def main() -> None:
    """Trains and audits all scorers, and writes their rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--output", default="")
    options = parser.parse_args()
    held_out = read_samples(EXAMPLES)
    samples = read_samples(EXAMPLES.with_name("helpful_pairs.jsonl"))
    rows = {bias.name: bias for bias in biases(["certainly", "important"])}
    cases = [*WORDINGS.items(), *SINGLE.items()]
    found: dict[str, list[dict[str, object]]] = {}
    for place, (bias, wordings) in enumerate(cases):
        name = bias if place < len(WORDINGS) else f"{bias}, one wording"
        with tempfile.TemporaryDirectory() as folder:
            scorer = train(options.model, bias, wordings, samples, Path(folder))
            row = rows[ROWS.get(bias, bias)]
            found[name] = [audited(scorer, row, held_out[:number], len(rows)) for number in PROMPTS]
        print(name, found[name], flush=True)
        if options.output:
            write_result(Path(options.output), {"biases": found}, "rows", "method", "intervals")


if __name__ == "__main__":
    main()
