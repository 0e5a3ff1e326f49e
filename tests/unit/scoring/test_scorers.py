"""Scorers: a model's scores at any batch, order and padding; functions, random scores, ensembles."""

import json
import random
import shutil
from pathlib import Path

import pytest
import torch
from demo_pairs import demo_pairs
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from lmgym.data import tokenization, truncation
from lmgym.data.truncation import truncate
from lmgym.errors import InputError
from lmgym.messages import from_messages
from lmgym.models.loading import load_classifier, load_tokenizer
from lmgym.models.saving import save_classifier
from lmgym.scoring import scorers
from lmgym.scoring.named_scorers import load_on_main_rank, load_scorer, weights_dtype
from lmgym.scoring.random_scorer import RandomScorer
from lmgym.scoring.scorers import (
    REPLIES_A_ROW,
    FunctionScorer,
    HFScorer,
    TextCounts,
    _split_long_rows,
    reduce_logits,
)
from lmgym.text import Conversation, Turn, messages, tokenize_texts
from ppo.config import RewardConfig
from ppo.task_setups import load_scorer_reward

FAMILIES = ("gpt2", "llama", "qwen3", "bert")
DECODERS = FAMILIES[:3]


def chats(count: int, replies: int = 3) -> tuple[list[Conversation], list[str]]:
    """Conversations of the demo's world with several replies to each, shuffled; the same replies occur again."""
    rows = demo_pairs(count, seed=4)
    pool = [row[side][0]["content"] for row in rows for side in ("chosen", "rejected")]
    rng = random.Random(0)
    pairs = [(from_messages(row["prompt"]), rng.choice(pool)) for row in rows for _ in range(replies)]
    rng.shuffle(pairs)
    return [c for c, _ in pairs], [r for _, r in pairs]


CONVERSATIONS, REPLIES = chats(12)


def plain_logits(folder: Path, conversations=CONVERSATIONS, replies=REPLIES) -> torch.Tensor:
    """Logits through transformers alone: the chat template's ids, one by one."""
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    chats = [messages(c, r) for c, r in zip(conversations, replies, strict=True)]
    if model.config.model_type == "bert":
        ids = [tokenizer(tokenizer.apply_chat_template(chat, tokenize=False)).input_ids for chat in chats]
    else:
        ids = [tokenizer.apply_chat_template(chat, return_dict=False) for chat in chats]
    with torch.no_grad():
        return torch.cat([model(torch.tensor([row])).logits for row in ids])


@pytest.mark.parametrize("family", FAMILIES)
def test_scores_are_those_of_a_plain_model_at_any_batch_size_and_order(family: str, scorer_folders) -> None:
    expected = plain_logits(scorer_folders[family])[:, 0]
    assert expected.std() > 0.01  # a thousand times the tolerance
    order = random.Random(1).sample(range(len(REPLIES)), len(REPLIES))
    for batch_tokens in (1, 64, 8192):
        scorer = HFScorer.load(scorer_folders[family], batch_tokens=batch_tokens)
        scores = scorer.score(CONVERSATIONS, REPLIES)
        assert (scores.dtype, scores.device.type, scores.shape) == (torch.float32, "cpu", (len(REPLIES),))
        torch.testing.assert_close(scores, expected, rtol=0, atol=1e-5)
        shuffled = scorer.score([CONVERSATIONS[i] for i in order], [REPLIES[i] for i in order])
        torch.testing.assert_close(shuffled, expected[order], rtol=0, atol=1e-5)


def test_no_replies_get_no_scores(scorer_folders) -> None:
    assert HFScorer.load(scorer_folders["gpt2"]).score([], []).shape == (0,)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_text_that_is_too_long_loses_turns_then_tokens_and_is_still_scored(family: str, scorer_folders) -> None:
    scorer = HFScorer.load(scorer_folders[family], max_length=40)
    words = "and what about jazz and opera? " * 8
    chat = Conversation((Turn("user", "soup?"), Turn("bot", "no."), Turn("user", f"{words}so, jazz?")), "A bot.")
    replies = ["jazz, always.", "go away."]
    scores = scorer.score([chat] * 2, replies)
    assert scorer.counts == TextCounts(texts=2, truncated=2, shortened=2)
    # the same through transformers, of what is left of the conversation
    [fitted] = truncate(scorer.tokenizer, [chat], [replies], 40)
    assert (fitted.dropped_turns, fitted.conversation.persona) == (2, "A bot.")
    assert fitted.conversation.turns[0].text.endswith("so, jazz?")
    tokenizer = AutoTokenizer.from_pretrained(scorer_folders[family])
    model = AutoModelForSequenceClassification.from_pretrained(scorer_folders[family]).eval()
    for reply, score in zip(replies, scores, strict=True):
        text = tokenizer.apply_chat_template(messages(fitted.conversation, reply), tokenize=False)
        ids = tokenizer(text, add_special_tokens=family == "bert").input_ids
        assert len(ids) <= 40
        with torch.no_grad():
            assert score.item() == pytest.approx(model(torch.tensor([ids])).logits.item(), abs=1e-5)
    shown = scorer.seen(chat, "go away.", ["jazz, always."])
    assert shown.tokens == len(ids)
    assert shown.cut > 0


def test_a_reply_that_alone_is_too_long_keeps_its_end_and_is_counted(scorer_folders) -> None:
    scorer = HFScorer.load(scorer_folders["gpt2"], max_length=40)
    chat = Conversation((Turn("user", "soup?"),))
    one, other, short = scorer.score([chat] * 3, ["stars " * 60 + "soup " * 60, "soup " * 120, "soup"]).tolist()
    assert one == pytest.approx(other, abs=1e-5), "what differs was cut off"
    assert abs(one - short) > 1e-3
    assert scorer.counts == TextCounts(texts=3, truncated=2, shortened=2)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_very_long_reply_costs_what_a_context_does_and_scores_the_same(
    family: str, scorer_folders, monkeypatch
) -> None:
    scorer = HFScorer.load(scorer_folders[family], max_length=40)
    chats = [Conversation((Turn("user", "soup?"),)), Conversation((Turn("user", "jazz?"),))]
    replies = ["soup and jazz, " * 4000 + "or stars?", "soup."]
    tokenised: list[int] = []

    def counting(tokenizer, texts: list[str]) -> list[list[int]]:
        tokenised.append(sum(map(len, texts)))
        return tokenize_texts(tokenizer, texts)

    for module in (truncation, tokenization, scorers):
        monkeypatch.setattr(module, "tokenize_texts", counting)
    scores, raw = scorer.score(chats, replies), scorer.judge_texts(replies)
    assert sum(tokenised) < 20_000
    monkeypatch.setattr(truncation, "CHARACTERS_A_TOKEN", len(replies[0]))
    assert torch.equal(scores, scorer.score(chats, replies))
    assert torch.equal(raw.scores, scorer.judge_texts(replies).scores)
    assert sum(tokenised) > len(replies[0])


def test_a_system_message_that_leaves_a_scorer_no_room_is_refused(scorer_folders) -> None:
    scorer = HFScorer.load(scorer_folders["gpt2"], max_length=40)
    with pytest.raises(InputError, match=r"a text cannot be scored: the system message is too long: .*max_length=40"):
        scorer.score([Conversation((Turn("user", "soup?"),), "A bot. " * 40)], ["soup"])


@pytest.mark.parametrize("family", DECODERS)
def test_the_next_turn_reuses_the_cache_of_the_one_before_and_scores_the_same(family: str, scorer_folders) -> None:
    scorer = HFScorer.load(scorer_folders[family])
    assert scorer.prefix is not None
    turns: tuple[Turn, ...] = ()
    texts = [c.turns[-1].text[:24] for c in CONVERSATIONS[:4]]
    for text in texts:
        turns = (*turns, Turn("user", text))
        chat, before = Conversation(turns), scorer.prefix.computed
        scores = scorer.score([chat] * 5, REPLIES[:5])
        fresh = plain_logits(scorer_folders[family], [chat] * 5, REPLIES[:5])[:, 0]
        torch.testing.assert_close(scores, fresh, rtol=0, atol=1e-5)
        turns = (*turns, Turn("bot", REPLIES[0]))
    new = scorer.prefix.computed - before
    assert new < len(scorer.prefix.ids) / 2, "only the last exchange was computed"


def labelled(folder: Path, labels: int, target: Path, settings: dict) -> Path:
    """The same trunk with a head of several outputs."""
    tokenizer = load_tokenizer(str(folder))
    model, _ = load_classifier(str(folder), tokenizer, num_labels=labels)
    save_classifier(model, model.state_dict(), target, tokenizer, settings)
    return target


@pytest.mark.parametrize("family", ["llama", "bert"])
@pytest.mark.parametrize(("reduce", "labels"), [("softmax[1]", 2), ("mean_sigmoid", 6)])
def test_several_outputs_are_reduced_to_one_score(family, reduce, labels, scorer_folders, tmp_path) -> None:
    folder = labelled(scorer_folders[family], labels, tmp_path / "m", {"reduce": reduce})
    logits = plain_logits(folder).double()
    odds = logits.exp()
    expected = odds[:, 1] / odds.sum(1) if labels == 2 else (odds / (1 + odds)).mean(1)
    assert expected.std() > 0.002
    saved = HFScorer.load(folder)
    torch.testing.assert_close(saved.score(CONVERSATIONS, REPLIES), expected.float(), rtol=0, atol=1e-5)
    with pytest.raises(InputError, match=f"'logit' does not suit a scorer of {labels} output"):
        HFScorer.load(folder, reduce="logit")


def test_reductions_by_hand_and_their_mismatches() -> None:
    assert reduce_logits(torch.tensor([[1.5], [-2.0]]), "logit").tolist() == [1.5, -2.0]
    assert reduce_logits(torch.tensor([[0.0, 0.0], [0.0, 1.0]]), "softmax[1]").tolist() == pytest.approx(
        [0.5, 0.731059]
    )
    assert reduce_logits(torch.tensor([[0.0, 1.0, -1.0]]), "mean_sigmoid").tolist() == pytest.approx([0.5])
    assert reduce_logits(torch.tensor([[0.0, 1.0, 2.0]]), "mean-2std").tolist() == pytest.approx([1 - 2 * 0.8164966])
    for labels, reduce in ((2, "logit"), (1, "softmax[1]"), (3, "softmax[1]"), (1, "max"), (2, "softmax[0]")):
        with pytest.raises(InputError, match=f"does not suit a scorer of {labels} output"):
            reduce_logits(torch.zeros(1, labels), reduce)


def copy_with(folder: Path, target: Path, settings: str) -> Path:
    shutil.copytree(folder, target)
    (target / "scorer.json").write_text(settings)
    return target


def test_scores_are_normalised_by_the_stored_moments_on_request_only(scorer_folders, tmp_path: Path) -> None:
    folder = copy_with(scorer_folders["gpt2"], tmp_path / "m", '{"reduce": "logit", "moments": [0.5, 4.0]}')
    raw = HFScorer.load(folder).score(CONVERSATIONS, REPLIES)
    torch.testing.assert_close(raw, plain_logits(folder)[:, 0], rtol=0, atol=1e-5)
    normal = HFScorer.load(folder, normalize=True).score(CONVERSATIONS, REPLIES)
    torch.testing.assert_close(normal, (raw - 0.5) / 4.0, rtol=0, atol=1e-6)
    with pytest.raises(InputError, match="stores no moments"):
        HFScorer.load(scorer_folders["gpt2"], normalize=True)


@pytest.mark.parametrize(
    ("settings", "message"), [("{garbage", "is not JSON"), ("[1, 2]", "is a JSON list"), ('{"reduce": "x"}', "'x'")]
)
def test_an_invalid_scorer_json_is_refused(settings: str, message: str, scorer_folders, tmp_path: Path) -> None:
    folder = copy_with(scorer_folders["gpt2"], tmp_path / "m", settings)
    with pytest.raises(InputError, match=message):
        HFScorer.load(folder)


def test_a_folder_from_elsewhere_needs_no_scorer_json(scorer_folders, tmp_path: Path) -> None:
    folder = copy_with(scorer_folders["llama"], tmp_path / "m", "")
    (folder / "scorer.json").unlink()
    scorer = HFScorer.load(folder)
    assert (scorer.reduce, scorer.max_length) == ("logit", 256)  # what the model reads
    torch.testing.assert_close(scorer.score(CONVERSATIONS, REPLIES), plain_logits(folder)[:, 0], rtol=0, atol=1e-5)
    assert HFScorer.load(scorer_folders["llama"]).max_length == 250  # as in scorer.json
    assert HFScorer.load(scorer_folders["llama"], max_length=64).max_length == 64


def test_a_length_above_the_models_context_is_reduced_to_it_with_a_line_on_stderr(scorer_folders, capsys) -> None:
    folder = scorer_folders["llama"]
    assert HFScorer.load(folder, max_length=256).max_length == 256
    assert capsys.readouterr().err == ""
    assert HFScorer.load(folder, max_length=257).max_length == 256
    assert (
        capsys.readouterr().err
        == f"max_length 257 exceeds what {folder} reads: texts are truncated to its 256 tokens\n"
    )


def test_a_path_without_a_scorer_is_refused(small_models, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^scorer .* does not exist"):
        HFScorer.load(tmp_path / "none")
    with pytest.raises(InputError, match="is not a scorer: it has no trained score"):
        HFScorer.load(small_models["llama"])


DROPOUT = {
    "gpt2": ("resid_pdrop", "embd_pdrop", "attn_pdrop"),
    "llama": ("attention_dropout",),
    "bert": ("hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout"),
}


@pytest.mark.parametrize("family", DROPOUT)
def test_scoring_uses_no_dropout(family: str, scorer_folders, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(scorer_folders[family], tmp_path / "m"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | dict.fromkeys(DROPOUT[family], 0.5)))
    scorer = HFScorer.load(folder)
    once, again = (scorer.score(CONVERSATIONS, REPLIES) for _ in range(2))
    assert torch.equal(once, again)
    torch.testing.assert_close(once, plain_logits(scorer_folders[family])[:, 0], rtol=0, atol=1e-5)
    scorer.model.train()
    assert torch.equal(scorer.score(CONVERSATIONS, REPLIES), once)
    scorer.model.dropout = True  # as --dropout trains
    scorer.model.train()
    assert (scorer.score(CONVERSATIONS, REPLIES) - once).abs().max() > 1e-3


def test_scores_in_bf16_are_close(scorer_folders) -> None:
    exact = HFScorer.load(scorer_folders["llama"]).score(CONVERSATIONS, REPLIES)
    rough = HFScorer.load(scorer_folders["llama"], dtype=torch.bfloat16).score(CONVERSATIONS, REPLIES)
    assert rough.dtype == torch.float32
    assert 0 < (rough - exact).abs().mean() < 0.1 * exact.std()


@pytest.mark.parametrize(
    ("precision", "device", "dtype"),
    [("auto", "cpu", torch.float32), ("auto", "cuda", torch.bfloat16), ("bf16", "cpu", torch.bfloat16),
     ("fp32", "cuda", torch.float32)],
)  # fmt: skip
def test_a_scorers_weights_are_bf16_on_a_gpu_or_as_asked(precision, device: str, dtype: torch.dtype) -> None:
    assert weights_dtype(precision, device) == dtype


@pytest.mark.parametrize("family", FAMILIES)
def test_the_head_of_a_scorer_in_bf16_is_that_of_the_folder(family: str, scorer_folders) -> None:
    exact, rough = (load_scorer(str(scorer_folders[family]), precision) for precision in ("fp32", "bf16"))
    kept = dict(exact.model.classifier.named_parameters())  # type: ignore[attr-defined]
    for name, parameter in rough.model.classifier.named_parameters():  # type: ignore[attr-defined]
        if name.startswith(("score", "classifier")):
            assert torch.equal(parameter, kept[name]), name
        else:
            assert parameter.dtype == torch.bfloat16, name


def test_ppo_and_sft_load_scorers_in_fp32_on_a_cpu(scorer_folders) -> None:
    words = f"a={scorer_folders['llama']}"
    settings = RewardConfig(scorers=words, monitor_scorers=f"b={scorer_folders['gpt2']}")
    reward_function, monitors = load_scorer_reward(settings)
    for scorer in (*reward_function.scorers.values(), *monitors.values(), *load_on_main_rank(words).values()):
        assert next(scorer.model.parameters()).dtype == torch.float32  # type: ignore[attr-defined]


CHAT = Conversation((Turn("user", "q"),))


def test_a_scorer_in_bf16_has_the_rotary_frequencies_that_it_was_trained_with(scorer_folders) -> None:
    exact, rough = (
        dict(HFScorer.load(scorer_folders["llama"], dtype=dtype).model.named_buffers())
        for dtype in (torch.float32, torch.bfloat16)
    )
    assert any(name.endswith("inv_freq") for name in exact)
    assert all(torch.equal(rough[name], exact[name]) for name in exact)


def test_a_function_is_a_scorer() -> None:
    scorer = FunctionScorer(lambda chats, replies: [len(r) + len(c.turns) for c, r in zip(chats, replies, strict=True)])
    scores = scorer.score([CHAT, CHAT], ["abc", ""])
    assert scores.tolist() == [4.0, 1.0]
    assert scores.dtype == torch.float32


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([1.0], "gave 1 scores for 2 replies"),
        ([1.0, 2.0, 3.0], "gave 3 scores"),
        ([1.0, float("nan")], "gave nan for reply 1"),
        ([float("-inf"), float("inf")], r"gave -inf for reply 0 \(2 such\)"),
    ],
)
def test_a_function_that_gives_invalid_scores_is_refused(values: list[float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FunctionScorer(lambda *_: values).score([CHAT, CHAT], ["a", "b"])


def test_a_random_scorer_gives_the_same_scores_in_any_batch_and_is_seeded() -> None:
    scorer = RandomScorer(3)
    together = scorer.score(CONVERSATIONS, REPLIES).tolist()
    assert together == [scorer.score([c], [r]).item() for c, r in zip(CONVERSATIONS, REPLIES, strict=True)]
    assert scorer.score(CONVERSATIONS[::-1], REPLIES[::-1]).tolist() == together[::-1]
    assert RandomScorer(4).score(CONVERSATIONS, REPLIES).tolist() != together
    many = scorer.score([CHAT] * 2000, [str(i) for i in range(2000)])
    assert len(set(many.tolist())) > 1990
    assert many.min() >= 0
    assert many.max() < 1
    assert many.mean().item() == pytest.approx(0.5, abs=0.03)


def test_many_replies_to_one_conversation_are_cut_into_rows(scorer_folders) -> None:
    scorer = HFScorer.load(scorer_folders["llama"])
    replies = [f"reply {i} of many" for i in range(2 * REPLIES_A_ROW + 3)]
    one, other = (Conversation((Turn("user", text),)) for text in ("hello", "good evening"))
    conversations = [one] * len(replies) + [other] * len(replies)  # two of them: packed rows, no prefix that stays
    alone = torch.cat([scorer.score([c], [r]) for c, r in zip(conversations, replies * 2, strict=True)])
    torch.testing.assert_close(scorer.score(conversations, replies * 2), alone, rtol=0, atol=1e-5)
    rows, _ = scorer._rows(conversations, replies * 2)
    assert [len(row.suffixes) for row in _split_long_rows(rows)] == [REPLIES_A_ROW, REPLIES_A_ROW, 3] * 2
