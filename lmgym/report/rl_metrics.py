"""The metrics of RL. Those of evaluations are behind `eval/`."""

from lmgym.report.metric import RL, Metric, P, Table, group, one

TABLE: Table = [
    *one(
        "eval/reward/mean",
        Metric(
            "held-out reward",
            "Mean reward of the policy's replies to held-out prompts.",
            RL,
            main=True,
            unit="reward",
            better="higher",
            over="episodes",
            short="reward",
        ),
    ),
    *group(
        RL,
        "reward",
        {
            "reward/mean": (
                "reward",
                "Mean reward of a rollout's episodes, of the policy before the updates of their iteration.",
                "reward",
            ),
            "(eval/)?reward/std": "Standard deviation of the reward over episodes.",
            "reward/total": "Mean of the reward minus the KL penalty, per episode.",
            "reward/kl_penalty": "Mean of what the KL to the reference costs per episode.",
            "reward/running_(mean|std)": "The \\1 of the rewards of all iterations so far.",
            "groups/reward_std": "Mean standard deviation of the rewards within a group.",
            "(values|returns)/(mean|std)": "The \\2 of the critic's \\1, over tokens.",
        },
    ),
    *one(
        "kl/reference",
        Metric(
            "KL to the reference",
            "Kullback-Leibler divergence from the reference, estimated on the policy's own replies (k1). It is "
            "measured before an iteration's updates; without a penalty, only in the first iteration and in those "
            "that end with an evaluation.",
            RL,
            before_updates=True,
            unit="nats per reply",
            short="KL",
        ),
    ),
    *group(
        RL,
        "√nats",
        {
            "kl/sqrt_reference": "Square root of the KL: the distance by which over-optimisation is usually drawn.",
        },
    ),
    *group(
        RL,
        "nats per token",
        {
            "kl/reference_k3": "The KL to the reference by the estimator k3, which is never negative.",
            "kl/reference_per_token": "The KL to the reference per token.",
            "policy/entropy": "Mean uncertainty of the next token; 0: the policy always says the same.",
            "policy/approx_kl": "KL between the policies before and after the updates of an iteration.",
            "sampler/kl": "KL of the sampler's distribution from the trainer's.",
            "rollout/logprob_mismatch": "Mean distance of the sampler's log-probabilities from the trainer's; "
            "about 0 where both use the same engine, precision and weights.",
            "rollout/logprob_mismatch_max": "The same of the token where it is largest.",
            "engine/sync_gap": "Distance of the log-probabilities of a fixed text on the server from the "
            "trainer's, after a sync of the weights.",
        },
    ),
    *group(
        RL,
        "",
        {
            "kl/coefficient": "Weight of the KL in the reward.",
            "policy/ratio": "Mean probability ratio of the new and the old policy; 1: unchanged.",
            "policy/stopped_early": "1 if the epochs of the iteration ended early (--stop_kl).",
            "sampler/weight": "Mean weight by which tokens are corrected for the sampler's distribution; 1: none.",
            "sampler/chi_square": "Chi-square of the trainer's distribution against the sampler's: how uneven "
            "weights are.",
            "sampler/ratio": "Mean ratio of a sampled token's probability by the trainer to that by the sampler: "
            "1, up to chance, if the sampler's probabilities are those that it sampled with.",
            "opponent/iteration": "The iteration of the policy that is the opponent of this one.",
        },
    ),
    *group(
        RL | P,
        "",
        {
            "alarm/(eval_scorer|monitor)_falls": "1 if the watched scorer is significantly below an earlier "
            "evaluation and the reward is above it.",
        },
    ),
    *group(
        RL,
        "loss",
        {
            "loss/policy": "The policy's surrogate loss; no measure of progress.",
            "loss/value": "The critic's squared error, halved and clipped.",
            "loss/total": "The policy's loss plus the weighted loss of the critic.",
        },
    ),
    *group(
        RL,
        "share of tokens",
        {
            "policy/clip_fraction": (
                "clipped tokens",
                "Share of tokens whose probability ratio was clipped.",
                "clipped",
            ),
            "sampler/far": "Share of tokens whose probabilities by trainer and sampler differ by a factor of 2 or"
            " more.",
        },
    ),
    *group(
        RL,
        "share of variance",
        {
            "values/explained_variance": (
                "explained variance",
                "Share of the variance of the returns that the critic predicts: 1 is perfect, 0 is no better than "
                "their mean.",
                "explained",
            ),
        },
    ),
    *group(
        RL,
        "share of groups",
        {
            "groups/equal_rewards": "Share of groups whose replies all have the same reward: they teach nothing.",
        },
    ),
    *group(
        RL,
        "share of episodes",
        {
            "groups/refilled": "Share of episodes that were sampled again for groups of equal rewards.",
            "(eval/)?rollout/truncated_episodes": "Share of episodes that were cut before their end.",
            "(eval/)?rollout/failed_(rewards|episodes)": "Share of \\2 that failed.",
            "(eval/)?rollout/absent_agents": "Share of episodes in which an agent did not act; they are masked.",
        },
    ),
    *group(
        RL,
        "share of replies",
        {
            "sampler/masked_replies": "Share of replies without loss, because the sampler's distribution is too "
            "far away.",
            "(eval/)?rollout/truncated_fraction": "Share of replies that reached --max_new_tokens.",
            "(eval/)?rollout/(cut|shortened)_prompts": "Share of prompts that lost old turns, or the beginning of"
            " their last turn (\\2).",
            "(eval/)?rollout/appended_prompts": "Share of later turns whose prompt is the ids before it with new ones.",
            "(eval/)?scores/([^/]+)/(truncated|shortened)": "Share of texts of which the scorer \\2 saw only the end.",
        },
    ),
    *group(
        RL,
        "tokens",
        {
            "(eval/)?rollout/reply_tokens": (
                "tokens per reply",
                "Mean number of tokens of a reply.",
                "tokens",
            ),
            "rollout/trained_tokens": "Tokens of an iteration that the policy learns from.",
        },
    ),
    *group(
        RL,
        "turns",
        {
            "(eval/)?rollout/turns": "Mean number of the policy's turns in an episode.",
        },
    ),
    *group(
        RL,
        "updates",
        {
            "policy/skipped_updates": "Updates without effect, because a gradient was not finite.",
            "rollout/staleness": "Updates between the weights that sampled and those that are trained "
            "(--async_rollouts).",
        },
    ),
    *group(
        RL,
        "score",
        {
            "(?:eval/)?scores/([^/]+)": (
                "score by \\1",
                "Mean score by the scorer \\1, a part of the reward.",
            ),
            "reward/weight/([^/]+)": (
                "weight of \\1",
                "Weight of \\1 in the reward of an iteration, where it changes over the run.",
            ),
            "eval/(eval_scorer|monitor/[^/]+)_std": "Standard deviation of that score over replies.",
            "eval/(eval_scorer|monitor/[^/]+)_error": "Standard error of the mean score.",
        },
    ),
    *group(
        RL,
        "standard deviations",
        {
            "eval/(eval_scorer|monitor/[^/]+)_gain": (
                "",
                "Rise of the mean score since the start, in standard deviations over the replies then.",
                "its gain",
            ),
        },
    ),
    *group(
        RL,
        "score",
        {
            "eval/eval_scorer": (
                "evaluation scorer",
                "Mean score by the evaluation scorer, which is watched, never optimised.",
            ),
            "eval/monitor/([^/]+)": (
                "\\1, watched",
                "Mean score by the scorer \\1, which is watched, never optimised.",
            ),
        },
        better="higher",
        over="episodes",
    ),
    *group(
        RL,
        "share of replies",
        {
            "eval/equal_length/([^/]+)": (
                "share won at equal length, by \\1",
                "Share of held-out prompts on which the judge \\1 prefers the policy's reply to that of the policy "
                "before step 1, as if both were as long: from a logistic function of the difference in length "
                "(Dubois et al. 2024). .5: no better.",
            ),
        },
        better="higher",
        over="episodes",
    ),
    *group(
        RL,
        "share of pairs",
        {
            "eval/agreement/([^/]+)": (
                "agreement with \\1",
                "Share of pairs of replies that the reward and the watched scorer \\1 order alike (ties half), of "
                "replies to the same prompt where there are several; .5 is chance.",
            ),
        },
    ),
    *group(
        RL,
        "share of replies",
        {
            "eval/diversity/openings": (
                "distinct openings",
                "Share of distinct first three words among replies to different prompts; 1: no two begin alike.",
            ),
        },
    ),
    *group(
        RL,
        "share of word pairs",
        {
            "eval/diversity/distinct_2": "Distinct pairs of neighbouring words over all pairs (distinct-2, Li et "
            "al. 2016).",
        },
    ),
    *group(
        RL,
        "the environment's",
        {
            "(eval/)?episode/(.+)": (
                "\\2",
                "A figure that the environment gives of an episode: its mean over episodes.",
            ),
        },
    ),
    *group(
        RL,
        "your metric's",
        {
            "metrics/(.+)": (
                "\\1",
                "A figure of the run's own metric function: its mean over held-out episodes.",
            ),
        },
    ),
    *group(
        RL,
        "seconds",
        {
            "time/generate": "Time of sampling replies.",
            "time/score": "Time of computing rewards.",
            "time/forward": "Time of log-probabilities and values before the updates.",
            "time/backward": "Time of the updates.",
            "time/rollout": "Time of sampling and scoring together.",
            "time/iteration": "Time of an iteration without its evaluation.",
            "time/sync": "Time of sending the weights to the server that samples.",
            r"time/(\w+)": "Time of this phase of an iteration.",
        },
    ),
]
