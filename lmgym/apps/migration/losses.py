"""The loss or method of each of TRL's trainers, and the settings that it names otherwise."""

from typing import Any

from lmgym.apps.migration.commands import Translation, display, holds_code
from lmgym.apps.migration.trl_tables import STAGES

LOSSES = {
    "dpo": {"sigmoid": "dpo", "ipo": "ipo"},
    "kto": {"kto": "kto"},
    "cpo": {"simpo": "simpo", "ipo": "ipo"},
}
# of GRPO: the method, and over what its loss is averaged
GRPO_LOSSES = {
    "grpo": ("grpo", "sequence"),
    "dapo": ("grpo", "token"),
    "bnpo": ("grpo", "token"),
    "dr_grpo": ("grpo", "constant"),
    "cispo": ("cispo", "token"),
}


def translate_loss(found: Translation, left: dict[str, Any], kind: str) -> None:
    """The loss or method, with its own settings."""
    loss = left.pop("loss_type", None)
    loss = loss[0] if isinstance(loss, list) and len(loss) == 1 else loss
    if STAGES[kind] == "preference":
        _preference(found, left, kind, loss)
    elif kind == "grpo":
        _grpo(found, left, loss)
    elif kind == "sft" and not any(left.get(name) is True for name in ("assistant_only_loss", "completion_only_loss")):
        found.lines.append("messages: TRL learns all their tokens, here only the bot's turns have loss")
    if kind in ("grpo", "rloo"):
        translate_clipping(found, left)
    if kind not in ("grpo", *LOSSES) and loss not in (None, "nll"):
        found.lines.append(f"loss_type={display(loss)}: no equivalent")
    if kind == "ppo":
        _ppo(found, left)


def _preference(found: Translation, left: dict[str, Any], kind: str, loss: Any) -> None:
    if kind == "orpo":
        found.flags["loss"] = "orpo"
        found.flags["odds_weight"] = beta = left.pop("beta", 0.1)
        if holds_code(beta):
            found.ask("odds_weight", f"beta={display(beta)}, which only the script knows")
        return
    loss = _without_sft_term(found, left, loss)
    if isinstance(loss, str) and loss in (known := LOSSES[kind]):
        found.flags["loss"] = known[loss]
    else:
        found.ask("loss", f"loss_type={display(loss)} has no equivalent among dpo, ipo, simpo, orpo, bon and kto")
    if kind == "cpo" and loss != "simpo":
        left.pop("simpo_gamma", None)
    if left.pop("precompute_ref_log_probs", False) is True:
        found.flags["reference_source"] = "computed"


def _grpo(found: Translation, left: dict[str, Any], loss: Any) -> None:
    method, average = GRPO_LOSSES.get(loss if isinstance(loss, str) else "", ("", ""))
    if average:
        found.flags |= {"loss_aggregation": average} if method == "grpo" else {"method": method}
    else:
        found.ask("method", f"loss_type={display(loss)} has no equivalent; see docs/methods.md")
    scale = left.pop("scale_rewards", "group")
    found.flags["scale_rewards"] = "group" if scale is True else "none" if scale is False else scale
    if holds_code(scale):
        found.ask("scale_rewards", f"{display(scale)}, which only the script knows")
    if method == "cispo":
        left.pop("epsilon", None)
        if isinstance(high := left.pop("epsilon_high", None), int | float):
            found.flags["epsilon_high"] = high - 1  # TRL's is the bound itself


def translate_clipping(found: Translation, left: dict[str, Any]) -> None:
    """TRL's epsilon is both bounds, unless epsilon_high is the upper one."""
    low, high = left.pop("epsilon", None), left.pop("epsilon_high", None)
    if low is not None and high is None:
        high = low
    for flag, value in (("epsilon_low", low), ("epsilon_high", high)):
        if holds_code(value):
            found.ask(flag, f"{display(value)}, which only the script knows")
        elif isinstance(value, int | float):
            found.flags[flag] = min(value, 1) if flag == "epsilon_low" else value  # ratios are above 0
        elif value is not None:
            found.ask(flag, f"{display(value)} is no number")


def _ppo(found: Translation, left: dict[str, Any]) -> None:
    if left.pop("adap_kl_ctrl", False) is True:
        found.flags["target"] = left.pop("target", 6)
    else:
        left.pop("target", None)
        left.pop("horizon", None)
    if left.get("missing_eos_penalty", 0) is None:
        left.pop("missing_eos_penalty")
    if "EXPERIMENT.py" in found.asked:
        found.flags["method"] = "ppo"
    if "steps" in left:
        found.ask("max_updates", f"steps={display(left.pop('steps'))} counts replies; the script's loop ends the run")
    if isinstance(path := found.flags.get("scorers"), str) and "," not in path:
        found.flags["critic"] = path.partition("=")[2]


def _without_sft_term(found: Translation, left: dict[str, Any], loss: Any) -> Any:
    """The loss beside TRL's loss "sft", which is a term here; its weight is relative to the other's."""
    match loss, left.get("loss_weights") or [1.0, 1.0]:
        case [other, "sft"], [int() | float() as weight, int() | float() as of_sft] if weight > 0:
            left.pop("loss_weights", None)
            found.flags["sft_weight"] = of_sft / weight
            return other
    return loss
