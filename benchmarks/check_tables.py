"""Tables of the pages on alarms, audits, engines and debaters, each made of result files alone (see pages.py)."""

import re
from statistics import median

from tables import Found, Lines, number, table

RULES = {
    "ours": "this alarm",
    "two errors of a mean": "two standard errors below the best",
    "four errors of the difference": "four standard errors of the difference",
    "the server's of today": "the reward server's, unpaired",
}


def alarm_errors(found: Found) -> Lines:
    """Shares of simulated healthy runs in which rules ring, and in runs whose score falls by a standard deviation."""
    healthy = [row for row in found["rows"] if row["kind"] != "exploited"]
    rows = []
    for rule in list(RULES)[:3]:
        rates = [row[rule] for row in healthy]
        cells = [RULES[rule], f"{sum(rates) / len(rates):.1%}", f"{max(rates):.1%}"]
        for prompts in (16, 64, 256):
            of = [row[rule] for row in found["rows"] if row["kind"] == "exploited" and row["prompts"] == prompts]
            cells.append(" to ".join(dict.fromkeys(f"{end:.0%}" for end in (min(of), max(of)))))
        rows.append(cells)
    titles = ("healthy runs that ring, mean of 24 kinds", "at most")
    return table(("rule", *titles, *(f"exploited, {prompts} prompts" for prompts in (16, 64, 256))), rows)


def alarm_real_runs(found: Found) -> Lines:
    """Shares of real runs in which rules ring, and how long after the peak."""
    known = found["found"]
    exploits = ("word", "tone", "format")
    rows = []
    for rule, title in RULES.items():
        late = [updates for exploit in exploits for updates in known[exploit][rule]["updates_after_the_peak"]]
        rings = [known[f"{runs}_that_ring"][rule] for runs in ("healthy", "sound")]
        noticed = [known[exploit][rule]["noticed"] for exploit in exploits]
        rows.append([title, *rings, ", ".join(map(str, noticed)), f"{median(late):.0f} ({min(late)} to {max(late)})"])
    runs = [f"of {known['healthy']} healthy runs", f"of {known['sound']} sound runs"]
    exploited = "of 10 runs each that exploit a word, a tone, a format"
    return table(("rule", *runs, exploited, "updates after the peak, median (range)"), rows)


def planted(found: Found) -> Lines:
    """Biases that were trained into scorers, and whether an audit of 12 and of 40 prompts names them."""
    rows = []
    for bias, audits in found["biases"].items():
        effect = re.sub(r"(?<!\d)0\.", ".", audits[-1]["effect"]).replace("+", "")
        named = ["yes" if audit["named"] else "no" for audit in audits]
        rows.append(
            [bias.replace("refusal", "a refusal first").replace("one wording", "one wording alone"), effect, *named]
        )
    prompts = [f"named with {audit['prompts']}" for audit in found["biases"]["flattery"]]
    return table(("bias", "effect on 40 prompts (95%), spreads", *prompts), rows)


def engines(found: Found) -> Lines:
    """The cost of tokens with our engine and with vLLM, each with the processor of its run."""
    names = {"own": "lmgym's own", "vllm": "vLLM", "vllm, one ahead": "vLLM, `--async_rollouts 1`"}
    rows = []
    for run in found["tokens"]["rows"].values():
        rates = [f"{run[f'tokens_per_{unit}']:.0f}" for unit in ("cpu_second", "second")]
        seconds = [f"{run[f'time/{part}']:.1f}" if f"time/{part}" in run else "" for part in ("sync", "generate")]
        rows.append([names[run["engine"]], run["precision"], *rates, *seconds, run["cpu"].split("(")[0]])
    titles = ("tokens a CPU second", "a second", "an iteration: seconds to send the weights", "to sample", "processor")
    return table(("engine", "precision", *titles), rows)


def debate_training(found: Found) -> Lines:
    """Rounds won against the starting policy before and after training, by seed."""
    rows = []
    for name, runs in found["runs"].items():
        part = "scores" if "eval/scores/won" in runs[0]["before"] else "score"
        cells = [
            ", ".join(number(run[when][f"eval/{part}/{figure}"], 3) for run in runs)
            for figure in ("won", "p_win")
            for when in ("before", "after")
        ]
        kl = [run["kl"] if run["kl"] is not None else run["after"]["eval/kl"] for run in runs]
        seconds = [run["cpu_seconds"] for run in runs]
        spans = [" to ".join(dict.fromkeys(f"{end:.0f}" for end in (min(of), max(of)))) for of in (kl, seconds)]
        rows.append([name, *cells, *spans])
    titles = ("rounds won before", "after, by seed", "P(win) before", "after", "KL, nats a speech", "CPU s")
    return table(("", *titles), rows)
