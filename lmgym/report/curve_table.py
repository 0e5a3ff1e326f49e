"""The curves of a run: which metrics belong on one chart, and what a reader should look for."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from lmgym.statistics import Bounds

CAPABILITY = "eval/capability/"


@dataclass(frozen=True)
class Curve:
    """A chart of metrics by label; those that a run lacks are left out, and a chart without any is not drawn."""

    id: str
    title: str
    about: str
    series: Mapping[str, str]
    """label: metric"""
    y: str = ""
    """the title of the axis, where the lines are of several units; else it is that of the metrics"""
    within: str = ""
    """prefix of further metrics, whose labels are the rest of their names"""
    bounds: Bounds | None = None
    """within which every value lies"""


CURVES = (
    Curve(
        "loss",
        "Loss",
        "The held-out loss is what counts: where it rises while the training loss falls, the model "
        "learns its training rows by heart. A point of the training is the mean since the point before.",
        {"training": "train/loss", "held out": "eval/nll|eval/loss"},
    ),
    Curve(
        "accuracy",
        "Accuracy of pairs",
        "Share of pairs whose chosen reply scores above the rejected one.",
        {"training": "train/accuracy", "held out": "eval/accuracy"},
        bounds=(0.0, 1.0),
    ),
    Curve(
        "label_accuracy",
        "Accuracy of labels",
        "Share of labels of replies that the model predicts.",
        {"training": "train/label_accuracy", "held out": "eval/label_accuracy"},
        bounds=(0.0, 1.0),
    ),
    Curve(
        "top_1_acc",
        "Best reply found",
        "Share of groups of which the reply with the highest score is one that people ranked best.",
        {"training": "train/top_1_acc", "held out": "eval/top_1_acc"},
        bounds=(0.0, 1.0),
    ),
    Curve(
        "token_accuracy",
        "Accuracy of tokens",
        "Share of output tokens that are the model's most likely next token.",
        {"training": "train/token_accuracy", "held out": "eval/token_accuracy"},
        bounds=(0.0, 1.0),
    ),
    Curve(
        "area",
        "AUC",
        "How well scores tell positives from negatives; .5 is chance.",
        {"held out": "eval/auc"},
        bounds=(0.0, 1.0),
    ),
    Curve(
        "win_rate",
        "Win rate against the start",
        "Share of held-out prompts to which the policy's reply scores above that of the starting policy.",
        {"held out": "eval/win_rate"},
        bounds=(0.0, 1.0),
    ),
    Curve(
        "margins",
        "Margins",
        "Score of the chosen reply minus that of the rejected one.",
        {"training": "train/margin", "held out": "eval/margin_mean|eval/margin"},
    ),
    Curve(
        "implicit_rewards",
        "Implicit rewards",
        "Log-ratios to the reference times beta, on held-out rows: what counts is their distance; both may fall.",
        {"chosen": "eval/reward_chosen|eval/reward_liked", "rejected": "eval/reward_rejected|eval/reward_disliked"},
    ),
    Curve(
        "perplexity",
        "Perplexity",
        "Of an output token of held-out rows; lower is better.",
        {"held out": "eval/perplexity"},
        bounds=(1.0, math.inf),
    ),
    Curve(
        "calibration_curve",
        "Calibration error",
        "The calibration error (ECE) is 0 where confidence equals accuracy; few pairs raise it. The Brier score is 0 "
        "only for a scorer that is always sure and right.",
        {
            "calibration error (ECE)": "eval/ece",
            "at the temperature of other prompts": "eval/ece_calibrated",
            "Brier score": "eval/brier",
        },
        "error",
    ),
    Curve(
        "reward",
        "Reward",
        "Mean reward per episode: of the replies that the policy learned from, and of replies "
        "to held-out prompts. Rollouts are of the policy before the updates of their iteration.",
        {"rollouts": "reward/mean", "held out": "eval/reward/mean"},
    ),
    Curve(
        "monitors",
        "Scorers that are watched, not optimised",
        "A scorer that the policy cannot exploit: if the "
        "reward rises and this one falls, the policy exploits the reward.",
        {"evaluation scorer": "eval/eval_scorer"},
        "score",
        within="eval/monitor/",
    ),
    Curve(
        "agreement",
        "Agreement of the reward with the watched scorers",
        "Share of pairs of the policy's own replies that the reward and a watched scorer order alike; .5 is chance. "
        "Where it falls, the policy has moved to replies that the reward misjudges.",
        {},
        "share of pairs",
        within="eval/agreement/",
        bounds=(0.0, 1.0),
    ),
    Curve(
        "equal_length",
        "Share won at equal length",
        "Share of held-out prompts on which a judge that compares prefers the policy's reply to that of the "
        "policy before step 1, as if both were as long; .5: no better. Where it is far below "
        "the plain share, the judge prefers long replies.",
        {},
        "share of replies",
        within="eval/equal_length/",
        bounds=(0.0, 1.0),
    ),
    Curve(
        "capabilities",
        "Capabilities",
        "What the model can do besides the task that it is trained on, by lm-eval. "
        "Where a figure falls while the reward rises, the training costs that ability.",
        {},
        "share of rows",
        within=CAPABILITY,
        bounds=(0.0, 1.0),
    ),
    Curve(
        "kl",
        "KL to the reference",
        "How far the policy has moved, in nats per reply. PPO measures it on an iteration's replies, before its "
        "updates.",
        {"KL": "kl/reference|eval/kl"},
        bounds=(0.0, math.inf),
    ),
    Curve(
        "lengths",
        "Length of replies",
        "Lengths that fall to a few tokens or rise to the limit are a warning (in RL: the reward can be exploited).",
        {"rollouts": "rollout/reply_tokens", "held out": "eval/rollout/reply_tokens|eval/samples/tokens|eval/tokens"},
        bounds=(0.0, math.inf),
    ),
    Curve(
        "entropy",
        "Entropy",
        "Of a token; where it falls to 0, the policy says one thing only.",
        {"entropy": "policy/entropy"},
    ),
    Curve(
        "diversity",
        "Diversity of replies",
        "Shares of distinct openings (first three words) and of distinct pairs "
        "of words among replies to held-out prompts: where they fall, the policy repeats what the reward likes best.",
        {"openings": "eval/diversity/openings", "pairs of words": "eval/diversity/distinct_2"},
        "share",
        bounds=(0.0, 1.0),
    ),
    Curve(
        "clip_fraction",
        "Clipped tokens",
        "Share of tokens whose ratio was clipped; above .3 the updates are too large.",
        {"clipped": "policy/clip_fraction"},
        bounds=(0.0, 1.0),
    ),
    Curve(
        "explained_variance",
        "Variance that the critic explains",
        "1: the critic predicts the returns; below .1 advantages are almost as noisy as the rewards.",
        {"explained": "values/explained_variance"},
    ),
    Curve(
        "policy_loss",
        "Training losses",
        "The policy's loss is no measure of progress.",
        {"policy": "loss/policy", "critic": "loss/value"},
    ),
    Curve(
        "groups",
        "Rewards within a group",
        "Groups whose rewards are all equal teach nothing.",
        {"groups of equal rewards": "groups/equal_rewards", "standard deviation": "groups/reward_std"},
        "share, or reward",
    ),
    Curve("gradient", "Norm of the gradient", "Before it is clipped.", {"norm": "train/grad_norm"}),
    Curve("learning_rate", "Learning rate", "", {"rate": "train/learning_rate|policy/learning_rate"}),
    Curve(
        "speed",
        "Tokens per second",
        "Tokens that are trained on, per second of training (PPO: of the whole iteration, without its evaluation).",
        {"tokens/s": "train/tokens_per_second|rollout/tokens_per_second"},
    ),
)
