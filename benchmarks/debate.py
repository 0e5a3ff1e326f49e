"""Debate, consultancy and the judge alone on made-up questions, and what best-of-N against a small judge does.

    .venv/bin/python benchmarks/debate.py        # adds the run to benchmarks/results/debate.json; --seed: of the judge

Judge and debaters are those of debate_judge.py. Best-of-N says the sample that this judge likes best, against one
sample of the opponent. Each question is played with both answers on either side; intervals are over questions.
"""

import argparse
import datetime
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from itertools import combinations_with_replacement, product
from pathlib import Path

import numpy as np
import torch
from shared import ROOT, describe_machine, write_result

sys.path.insert(0, str(ROOT))  # beside this file lies ppo.py, another benchmark

import debate_judge as setting

from lmgym.apps.debate.audit.measuring import audit_judge, rounds_to_audit
from lmgym.apps.debate.formats import FIRST, SECOND, consultancy, debate, judge_alone, other
from lmgym.apps.debate.players.best_of_n import BestOfNPlayer
from lmgym.apps.debate.players.protocol import Judge
from lmgym.apps.debate.players.scripted import ScriptedPlayer
from lmgym.apps.debate.tournament.results import figure
from lmgym.apps.debate.transcript import Transcript
from lmgym.statistics import mean

QUESTIONS, SAMPLES = 100, (1, 4, 16)


def right(round: Transcript) -> float:
    """1, 0, or a half for a tie."""
    assert round.verdict is not None
    return 0.5 if round.verdict.winner is None else float(round.verdict.winner == round.correct)


def said(round: Transcript, right_side: bool) -> dict[str, float] | None:
    """A side's speech: 1 for a valid quote, an invalid one, the wanted fact as a plain claim."""
    side = next((s for s in round.speeches if s.kind == "speech" and (s.speaker == round.correct) == right_side), None)
    if side is None:
        return None
    valid = [quote.valid for quote in side.quotes]
    claim = not valid and setting.wanted_fact(round, side.speaker) in side.text
    return {"quote": float(True in valid), "invented": float(False in valid), "claim": float(claim)}


def measure(rounds: Sequence[Transcript]) -> dict[str, object]:
    """Right verdicts with their interval over questions, and what was said for the right and the wrong answer."""
    found: dict[str, object] = {"accuracy": figure(rounds, right)}
    for name, of_right in (("right_side", True), ("wrong_side", False)):
        if own := [speech for round in rounds if (speech := said(round, of_right))]:
            found[name] = {key: float(np.mean([speech[key] for speech in own])) for key in own[0]}
    return found


def by_question(rounds: Sequence[Transcript]) -> dict[str, float]:
    """The share of right verdicts about each question."""
    ids = sorted({round.question.id for round in rounds})
    return {name: float(np.mean([right(round) for round in rounds if round.question.id == name])) for name in ids}


def difference(first: Sequence[Transcript], second: Sequence[Transcript]) -> dict[str, float | None]:
    """The first rounds' share of right verdicts less the second's, paired over questions."""
    ours, theirs = by_question(first), by_question(second)
    found = mean([ours[name] - theirs[name] for name in ours], bounds=(-1, 1))
    return {"value": found.value, "low": found.low, "high": found.high}


def compare(judge: Judge, questions: int, samples: Sequence[int]) -> tuple[dict[str, object], list[Transcript]]:
    """All conditions, and the rounds of the strongest debaters against each other."""
    one, asked, names = ScriptedPlayer(setting.argue), setting.held_out(questions), [str(n) for n in samples]
    players = {str(n): one if n == 1 else BestOfNPlayer(one, judge, n) for n in samples}
    alone = setting.play(judge_alone(), asked, judge, {})
    advised = setting.play(consultancy(1), asked, judge, players)
    debated = setting.play(
        debate(1), asked, judge, players, [f"{n}:{m}" for n, m in combinations_with_replacement(names, 2)]
    )
    found: dict[str, object] = {"judge alone": measure(alone)}
    own: list[Transcript] = []
    for n in names:
        consulted = [t for t in advised if t.players[FIRST] == n]
        own = [t for t in debated if t.players[FIRST] == t.players[SECOND] == n]
        found |= {
            f"consultancy, {n}": measure(consulted),
            f"consultancy, honest {n}": measure([t for t in consulted if t.correct == FIRST]),
            f"consultancy, dishonest {n}": measure([t for t in consulted if t.correct != FIRST]),
            f"debate less consultancy, {n}": difference(own, consulted),
            f"debate less judge alone, {n}": difference(own, alone),
        }
    for n, m in product(names, repeat=2):
        cell = [t for t in debated if (t.players[str(t.correct)], t.players[other(str(t.correct))]) == (n, m)]
        found[f"debate, honest {n}, dishonest {m}"] = measure(cell)
    return found, own


def run(folder: Path, questions: int, rows: int, steps: int, samples: Sequence[int], seed: int) -> dict[str, object]:
    """The whole benchmark with a judge of that size, which is made in the folder on first use."""
    began = time.process_time()
    judge = setting.load_judge(folder, rows, steps, seed)
    made = time.process_time() - began
    conditions, strongest = compare(judge, questions, samples)
    audits = {}
    scripted, best = rounds_to_audit(setting.held_out(questions), setting.PROMPTS), [t.up_to(1) for t in strongest]
    for name, rounds in (("scripted", scripted), (f"best of {samples[-1]}", best)):
        audit = audit_judge(judge, rounds)
        audits[name] = [
            {"bias": "P(right answer)", "effect": asdict(audit.accuracy)},
            *(effect.row for effect in audit.effects),
        ]
    seconds = {"judge": made, "all": time.process_time() - began}
    return {"seed": seed, "questions": questions, "cpu_seconds": seconds, "conditions": conditions, "audits": audits}


def main() -> None:
    """Runs one judge, prints and writes what was measured, in the place of an earlier run of that seed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks/results/debate.json")
    parser.add_argument("--seed", type=int, default=0, help="of the judge")
    parser.add_argument("--questions", type=int, default=QUESTIONS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    folder, sizes = setting.judge_folder(arguments.seed), (arguments.questions, setting.ROWS, setting.STEPS)
    one = run(folder, *sizes, SAMPLES, arguments.seed)
    for name, value in one["conditions"].items():
        print(name, value, flush=True)
    found = json.loads(arguments.output.read_text()) if arguments.output.exists() else {"runs": []}
    runs = [*(r for r in found["runs"] if r["seed"] != one["seed"]), one]
    found = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"), "machine": describe_machine(),
        "facts": setting.FACTS, "difficulty": setting.DIFFICULTY, "rows": setting.ROWS,
        "steps": setting.STEPS, "pieces": [setting.PIECES[True], setting.PIECES[False]],
        "runs": sorted(runs, key=lambda r: r["seed"]),
    }  # fmt: skip
    write_result(arguments.output, found, "rows", "method", "sampler", "intervals")


if __name__ == "__main__":
    main()
