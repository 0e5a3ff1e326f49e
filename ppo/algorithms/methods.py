"""The methods: each is an estimator of advantages, a loss of tokens, and the settings that its authors gave it.

docs/methods.md has the sources. Settings that are given override a method's own.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace
from functools import cache, partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, get_args

if TYPE_CHECKING:
    import torch

    from ppo.algorithms.losses import TokenLoss

MethodName = Literal[
    "ppo", "rloo", "grpo", "dr_grpo", "reinforce_pp", "reinforce_pp_baseline", "dapo", "gspo", "cispo", "rft"
]
KLEstimator = Literal["k1", "k2", "k3"]
Outcome = Callable[["torch.Tensor", "torch.Tensor"], "torch.Tensor"]
"""advantages [n] from rewards [n] and the numbers of their groups [n]"""
AGGREGATIONS = {"token": "tokens", "sequence": "replies", "constant": "replies as if all were of max_new_tokens"}


@dataclass(frozen=True)
class Algorithm:
    """A method with all settings that depend on it; what each means is in ppo/config/."""

    name: MethodName
    outcome: Outcome | None = None
    """None: GAE, with a critic"""
    compares: bool = True
    """replies with others to the same prompt, so that each prompt needs two"""
    per_token: bool = False
    """each token's reward is what follows it, the KL penalty included; else a reply's tokens share one"""
    token_loss: "TokenLoss | None" = None
    """None: the clipped one"""
    num_generations: int = 8
    ppo_epochs: int = 1
    init_kl_coef: float = 0.0
    kl_in: Literal["reward", "loss"] = "loss"
    kl_estimator: KLEstimator = "k3"
    scale_rewards: Literal["group", "batch", "none"] | None = None
    """None: the estimator has its own scale"""
    epsilon_low: float = 0.2
    epsilon_high: float = 0.2
    importance_sampling_level: Literal["token", "sequence"] = "token"
    loss_aggregation: Literal["token", "sequence", "constant"] = "token"
    overlong_penalty: float = 0.0
    max_refills: int = 0
    percentile: float | None = None
    """None: all replies are learned from, by their advantages"""

    @property
    def has_critic(self) -> bool:
        """True for ppo."""
        return self.outcome is None

    @property
    def unread(self) -> set[str]:
        """Settings that the method does not read, beside the critic's where there is none."""
        names: set[str] = set()
        if self.has_critic or self.per_token:
            names |= {"credit"}
        if not self.compares:
            names |= {"max_refills"}
        if self.scale_rewards is None:
            names |= {"scale_rewards"}
        if self.token_loss is not None:
            names |= {"delta", "importance_sampling_level"}
        names |= {"percentile"} if self.percentile is None else {"epsilon_low", "epsilon_high", "cliprange"}
        return names

    def __str__(self) -> str:
        """One line for users."""
        scale = f", rewards scaled by {self.scale_rewards}" if self.scale_rewards in ("group", "batch") else ""
        refills = f", up to {self.max_refills} refills" if self.max_refills else ""
        low, high = max(0.0, 1 - self.epsilon_low), 1 + self.epsilon_high
        ratio = f"ratio per {self.importance_sampling_level} within {low:g} and {high:g}"
        learned = ratio if self.percentile is None else f"those at or above quantile {self.percentile:g} are learned"
        kl = f"KL {self.init_kl_coef:g} in the {self.kl_in} ({self.kl_estimator})" if self.init_kl_coef else "no KL"
        return (
            f"method {self.name}: {_count(self.num_generations, 'reply', 'replies')} to a prompt{scale}{refills}, "
            f"{learned}, loss averaged over "
            f"{AGGREGATIONS[self.loss_aggregation]}, {kl}, {_count(self.ppo_epochs, 'epoch', 'epochs')}"
        )


@cache
def _later(module: str, name: str) -> Callable[..., Any]:
    """A function of ppo.algorithms, imported where it is called: with torch, which --help does not need."""

    def call(*arguments: Any, **settings: Any) -> Any:
        return getattr(import_module(f"ppo.algorithms.{module}"), name)(*arguments, **settings)

    return call


def _count(number: int, one: str, more: str) -> str:
    return f"{number} {one if number == 1 else more}"


def preset(name: MethodName) -> Algorithm:
    """A method with its own settings."""
    estimator, loss = partial(_later, "advantages"), partial(_later, "losses")
    match name:
        case "ppo":
            return Algorithm(
                name, compares=False, num_generations=1, ppo_epochs=4,
                init_kl_coef=0.05, kl_in="reward", kl_estimator="k1",
            )  # fmt: skip
        case "rloo":
            return Algorithm(
                name, estimator("rloo"), num_generations=4, init_kl_coef=0.05, kl_in="reward", kl_estimator="k1",
                loss_aggregation="constant",
            )  # fmt: skip
        case "grpo":
            return Algorithm(
                name, estimator("grpo"), init_kl_coef=0.04, scale_rewards="group", loss_aggregation="sequence"
            )
        case "dr_grpo":
            return Algorithm(name, estimator("dr_grpo"), scale_rewards="none", loss_aggregation="constant")
        case "reinforce_pp":
            return Algorithm(
                name, estimator("reinforce_pp"), compares=False, per_token=True, num_generations=1,
                init_kl_coef=0.01, kl_in="reward", kl_estimator="k1",
            )  # fmt: skip
        case "reinforce_pp_baseline":
            return Algorithm(name, estimator("reinforce_pp_baseline"), init_kl_coef=0.01, kl_estimator="k2")
        case "dapo":
            return Algorithm(
                name, estimator("grpo"), num_generations=16, scale_rewards="group", epsilon_high=0.28,
                overlong_penalty=1.0, max_refills=10,
            )  # fmt: skip
        case "gspo":
            return Algorithm(
                name, estimator("grpo"), scale_rewards="group", epsilon_low=3e-4, epsilon_high=4e-4,
                importance_sampling_level="sequence", loss_aggregation="sequence",
            )  # fmt: skip
        case "cispo":
            return Algorithm(
                name,
                estimator("grpo"),
                token_loss=loss("cispo_loss"),
                scale_rewards="group",
                epsilon_low=1.0,
                epsilon_high=4,
            )
        case "rft":
            return Algorithm(
                name, estimator("best_of_group"), token_loss=loss("likelihood_loss"), num_generations=32, percentile=0.9
            )


def resolve(name: MethodName, groups: Iterable[Any], cliprange: float | None) -> Algorithm:
    """A method with the settings in these groups of a config that are not None; `cliprange` sets both bounds."""
    own = preset(name)
    if cliprange is not None:
        own = replace(own, epsilon_low=cliprange, epsilon_high=cliprange)
    names = {field.name for field in fields(own)} - own.unread
    values = {name: getattr(group, name) for group in groups for name in names if hasattr(group, name)}
    own = replace(own, **{name: value for name, value in values.items() if value is not None})
    if own.percentile is not None:
        return replace(own, outcome=partial(_later("advantages", "best_of_group"), percentile=own.percentile))
    if own.scale_rewards is not None:
        return replace(own, outcome=partial(_later("advantages", "grpo"), scale=own.scale_rewards))
    return own


def readers(setting: str) -> list[MethodName]:
    """The methods that read a setting that is not the critic's."""
    return [name for name in get_args(MethodName) if setting not in preset(name).unread]
