"""The metrics of the stages that Hugging Face's Trainer runs, and those of every stage."""

from lmgym.report.metric import ALL, AUC, TRAINER, Metric, P, R, S, Table, group, one

TABLE: Table = [
    *group(
        ALL,
        "share of rows",
        {
            "eval/capability/([^/]+)": (
                "\\1",
                "Figure of the task \\1 of lm-eval, on the rows that were asked for.",
            ),
        },
        better="higher",
        over="rows",
    ),
    *one(
        "eval/perplexity",
        Metric(
            "perplexity",
            "e to the mean loss of an output token: as uncertain as a uniform choice between so many tokens.",
            S,
            main=True,
            unit="perplexity of a token",
            better="lower",
            over="prompts",
        ),
    ),
    *one(
        "eval/win_rate",
        Metric(
            "win rate",
            "Share of held-out prompts to which the policy's reply scores above that of the starting policy; a tie "
            "is half a win.",
            P,
            main=True,
            unit="share of prompts",
            better="higher",
            over="prompts",
        ),
    ),
    *one(
        "eval/accuracy",
        Metric(
            "accuracy of pairs",
            "Share of held-out pairs whose chosen reply scores above the rejected one.",
            R | P,
            main=True,
            unit="share of pairs",
            better="higher",
            over="prompts",
        ),
    ),
    *one(
        "eval/auc",
        Metric(
            "AUC",
            f"{AUC} Of the implicit reward, of liked and disliked replies.",
            P,
            main=True,
            unit="probability",
            better="higher",
            over="prompts",
        ),
    ),
    *group(
        S,
        "share of tokens",
        {
            "eval/token_accuracy": (
                "accuracy of tokens",
                "Share of the output tokens of held-out conversations that are the model's most likely next token.",
            ),
        },
        better="higher",
        over="prompts",
    ),
    *one(
        "eval/length_accuracy",
        Metric(
            "length alone",
            "Share of pairs that a rule gets right which looks at lengths only.",
            R | P,
            of_data=True,
            unit="share of pairs",
        ),
    ),
    *group(
        R | P,
        "share of pairs",
        {
            "eval/accuracy_above_length": (
                "accuracy above length alone",
                "Accuracy of pairs minus that of length alone, on the same pairs.",
            ),
        },
        better="higher",
        over="prompts",
    ),
    *group(
        R | P,
        "number",
        {
            r"eval/(\w+/)?(pairs|rows|users|prompts)": (
                "\\2",
                "Number of \\2 in the evaluation.",
            ),
            "eval/pairs_longer_(chosen|rejected)": "Number of pairs whose \\1 reply is the longer one.",
        },
    ),
    *group(
        P,
        "implicit reward",
        {
            "eval/margin": "Mean implicit reward of the chosen (KTO: liked) replies minus that of the others.",
            "(eval|train)/reward_(chosen|rejected|liked|disliked)": "Mean implicit reward of \\2 replies: beta "
            "times the log-ratio to the reference.",
        },
    ),
    *group(
        P,
        "nats per token",
        {
            "eval/logprob_(chosen|rejected)": "Mean log-probability of a token of the \\1 replies.",
        },
    ),
    *group(
        TRAINER,
        "loss",
        {
            "eval/loss": (
                "held-out loss",
                "The training objective on held-out rows.",
            ),
        },
        better="lower",
    ),
    *group(
        TRAINER,
        "loss",
        {
            "train/loss": (
                "training loss",
                "Mean of the training objective since the last line.",
                "loss",
            ),
            "run/loss": "Mean of the training objective over the run.",
        },
    ),
    *group(
        S,
        "share of tokens",
        {
            "train/token_accuracy": (
                "accuracy of tokens, training",
                "Share of output tokens of the training rows since the last line that were the model's most likely "
                "next token.",
                "accuracy of tokens",
            ),
        },
    ),
    *group(
        R | P,
        "share of pairs",
        {
            "train/accuracy": (
                "accuracy of pairs, training",
                "Share of training pairs since the last line whose chosen reply scored higher.",
                "accuracy of pairs",
            ),
        },
    ),
    *group(
        R | P,
        "share of labels",
        {
            "train/label_accuracy": (
                "accuracy of labels, training",
                "Share of labels of the training rows since the last line that the model predicted. KTO: of replies"
                " whose reward was on their side of the baseline.",
            ),
        },
    ),
    *group(
        R,
        "score",
        {
            "train/margin": "Mean score of the chosen reply minus that of the rejected one, over the training pairs "
            "since the last line.",
        },
    ),
    *group(
        P,
        "implicit reward",
        {
            "train/margin": "Mean implicit reward of the chosen reply minus that of the rejected one, over the "
            "training pairs since the last line.",
        },
    ),
    *group(
        P,
        "nats per reply",
        {
            "(eval|train)/kl": (
                "KL to the reference",
                "Kullback-Leibler divergence from the reference. KTO: the baseline z0, an estimate on mismatched "
                "replies.",
            ),
        },
    ),
    *group(
        TRAINER,
        "norm",
        {
            "train/grad_norm": "Norm of the gradient before it is clipped.",
        },
    ),
    *group(
        ALL,
        "rate",
        {
            "(policy|train)/learning_rate": "Learning rate of the optimizer.",
        },
    ),
    *group(
        ALL,
        "tokens/s",
        {
            "(rollout|train)/tokens_per_second": (
                "tokens/s",
                "Tokens that are trained on, per second (PPO: of the whole iteration without its evaluation).",
            ),
        },
    ),
    *group(
        TRAINER,
        "examples/s",
        {
            "train/items_per_second": "Training examples (SFT: output tokens) per second.",
        },
    ),
    *group(
        TRAINER,
        "tokens",
        {
            "eval/(samples/)?tokens": (
                "tokens per reply",
                "Mean number of tokens of a reply to the fixed prompts.",
            ),
        },
    ),
    *group(
        TRAINER,
        "share of replies",
        {
            "eval/(samples/)?ended": "Share of replies that ended by themselves.",
        },
    ),
    *group(
        TRAINER,
        "score",
        {
            "eval/(?:samples/)?score/(.+)": (
                "score by \\1",
                "Mean score of the replies by the scorer \\1.",
            ),
        },
        better="higher",
    ),
    *group(
        ALL,
        "seconds",
        {
            "time/train": "Time of training since the last line.",
            "time/evaluate": "Time of the evaluation.",
            "run/seconds": "Time of training and evaluation.",
        },
    ),
]
