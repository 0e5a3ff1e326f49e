"""The metrics of reward models alone: on held-out rows, and on evaluation sets, whose names come before theirs."""

from lmgym.report.metric import AUC, SPEARMAN, Metric, R, Table, group, one

TABLE: Table = [
    *one(
        "eval/top_1_acc",
        Metric(
            "best reply found",
            "Share of held-out groups of replies of which the one with the highest score is one that people ranked "
            "best.",
            R,
            main=True,
            unit="share of groups",
            better="higher",
        ),
    ),
    *one(
        "eval/label_accuracy",
        Metric(
            "accuracy of labels",
            "Share of held-out labels of replies that the model predicts.",
            R,
            main=True,
            unit="share of labels",
            better="higher",
            over="users",
        ),
    ),
    *one(
        "eval/spearman",
        Metric(
            "Spearman",
            SPEARMAN,
            R,
            main=True,
            unit="rank correlation",
            better="higher",
        ),
    ),
    *one(
        "eval/auc",
        Metric(
            "AUC",
            AUC,
            R,
            main=True,
            unit="probability",
            better="higher",
            over="users",
        ),
    ),
    *group(
        R,
        "share of pairs",
        {
            "eval/accuracy_longer_(chosen|rejected)": "Accuracy of the pairs whose \\1 reply is the longer one.",
            "eval/member_accuracy": "Accuracy of pairs of a single head, mean over the heads.",
        },
        better="higher",
    ),
    *group(
        R,
        "share of pairs",
        {
            "eval/ties": "Share of pairs with two equal scores; they count as wrong.",
        },
    ),
    *group(
        R,
        "share of labels",
        {
            "eval/majority_accuracy": "Accuracy of always predicting the more frequent label.",
        },
    ),
    *group(
        R,
        "score",
        {
            "eval/margin_mean": "Mean score of the chosen reply minus that of the rejected one, over held-out pairs.",
            "eval/margin_std": "Standard deviation of that difference over pairs.",
            "eval/spread": "Standard deviation over the heads of a reply's score, mean over replies.",
        },
    ),
    *group(
        R,
        "nats per pair",
        {
            "eval/nll": (
                "held-out loss",
                "Mean negative log-likelihood of the choices; ln 2 = 0.693 is a coin.",
            ),
        },
        better="lower",
    ),
    *group(
        R,
        "squared error",
        {
            "eval/brier": "Brier score: mean squared error of the predicted probability; 0.25 is a coin.",
            "eval/variance": "Variance of the labels: the loss of predicting their mean.",
        },
        better="lower",
    ),
    *group(
        R,
        "error",
        {
            "eval/ece": "Expected calibration error: mean distance of confidence and accuracy over bins of "
            "confidence; biased upwards in small samples.",
            "eval/ece_calibrated": "The same at a temperature that was fitted on the other half of the prompts.",
        },
        better="lower",
    ),
    *group(
        R,
        "",
        {
            "eval/temperature": "T at which sigmoid(score difference / T) makes the held-out choices likeliest; "
            "above 1: the scorer is overconfident.",
        },
    ),
    *group(
        R,
        "correlation",
        {
            "eval/member_error_correlation": "Mean correlation of two heads' errors over pairs; near 1 they err "
            "together.",
            "eval/spread_error_spearman": f"{SPEARMAN} Over pairs, of the heads' spread and the error of their "
            "mean; above 0, disagreement tells where the scorer errs.",
            "eval/score_length_correlation": "Pearson's correlation of a reply's score and its tokens; far from "
            "0: the scorer may judge length.",
            "eval/score_length_spearman": f"{SPEARMAN} Of a reply's score and its number of tokens.",
        },
    ),
    *group(
        R,
        "share of groups",
        {
            r"eval/(\w+/)?top_2_acc": "Share of groups whose two best replies by score are people's two best.",
            r"eval/(\w+/)?reject/\w+_acc": "Share of groups of replies in which the one that people rejected has "
            "the lowest score.",
        },
        better="higher",
    ),
    *group(
        R,
        "rank correlation",
        {
            r"eval/(\w+/)?kendall_tau": "Kendall's tau-b of scores and people's ranks, mean over groups: -1 to 1.",
        },
        better="higher",
    ),
    *group(
        R,
        "probability",
        {
            r"eval/(\w+/)?retry_auc\w*": f"{AUC} Positive: the user asked for another reply; a low score should "
            "predict it.",
            r"eval/(\w+/)?end_of_convo_auc\w*": f"{AUC} Positive: the conversation ended; a low score should "
            "predict it.",
            r"eval/(\w+/)?d(\d+)_auc\w*": f"{AUC} Positive: the user came back after \\2 days.",
            r"eval/(\w+/)?(\w+_)?auc(_\w+)?": AUC,
        },
        better="higher",
        over="users",
    ),
    *group(
        R,
        "rank correlation",
        {
            r"eval/(\w+/)?gold_spearman\w*": f"{SPEARMAN} Of the score and the simulated users' hidden utility.",
            r"eval/(\w+/)?\w*spearman\w*": SPEARMAN,
        },
        better="higher",
    ),
    *group(
        R,
        "share of examples",
        {
            r"eval/\w+/(\w+_)?(accuracy|acc)(_\w+)?": "Share of the examples of this evaluation set that the "
            "model gets right.",
        },
        better="higher",
    ),
    *group(
        R,
        "share of groups",
        {
            "train/top_1_acc": (
                "best reply found, training",
                "Share of training groups since the last line whose reply with the highest score is one that people"
                " ranked best.",
            ),
        },
    ),
    *group(
        R,
        "label's unit",
        {
            "train/absolute_error": "Mean distance of prediction and label, over the training rows since the last"
            " line.",
        },
    ),
]
