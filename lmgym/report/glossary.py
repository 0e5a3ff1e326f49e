"""The names of metrics explained: one definition each, as the field uses the term."""

import re
from functools import cache

ENDS_OF_INTERVALS = {"_low": "Lower end", "_high": "Upper end"}
WITHIN = {
    "_within_users": "Only pairs of rows of the same user count: a scorer that merely recognises users has 0.5 here.",
    "_within_prompts": "Only pairs of replies to the same prompt count.",
    "_new": "Over rows of new users.",
    "_old": "Over rows of users who are not new.",
}
AUC = "Probability that a random positive scores above a random negative (area under the ROC curve); 0.5 is chance."
SPEARMAN = "Spearman's rank correlation, -1 to 1; 0: no agreement."
DEFINITIONS = {  # the first pattern that matches the whole name, without `eval/` and an interval's end, counts
    r"(\w+/)?accuracy": "Share of examples that the model gets right. Of pairs: the chosen reply scores higher.",
    r"train/accuracy": "Accuracy on the training rows since the last line.",
    r"(\w+/)?token_accuracy": "Share of output tokens that are the model's most likely next token.",
    r"length_accuracy": "Share of pairs whose chosen reply is the longer one: what length alone gets right.",
    r"accuracy_above_length": "Accuracy minus that of length alone, on the same pairs.",
    r"accuracy_longer_(chosen|rejected)": "Accuracy on the pairs whose \\1 reply is the longer one.",
    r"pairs_longer_(chosen|rejected)": "Number of pairs whose \\1 reply is the longer one.",
    r"majority_accuracy": "Accuracy of always predicting the more frequent label.",
    r"ties": "Share of pairs with two equal scores; they count as wrong.",
    r"pairs|rows|users|prompts|(\w+)/(rows|users)": "Number of them in the evaluation.",
    r"margin|margin_mean|train/margin": "Mean score of the chosen reply minus that of the rejected one.",
    r"margin_std": "Standard deviation of that difference over pairs.",
    r"nll": "Mean negative log-likelihood of the choices, in nats a pair; ln 2 = 0.693 is a coin.",
    r"train/loss|run/loss": "Mean of the training objective since the last line, or over the run.",
    r"loss": "The training objective on held-out rows; lower is better.",
    r"perplexity": "e to the mean loss of a token: as uncertain as a uniform choice between so many tokens.",
    r"brier": "Brier score: mean squared error of the predicted probability; 0.25 is a coin.",
    r"ece": "Expected calibration error: mean distance of confidence and accuracy over bins of confidence; biased "
    "upwards in small samples.",
    r"ece_calibrated": "The same at a temperature that was fitted on the other half of the prompts.",
    r"temperature": "T at which sigmoid(score difference / T) makes the held-out choices likeliest; above 1: the "
    "scorer is overconfident.",
    r"member_accuracy": "Accuracy of a single head, mean over the heads.",
    r"member_error_correlation": "Mean correlation of two heads' errors over pairs; near 1 they err together.",
    r"spread": "Standard deviation over the heads of a reply's score, mean over replies.",
    r"spread_error_spearman": f"{SPEARMAN} Over pairs, of the heads' spread and the error of their mean; above 0, "
    "disagreement tells where the scorer errs.",
    r"score_length_correlation": "Pearson's correlation of a reply's score and its tokens; far from 0: the scorer may "
    "judge length.",
    r"score_length_spearman": f"{SPEARMAN} Of a reply's score and its number of tokens.",
    r"(\w+/)?auc(_\w+)?": AUC,
    r"(\w+/)?retry_auc\w*": f"{AUC} Positive: the user asked for another reply; a low score should predict it.",
    r"(\w+/)?end_of_convo_auc\w*": f"{AUC} Positive: the conversation ended; a low score should predict it.",
    r"(\w+/)?d(\d+)_auc\w*": f"{AUC} Positive: the user came back after \\2 days.",
    r"(\w+/)?gold_spearman\w*": f"{SPEARMAN} Of the score and the simulated users' hidden utility.",
    r"(\w+/)?\w*spearman\w*": SPEARMAN,
    r"(\w+/)?kendall_tau": "Kendall's tau-b of scores and people's ranks, mean over groups: -1 to 1.",
    r"(\w+/)?top_2_acc": "Share of groups whose two best replies by score are people's two best.",
    r"reject/\w+_acc": "Share of groups of replies in which the one that people rejected has the lowest score.",
    r"reward/mean": "Mean reward of an episode.",
    r"reward/std": "Standard deviation of the reward over episodes.",
    r"reward/total": "Mean of the reward minus the KL penalty, per episode.",
    r"reward/kl_penalty": "Mean of what the KL to the reference costs per episode.",
    r"reward/running_(mean|std)": "The \\1 of the rewards of all iterations so far.",
    r"reward_(chosen|rejected|liked|disliked)": "Mean implicit reward of \\1 replies: beta times the log-ratio to the "
    "reference.",
    r"logprob_(chosen|rejected)": "Mean log-probability of a token of the \\1 replies, nats.",
    r"kl/reference|kl": "Kullback-Leibler divergence from the reference in nats per reply, estimated on the policy's "
    "own replies (k1). In PPO it is measured before an iteration's updates; without a penalty, only in the first "
    "iteration and in those that end with an evaluation.",
    r"kl/sqrt_reference": "Square root of that: the distance by which over-optimisation is usually drawn.",
    r"kl/reference_k3": "The same per token by the estimator k3, which is never negative.",
    r"kl/reference_per_token": "The same per token.",
    r"kl/coefficient": "Weight of the KL in the reward.",
    r"policy/entropy": "Mean uncertainty of the next token, nats; 0: the policy always says the same.",
    r"policy/approx_kl": "KL between the policies before and after the updates of an iteration, nats per token.",
    r"policy/clip_fraction": "Share of tokens whose probability ratio was clipped.",
    r"policy/ratio": "Mean probability ratio of the new and the old policy; 1: unchanged.",
    r"(policy|train)/learning_rate": "Learning rate of the optimizer.",
    r"policy/stopped_early": "1 if the epochs of the iteration ended early (--stop_kl).",
    r"policy/skipped_updates": "Updates without effect, because a gradient was not finite.",
    r"values/explained_variance": "Share of the variance of the returns that the critic predicts: 1 is perfect, 0 is "
    "no better than their mean.",
    r"(values|returns)/(mean|std)": "The \\2 of the critic's values, or of the returns, over tokens.",
    r"loss/policy": "The policy's surrogate loss; no measure of progress.",
    r"loss/value": "The critic's squared error, halved and clipped.",
    r"loss/total": "The policy's loss plus the weighted loss of the critic.",
    r"groups/equal_rewards": "Share of groups whose replies all have the same reward: they teach nothing.",
    r"groups/reward_std": "Mean standard deviation of the rewards within a group.",
    r"groups/refilled": "Share of episodes that were sampled again for groups of equal rewards.",
    r"sampler/weight": "Mean weight by which tokens are corrected for the sampler's distribution; 1: none.",
    r"sampler/masked_replies": "Share of replies without loss, because the sampler's distribution is too far away.",
    r"sampler/kl": "KL of the sampler's distribution from the trainer's, nats per token.",
    r"sampler/chi_square": "Chi-square of the trainer's distribution against the sampler's: how uneven weights are.",
    r"sampler/ratio": "Mean ratio of a sampled token's probability by the trainer to that by the sampler: 1, up to "
    "chance, if the sampler's probabilities are those that it sampled with.",
    r"sampler/far": "Share of tokens whose probabilities by trainer and sampler differ by a factor of 2 or more.",
    r"rollout/logprob_mismatch": "Mean distance of the sampler's log-probabilities from the trainer's, nats per token; "
    "about 0 where both use the same engine, precision and weights.",
    r"rollout/logprob_mismatch_max": "The same of the token where it is largest.",
    r"rollout/staleness": "Updates between the weights that sampled and those that are trained (--async_rollouts).",
    r"rollout/reply_tokens|samples/tokens": "Mean number of tokens of a reply.",
    r"rollout/turns": "Mean number of the policy's turns in an episode.",
    r"rollout/truncated_fraction": "Share of replies that reached --max_new_tokens.",
    r"rollout/truncated_episodes": "Share of episodes that were cut before their end.",
    r"rollout/(cut|shortened)_prompts": "Share of prompts that lost old turns, or the beginning of their last turn.",
    r"rollout/failed_(rewards|episodes)": "Share of \\1 that failed.",
    r"rollout/trained_tokens": "Tokens of an iteration that the policy learns from.",
    r"(rollout|train)/tokens_per_second": "Tokens that are trained on per second.",
    r"train/items_per_second": "Training examples per second.",
    r"train/grad_norm": "Norm of the gradient before it is clipped.",
    r"samples/ended": "Share of replies that ended by themselves.",
    r"samples/score/(.+)|scores/([^/]+)": "Mean score by this scorer.",
    r"scores/([^/]+)/(truncated|shortened)": "Share of texts of which this scorer saw only the end.",
    r"(eval_scorer|monitor/[^/]+)_std": "Standard deviation of that score over replies.",
    r"(eval_scorer|monitor/[^/]+)_error": "Standard error of the mean score.",
    r"(eval_scorer|monitor/[^/]+)_gain": "Rise of the mean score since the start, in standard deviations over the "
    "replies then.",
    r"capability/([^/]+)": "Figure of that task of lm-eval, on the rows that were asked for.",
    r"eval_scorer|monitor/([^/]+)": "Mean score by a scorer that is watched, never optimised.",
    r"agreement/([^/]+)": "Share of pairs of replies that the reward and this watched scorer order alike (ties half), "
    "of replies to the same prompt where there are several; .5 is chance.",
    r"alarm/(eval_scorer|monitor)_falls": "1 if the watched scorer is significantly below an earlier evaluation "
    "and the reward is above it.",
    r"diversity/openings": "Share of distinct first three words among replies to different prompts; 1: no two begin "
    "alike.",
    r"diversity/distinct_2": "Distinct pairs of neighbouring words over all pairs (distinct-2, Li et al. 2016).",
    r"time/train": "Seconds of training since the last line.",
    r"time/evaluate": "Seconds of the evaluation.",
    r"time/generate": "Seconds of sampling replies.",
    r"time/score": "Seconds of computing rewards.",
    r"time/forward": "Seconds of log-probabilities and values before the updates.",
    r"time/backward": "Seconds of the updates.",
    r"time/rollout": "Seconds of sampling and scoring together.",
    r"time/iteration": "Seconds of an iteration without its evaluation.",
    r"time/(\w+)": "Seconds of this phase of an iteration.",
    r"run/seconds": "Seconds of training and evaluation.",
}
_PATTERNS = [(re.compile(pattern), text) for pattern, text in DEFINITIONS.items()]


@cache
def definition(name: str) -> str:
    """The meaning of a metric of this name, for people; empty if the name is unknown."""
    for end, words in ENDS_OF_INTERVALS.items():
        if name.endswith(end):
            return f"{words} of the 95% interval of {name.removesuffix(end)}."
    for candidate in (name.removeprefix("eval/"), name.rpartition("/")[2]):
        for pattern, text in _PATTERNS:
            if found := pattern.fullmatch(candidate):
                meaning = found.expand(text)
                return " ".join([meaning, *(words for ending, words in WITHIN.items() if name.endswith(ending))])
    return ""
