"""Tables of the pages, each made of result files alone: `<!-- table: tables.NAME of FILE.json -->` (see pages.py)."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from lmgym.statistics import mean

Found = dict[str, Any]
Lines = list[str]


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Lines:
    """Markdown lines."""
    body = ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]
    return [
        "| " + " | ".join(columns).strip() + " |",
        "|" + "---|" * len(columns),
        *(line.replace("  ", " ") for line in body),
    ]


def number(value: float, decimals: int = 2, sign: str = "") -> str:
    """'.85', '-.02', '+.10': without the 0 before the point."""
    text = f"{value:{sign}.{decimals}f}"
    return text.replace("0.", ".", 1) if text.lstrip("+-").startswith("0.") else text


def with_interval(found: Found, decimals: int = 2, sign: str = "") -> str:
    """'.85 (.80 to .90)'."""
    value, low, high = (found[key] for key in ("value", "low", "high"))
    return f"{number(value, decimals, sign)} ({number(low, decimals)} to {number(high, decimals)})"


def demo(found: Found) -> Lines:
    """The A/B test of `make demo`."""
    names = {"policy/model": "SFT", "ppo/model": "PPO"}
    rows = []
    for place, arm in enumerate(found["policies"]):
        folder, _, n = arm["policy"].partition("@")
        cells = [names[folder] + (f", best of {n.rsplit(':', 1)[1]}" if n else "")]
        for figure in ("conversation length", "retention day 1", "retention day 7", "retention day 30"):
            cell = with_interval(arm["figures"][figure], 2 if figure == "conversation length" else 3)
            if place:
                cell += f", {found['comparisons'][place - 1]['figures'][figure]['relative']:+.0%}"
            cells.append(cell)
        rows.append(cells)
    return table(("policy", "conversation length", "retention day 1", "day 7", "day 30"), rows)


def demo_ppo(found: Found) -> Lines:
    """PPO of `make demo` on held-out prompts, before and after."""
    names = {
        "reward": "reward: the scorer, in standard deviations", "hidden_utility": "hidden utility, never optimised",
        "openings": "distinct openings of replies", "distinct_2": "distinct pairs of words",
    }  # fmt: skip
    rows = [
        [title, *(f"{found['ppo'][name][end]:.3f}" for end in ("before", "after"))] for name, title in names.items()
    ]
    return table(("PPO, held-out prompts", "before", "after"), rows)


def first_steps(found: Found) -> Lines:
    """README's first block: SFT, a scorer, GRPO."""
    rows = []
    for name, figure, title, form in (
        ("sft", "perplexity", "SFT: perplexity of held-out replies", ".1f"),
        ("scorer", "accuracy", "reward model: accuracy on held-out pairs", ".3f"),
        ("policy", "reward", "GRPO: reward on held-out prompts", ".3f"),
        ("policy", "tokens", "tokens per reply", ".1f"),
    ):
        of = found[name][figure]
        known = f" ({of['low']:{form}} to {of['high']:{form}})" if "low" in of else ""
        seconds = f"{found[name]['cpu_seconds']:.0f}" if known else ""
        rows.append([title, f"{of['before']:{form}}", f"{of['after']:{form}}{known}", seconds])
    return table(("", "before", "after (95%)", "CPU s"), rows)


def ppo_speed(shape: Found, smol: Found) -> Lines:
    """PPO beside TRL 1.12 and trlx's way."""
    names = {
        "trl": "TRL 1.12", "trlx_way": "trlx's way, 2 layers unfrozen",
        "ours_own_critic": "lmgym, own critic (TRL's algorithm)",
        "ours_shared_head": "lmgym, value head on the trunk", "ours_hydra": "lmgym, 2 layers unfrozen",
    }  # fmt: skip
    first, second = (found["fp32"]["speed"]["summary"] for found in (shape, smol))
    rows = []
    for name, title in names.items():
        one, other = first[name], second.get(name)
        low, high = one["range"]
        cells = [title, f"{one['samples_per_cpu_second']:.2f} ({low:.2f}-{high:.2f})"]
        cells += ["" if name == to else f"{one['speed_to'][to]:.2f}" for to in ("trl", "trlx_way")]
        cells += [f"{one['above_models_mib']:.0f}"]
        cells += [f"{other['samples_per_cpu_second']:.3f}" if other else "not run"]
        cells += [f"{other['speed_to']['trl']:.2f}" if other and name != "trl" else ""]
        rows.append([*cells, f"{other['above_models_mib']:.0f}" if other else ""])
    titles = ("", "S: samples per CPU second (range)", "over TRL", "over trlx's way", "MiB above the models")
    return table((*titles, "SmolLM2", "over TRL", "MiB"), rows)


def walks_on_graphs(found: Found) -> Lines:
    """Optimality on five graphs, three seeds each, with the mean over graphs."""
    graphs = found["five_graphs"]["graphs"]
    rows = [["the walks that the start copies", *(number(one["walks"], 3) for one in graphs.values()), ""]]
    rows += [["the start", *(number(one["start"]["sampled"], 3) for one in graphs.values()), ""]]
    for key, more in (("sampled", ""), ("greedy", ", the likeliest walks")):
        for method, runs in found["five_graphs"]["runs"].items():
            over = mean([run[key] for run in runs], [run["graph"] for run in runs], (0, 1))
            cells = [
                ", ".join(number(run[key], 3) for run in runs if str(run["graph"]) == graph) for graph in graphs
            ]  # by seed, as they were run
            rows.append([f"`{method}`{more}", *cells, with_interval(vars_of(over), 3)])
    return table(("", *graphs, "mean (95%)"), rows)


def vars_of(interval: Any) -> Found:
    """The value and ends of an interval of lmgym.statistics."""
    return {"value": interval.value, "low": interval.low, "high": interval.high}


def methods_beside_ppo(found: Found) -> Lines:
    """Means over graphs, and each method less PPO, paired over graphs."""
    runs = found["five_graphs"]["runs"]
    means = {
        method: {graph: np.mean([run["sampled"] for run in of if run["graph"] == graph]) for graph in by_graph(of)}
        for method, of in runs.items()
    }
    rows = []
    for method, of in runs.items():
        over = mean([run["sampled"] for run in of], [run["graph"] for run in of], (0, 1))
        less = mean([means[method][graph] - means["ppo"][graph] for graph in means["ppo"]])
        tokens = sum(run["tokens"] for run in of) / sum(run["tokens"] for run in runs["ppo"])
        beside = "" if method == "ppo" else with_interval(vars_of(less), 3, "+")
        rows.append([f"`{method}`", with_interval(vars_of(over), 3), beside, f"{tokens:.2f}"])
    return table(("", "mean over graphs (95%)", "less PPO's (95%, paired)", "sampled tokens over PPO's"), rows)


def by_graph(runs: list[Found]) -> list[int]:
    """The graphs of some runs, in their order."""
    return list(dict.fromkeys(run["graph"] for run in runs))


def walks_on_one_graph(found: Found) -> Lines:
    """All methods on graph 1000."""
    rows = []
    for method, runs in found["walks"].items():
        over = mean([run["sampled"] for run in runs]).within((0, 1))
        by_seed = ", ".join(number(run["sampled"], 3) for run in runs)
        likeliest = ", ".join(number(run["greedy"], 2) for run in runs)
        tokens = f"{np.mean([run['tokens'] for run in runs]):,.0f}"
        rows.append([f"`{method}`", by_seed, with_interval(vars_of(over), 3), likeliest, tokens])
    return table(("", "seeds 0, 1, 2", "mean (95% over seeds)", "the likeliest walks", "sampled tokens"), rows)


def preferences(found: Found) -> Lines:
    """Hidden utility of DPO, KTO, iterative DPO, PPO and the best of 4 in each world, and the change from SFT."""
    worlds = found["worlds"]
    rows = []
    for name in worlds[0]["policies"]:
        for kind, label in (("utility", name), ("best", f"{name}, best of 4")):
            cells = [label]
            for one in worlds:
                values = np.array(one["policies"][name][kind])
                change = mean(values - np.array(one["policies"]["SFT"]["utility"]))
                beside = "" if label == "SFT" else f", {with_interval(vars_of(change), 2, '+')}"
                cells.append(number(values.mean()) + beside)
            of = [one["policies"][name] for one in worlds]
            cpu = [one["training_cpu_seconds"] for one in of]
            alone = kind == "utility"
            cells.append(number(abs(np.mean([one["kl"] for one in of]))) if alone else "")
            cells.append(f"{np.mean([one['tokens'] for one in of]):.1f}" if alone else "")
            rows.append([*cells, f"{np.mean(cpu):.0f}" if alone and None not in cpu else ""])
    titles = [f"world {one['world']}" for one in worlds]
    return table(("policy", *titles, "KL, nats a reply", "tokens", "training, CPU s"), rows)


def grpo_speed(found: Found) -> Lines:
    """GRPO beside TRL 1.16: samples a CPU second and peak memory."""
    curves, speed = found["fp32"]["curves"]["runs"], found["fp32"]["speed"]["summary"]
    rows = []
    for title, of, memory in (
        ("4 epochs and a KL, one run", curves, lambda one: one["memory_mib"]["above_models"]),
        ("1 epoch, no KL, medians of 3", speed, lambda one: one["above_models_mib"]),
    ):
        trl, ours = of["trl"], of["ours"]
        rates = [one["samples_per_cpu_second"] for one in (trl, ours)]
        cells = [f"{rate:.3f}" for rate in rates] + [f"{rates[1] / rates[0]:.2f}"]
        rows.append([title, *cells, *(f"{memory(one) / 1024:.1f}" for one in (trl, ours))])
    titles = ("TRL's best, samples per CPU second", "lmgym", "over TRL", "TRL's GiB above the models", "lmgym's")
    return table(("", *titles), rows)


def preference_speed(found: Found) -> Lines:
    """DPO and KTO beside TRL's trainers."""
    names = {
        "TRL defaults": "TRL defaults", "TRL best": "TRL best, reference in each update",
        "TRL best, reference first": "TRL best, reference first", "ours": "lmgym",
    }  # fmt: skip
    rows = []
    for name, title in names.items():
        cells = [title]
        for loss in ("dpo", "kto"):
            one = found[f"{loss} speed"]["summary"][name]
            low, high = one["range"]
            cells += [f"{one['pairs_per_cpu_second']:.2f} ({low:.2f}-{high:.2f})"]
            cells += [f"{one['ratio_to']['TRL best']:.2f}", f"{one['peak_memory_mib']:.0f}"]
        rows.append(cells)
    return table(("", "DPO (range)", "over TRL best", "MiB", "KTO (range)", "over TRL best", "MiB"), rows)


def reward_speed(*found: Found) -> Lines:
    """Reward training beside TRL 1.16, a row a file."""
    rows = []
    for one in found:
        rates = one["speed"]["summary"]
        name = "SmolLM2-135M" if one["shape"].startswith("Smol") else one["shape"]
        ours = rates["ours"]
        ratios = [f"{ours['ratio_to'][of]:.2f}" for of in ("TRL defaults", "TRL best")]
        cells = [f"{rates[of]['pairs_per_cpu_second']:.2f}" for of in ("TRL defaults", "TRL best", "ours")]
        rows.append([f"{name}, {one['dtype']}", *cells, *ratios])
    return table(("model", "TRL defaults", "TRL best", "lmgym", "over defaults", "over best"), rows)


def sft_packing(found: Found) -> Lines:
    """Ways of batching in SFT."""
    names = {
        "padded": "padded, random order", "padded, sorted by length": "padded, sorted by length",
        "TRL's packing, TRL's head": "TRL 1.16's packing, its own loss",
        "TRL's packing, plain head": "TRL 1.16's packing, the model's own head", "packed": "ours, packed",
    }  # fmt: skip
    rows = []
    for name, title in names.items():
        one = found["ways"][name]
        ratio = f"{one['times_as_fast_as_padded']:.2f}"
        rows.append([title, one["micro_batch"], f"{one['tokens_per_cpu_second']:,.0f}", ratio])
    return table(("", "micro-batch, rows", "tokens per CPU second", "speed over padding"), rows)


def world_policy(found: Found) -> Lines:
    """A policy from scratch: accepted and distinct replies by tokens and sampling."""
    rows = []
    for name, one in found["by_tokens"].items():
        cells = [name, f"{one['parameters']:,}", f"{one['cpu_seconds']:.0f}", f"{one['perplexity']:.2f}"]
        for temperature, top_p in (("1.0", "1.0"), ("1.0", "0.95"), ("0.8", "0.95")):
            how = f"at temperature {temperature}, top-p {top_p}"
            cells.append(f"{one[f'accepted {how}']:.1%}, {one[f'distinct {how}']:.0%}")
        rows.append(cells)
    titles = ("accepted, distinct: temperature 1", "with top-p .95", "temperature .8, top-p .95")
    return table(("tokens", "weights", "CPU s", "perplexity", *titles), rows)


def uncertainty(found: Found) -> Lines:
    """The spread of an ensemble's members beside their errors, for three kinds of ensemble."""
    kinds = {"heads": "heads", "adapters": "adapters", "seeds": "whole models"}
    of = [found["spreads"][kind] for kind in kinds]

    def row(title: str, *cells: Any) -> list[str]:
        return [title, *(cell(one) for one in of for cell in cells[:1])]

    single = number(found["spreads"]["single_cpu_seconds"])
    rows = [
        row("correlation of the members' errors, held out", lambda one: number(one["held out"]["error_correlation"]))
    ]
    for name, title in (
        ("held out", "rank correlation of spread and error, held out"),
        ("best of 64", "the same, best of 64"),
        ("PPO", "the same, after PPO"),
    ):
        rows.append(row(title, lambda one, name=name: with_interval(one[name]["spread_and_error"])))
    rows.append(
        row(
            "mean spread, held out, best of 64, after PPO",
            lambda one: ", ".join(number(one[name]["spread"]) for name in ("held out", "best of 64", "PPO")),
        )
    )
    rows.append(row("overestimate after PPO (0 on held-out replies)", lambda one: number(one["PPO"]["bias"])))
    for key, title in (
        ("agreement", "pairs of replies to a prompt ordered as by the hidden utility: held out, after PPO"),
        ("ece_at_temperature", "calibration error at the temperature: held out, after PPO"),
    ):
        rows.append(row(title, lambda one, key=key: ", ".join(number(one[name][key]) for name in ("held out", "PPO"))))
    rows.append(row(f"CPU seconds to score 800 replies (one scorer: {single})", lambda one: number(one["cpu_seconds"])))
    return table(("", *kinds.values()), rows)


def optimised_ensembles(found: Found) -> Lines:
    """The rise of the hidden utility by seed at equal KL, against one scorer and against ensembles."""
    rows = []
    for arm in ("mean-std", "mean"):
        of = found["ppo"]["at_equal_kl"][arm]
        less = mean([one[arm]["rise"] - one["single"]["rise"] for one in of])
        cells = [", ".join(number(one[name]["rise"]) for one in of) for name in ("single", arm)]
        rows.append([f"`#{arm}` of four", *cells, with_interval(vars_of(less), 2, "+")])
    return table(("reward", "one scorer at the same KL", "the ensemble", "the difference (95% over seeds)"), rows)


def generation(found: Found) -> Lines:
    """CPU seconds of generation beside transformers, and the ratio of each side's quicker precision."""
    ways = ("transformers fp32", "transformers bf16", "ours fp32", "ours bf16")
    rows = [
        [name, *(f"{case['medians'][way]:.3f}" for way in ways), f"{case['ratio']:.2f}"]
        for name, case in found["cases"].items()
    ]
    return table(("", *ways, "times as fast, each at its best"), rows)


def best_of_n(found: Found) -> Lines:
    """A turn of best of N: CPU seconds of generation + scoring."""
    ways = ("transformers fp32", "transformers bf16", "ours fp32", "ours bf16")
    rows = []
    for n, turn in found["turn"].items():
        cells = [f"{turn['medians'][way]['generate']:.2f} + {turn['medians'][way]['score']:.2f}" for way in ways]
        rows.append([f"N = {n}", *cells, f"{turn['ratio']:.2f}"])
    return table(("", *ways, "times as fast, each at its best"), rows)


def app_tests(found: Found) -> Lines:
    """Share of experiments without a difference in which one is found at p < .05."""
    rates = found["do_not_differ"]["rejected_at_.05"]
    rows = [[figure, f"{rates['random'][figure]:.1%}", f"{rates['paired'][figure]:.1%}"] for figure in rates["random"]]
    return table(("figure", "random assignment", "paired"), rows)


def best_of_n_in_app(found: Found) -> Lines:
    """The worth of the best of N in the app: by the scorer, by the hidden utility, by chance."""
    world = found["worlds"][0]
    first = world["rows"][0]["figures"]
    rows = []
    for row in world["rows"]:
        cells = [row["n"], "" if row["by"] == "none" else row["by"]]
        for figure in ("conversation length", "retention day 30"):
            value = row["figures"][figure]["value"]
            change = f", {value / first[figure]['value'] - 1:+.0%}" if row["n"] > 1 else ""
            cells.append(number(value) + change)
        pool = world["pool"]["values"][row["by"] if row["n"] > 1 else "scorer"][str(row["n"])]["value"]
        rows.append(
            [*cells, number(row["hidden_utility"]), number(pool), number(math.log(row["n"]) - 1 + 1 / row["n"])]
        )
    titles = ("conversation length", "retention day 30", "hidden utility in the app", "from a pool", "KL at most")
    return table(("N", "chosen by", *titles), rows)


def small_games(games: Found, self_play: Found, dialogue: Found) -> Lines:
    """Small policies in games: figures before and after by seed, and the aim that was set before."""
    titles = {"blackjack": "Blackjack, expected return", "frozen_lake": "FrozenLake without slipping, success"}
    rows = []
    for game, method in dict.fromkeys((run["game"], run["method"]) for run in games["runs"]):
        runs = [run for run in games["runs"] if (run["game"], run["method"]) == (game, method)]
        starts = sorted(run["start"] for run in runs)
        before = " to ".join(dict.fromkeys(number(start, 3) for start in (starts[0], starts[-1])))
        how = method.upper().replace("_ACTIONS", ", over actions")
        rows.append([titles[game], how, before, seeds(run["return"] for run in runs), number(games["bars"][game])])
    of = {kind: [run for run in self_play["runs"] if run["opponents"] == kind] for kind in ("random", "self")}
    before = number(self_play["start_of_random_runs"]["return_first"], 3)
    after = seeds(run["return_first"] for run in of["random"])
    rows.append(["tic-tac-toe, return moving first", "PPO against the random player", before, after, ".90"])
    after = ", ".join(f"{run['lost']:.1%}" for run in of["self"])
    before = f"{self_play['start']['lost']:.1%}"
    rows.append(["tic-tac-toe, games lost to the random player", "PPO by self-play", before, after, "5%"])
    names = {"taboo_syllables": "taboo, Main Score", "word_guess_clue_syllables": "the word game, Main Score"}
    for game, title in names.items():
        runs = [run for run in dialogue["learning"] if run["game"] == game]
        before, after = (", ".join(f"{run['quality'][end]:.1f}" for run in runs) for end in (0, 1))
        rows.append([title, "GRPO after a short SFT", before, after, ""])
    return table(("game", "by", "before", "after, seeds 0 to 2", "the aim"), rows)


def seeds(values: Iterable[float]) -> str:
    """'-.056, -.066, -.061'."""
    return ", ".join(number(value, 3) for value in values)


def debate(found: Found) -> Lines:
    """Right verdicts of a small judge by best-of-N of both sides."""
    of = found["runs"][0]["conditions"]
    rows = []
    for n in (1, 4, 16):
        names = [f"consultancy, {kind}{n}" for kind in ("honest ", "dishonest ", "")]
        cells = [with_interval(of[name]["accuracy"], 3) for name in (*names, f"debate, honest {n}, dishonest {n}")]
        rows.append([n, *cells, with_interval(of[f"debate less consultancy, {n}"], 3, "+")])
    titles = ("consultancy, consultant right", "wrong", "half of each", "debate", "debate less consultancy")
    return table(("N of both sides", *titles), rows)
