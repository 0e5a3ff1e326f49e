"""Ensembles: combinations by hand, heads of one trunk, folders of members, and adapters that share a base."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForSequenceClassification

from lmgym.errors import InputError
from lmgym.models.loading import load_classifier, load_tokenizer
from lmgym.models.lora import add_lora
from lmgym.models.saving import save_classifier
from lmgym.scoring.combinations import combine, error_correlation, spread
from lmgym.scoring.ensembles import AdapterMember, Ensemble, load_ensemble, write_ensemble
from lmgym.scoring.named_scorers import load_scorer
from lmgym.scoring.scorers import FunctionScorer, HFScorer
from lmgym.text import Conversation, Turn

CHAT = Conversation((Turn("user", "do you like soup on sundays?"),))
CHATS = [CHAT, CHAT, Conversation((Turn("user", "jazz or opera?"),)), CHAT]
REPLIES = ["yes, and on mondays too.", "no.", "jazz, always.", "go away."]


def constant(*values: float) -> FunctionScorer:
    return FunctionScorer(lambda *_: list(values))


def test_an_ensemble_combines_scores_as_by_hand() -> None:
    scorers = [constant(1.0, 0.0), constant(2.0, 0.0), constant(6.0, 3.0)]
    # deviations -2, -1, 3 and -1, -1, 2: variances 14 / 3 and 2
    expected = {
        "mean": [3.0, 1.0],
        "min": [1.0, 0.0],
        "mean-std": [3 - 2.160247, 1 - 1.414214],
        "mean-1std": [3 - 2.160247, 1 - 1.414214],
        "mean-.5std": [3 - 1.080123, 1 - 0.707107],
        "mean-2.5std": [3 - 5.400617, 1 - 3.535534],
    }
    for how, values in expected.items():
        assert Ensemble(scorers, how).score([CHAT] * 2, ["a", "b"]).tolist() == pytest.approx(values, abs=1e-6), how
    members = Ensemble(scorers, "min", means=[1.0, 0.0, 2.0]).score_members([CHAT] * 2, ["a", "b"])
    assert members.tolist() == [[0.0, -1.0], [2.0, 0.0], [4.0, 1.0]]


def test_an_ensemble_of_one_is_that_one() -> None:
    for how in ("mean", "min", "mean-3std"):
        assert Ensemble([constant(1.0, -2.0)], how).score([CHAT] * 2, ["a", "b"]).tolist() == [1.0, -2.0]


def test_an_ensemble_of_none_and_an_unknown_rule_are_refused() -> None:
    with pytest.raises(InputError, match="0 scorers"):
        Ensemble([])
    for how in ("median", "mean-std2", "mean-", "mean--1std", "mean-infstd"):
        with pytest.raises(InputError, match="is unknown; needed: mean, min"):
            Ensemble([constant(1.0)], how)
        with pytest.raises(InputError, match="combines no scores"):
            combine(torch.zeros(2, 3), how)


def test_the_correlation_of_errors_is_the_mean_over_pairs_of_members() -> None:
    errors = torch.tensor([[1.0, 2.0, 3.0], [2.0, 4.0, 6.0], [3.0, 2.0, 1.0]])
    assert error_correlation(errors) == pytest.approx((1 - 1 - 1) / 3)
    assert error_correlation(errors[:1]) is None
    assert error_correlation(errors[:, :2]) is None
    assert error_correlation(torch.tensor([[1.0, 2.0, 3.0], [5.0, 5.0, 5.0]])) is None
    assert spread(torch.tensor([[1.0, 0.0], [3.0, 0.0]])).tolist() == [1.0, 0.0]


@pytest.fixture(scope="module")
def headed(small_models, tmp_path_factory) -> Path:
    """A scorer of 3 heads, with a mean each."""
    folder, tokenizer = tmp_path_factory.mktemp("heads") / "model", load_tokenizer(str(small_models["llama"]))
    model, _ = load_classifier(str(small_models["llama"]), tokenizer, num_labels=3)
    settings = {"reduce": "mean", "max_length": 200, "means": [0.5, -1.0, 0.25]}
    save_classifier(model, model.state_dict(), folder, tokenizer, settings)
    return folder


def logits_of(folder: Path) -> torch.Tensor:
    """By transformers alone, [heads, replies]."""
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer, rows = load_tokenizer(str(folder)), []
    for chat, reply in zip(CHATS, REPLIES, strict=True):
        messages = [{"role": "user", "content": chat.turns[0].text}, {"role": "assistant", "content": reply}]
        ids = tokenizer.apply_chat_template(messages, return_dict=False)
        with torch.no_grad():
            rows.append(model(torch.tensor([ids])).logits[0])
    return torch.stack(rows, 1)


def test_heads_are_read_less_their_means_and_combined_as_the_path_says(headed: Path) -> None:
    members = logits_of(headed) - torch.tensor([[0.5], [-1.0], [0.25]])
    assert spread(members).min() > 0.01
    for path, how in (("", "mean"), ("#mean", "mean"), ("#min", "min"), ("#mean-2std", "mean-2std")):
        scorer = load_scorer(f"{headed}{path}")
        assert isinstance(scorer, HFScorer)
        torch.testing.assert_close(scorer.score(CHATS, REPLIES), combine(members, how), rtol=0, atol=1e-5)
        torch.testing.assert_close(scorer.score_members(CHATS, REPLIES), members, rtol=0, atol=1e-5)
        torch.testing.assert_close(  # one conversation, whose prefix is kept
            scorer.score_members(CHATS[:2], REPLIES[:2]), members[:, :2], rtol=0, atol=1e-5
        )


def test_what_has_no_heads_is_not_combined(headed: Path, scorer_folders) -> None:
    with pytest.raises(InputError, match=r"#min of the scorer .* needed: a scorer by lmgym train reward --heads"):
        load_scorer(f"{scorer_folders['llama']}#min")
    with pytest.raises(InputError, match="'median' behind the scorer"):
        load_scorer(f"{headed}#median")
    with pytest.raises(InputError, match=r"'logit' does not suit a scorer of 3 output"):
        load_scorer(f"{headed}#logit")
    assert HFScorer.load(scorer_folders["llama"]).score_members(CHATS, REPLIES).shape == (0, 4)


@pytest.fixture
def members(scorer_folders, small_models, tmp_path: Path) -> list[Path]:
    """Two runs with a whole model each, whose means are saved."""
    made = []
    for number in range(2):
        folder, tokenizer = tmp_path / f"run{number}", load_tokenizer(str(small_models["gpt2"]))
        model, _ = load_classifier(str(small_models["gpt2"]), tokenizer, seed=number)
        settings = {"reduce": "logit", "max_length": 200, "moments": [0.5 * number, 1.0], "loss": "Bradley-Terry loss"}
        save_classifier(model, model.state_dict(), folder / "model", tokenizer, settings)
        made.append(folder)
    return made


def test_an_ensembles_folder_names_members_by_relative_paths_and_can_be_moved(members, tmp_path: Path) -> None:
    folder = write_ensemble([str(member) for member in members], str(tmp_path / "both"), "min")
    assert json.loads((folder / "ensemble.json").read_text()) == {
        "members": ["../run0/model", "../run1/model"], "combine": "min",
    }  # fmt: skip
    alone = torch.stack([HFScorer.load(member / "model").score(CHATS, REPLIES) for member in members])
    expected = alone - torch.tensor([[0.0], [0.5]])
    (tmp_path / "elsewhere").mkdir()
    for name in ("run0", "run1", "both"):
        shutil.move(tmp_path / name, tmp_path / "elsewhere" / name)
    moved = tmp_path / "elsewhere/both"
    assert torch.equal(load_scorer(str(moved)).score(CHATS, REPLIES), expected.min(0).values)
    assert torch.equal(load_scorer(f"{moved}#mean-std").score(CHATS, REPLIES), combine(expected, "mean-std"))


def test_what_is_no_ensemble_is_refused(members, tmp_path: Path) -> None:
    runs = [str(member) for member in members]
    with pytest.raises(InputError, match=r"1 scorer\(s\); needed: at least 2"):
        write_ensemble(runs[:1], str(tmp_path / "x"))
    with pytest.raises(InputError, match="--combine 'max'; needed: mean"):
        write_ensemble(runs, str(tmp_path / "x"), "max")
    with pytest.raises(InputError, match="does not exist"):
        write_ensemble([*runs, str(tmp_path / "nothing")], str(tmp_path / "x"))
    with pytest.raises(InputError, match="holds something else"):
        write_ensemble(runs, runs[0])
    settings = members[1] / "model/scorer.json"
    settings.write_text(settings.read_text().replace("Bradley-Terry", "squared error"))
    with pytest.raises(InputError, match="differ in kind"):
        write_ensemble(runs, str(tmp_path / "x"))
    (tmp_path / "x").mkdir()
    for damaged in ("[", "[]", "{}", '{"members": []}', '{"members": ["a"], "combine": "max"}'):
        (tmp_path / "x/ensemble.json").write_text(damaged)
        with pytest.raises(InputError, match=r"ensemble.json.*write it again with lmgym ensemble"):
            load_ensemble(str(tmp_path / "x"))


@pytest.fixture
def adapted(small_models, tmp_path: Path) -> Callable[[str], list[Path]]:
    """Three runs that trained an adapter each on one base, as a run saves them: merged, and apart in adapter/."""

    def make(family: str) -> list[Path]:
        source, folders = str(small_models[family]), []
        for seed in range(3):
            tokenizer = load_tokenizer(source)
            model, _ = load_classifier(source, tokenizer, seed=seed)
            torch.manual_seed(seed)
            model = add_lora(model, 2, 4, 0.0)
            for name, parameter in model.named_parameters():
                if "lora_B" in name:
                    torch.nn.init.normal_(parameter, std=0.3)  # as after a training
            saved = {"reduce": "logit", "max_length": 200, "moments": [0.0, 1.0], "loss": "Bradley-Terry loss"}
            save_classifier(model, model.state_dict(), tmp_path / f"run{seed}/model", tokenizer, saved)
            folders.append(tmp_path / f"run{seed}/model")
        return folders

    return make


@pytest.mark.parametrize("family", ["llama", "gpt2", "bert"])
def test_adapters_on_one_base_score_as_their_members_loaded_apart(family: str, adapted, tmp_path: Path) -> None:
    folders = adapted(family)
    apart = torch.stack([HFScorer.load(folder).score(CHATS, REPLIES) for folder in folders])
    assert spread(apart).min() > 0.01
    ensemble = load_scorer(str(write_ensemble([str(f) for f in folders], str(tmp_path / "e"))))
    assert isinstance(ensemble, Ensemble)
    assert all(isinstance(member, AdapterMember) for member in ensemble.scorers)
    for _ in range(2):  # members are switched: the second time each keeps nothing of the others
        torch.testing.assert_close(ensemble.score_members(CHATS, REPLIES), apart, rtol=0, atol=2e-5)
    for chat, reply, column in zip(CHATS, REPLIES, apart.T, strict=True):  # one by one, with a prefix a member
        torch.testing.assert_close(ensemble.score_members([chat], [reply])[:, 0], column, rtol=0, atol=2e-5)


def test_the_base_of_several_adapters_is_held_once(adapted, tmp_path: Path, small_models) -> None:
    folders = adapted("llama")
    ensemble = load_ensemble(str(write_ensemble([str(f) for f in folders], str(tmp_path / "e"))))
    weights = {id(p): p.numel() for member in ensemble.scorers for p in member.scorer.model.parameters()}
    base = sum(p.numel() for p in HFScorer.load(folders[0]).model.parameters())
    of_adapter = sum(len_of(folder / "adapter/adapter_model.safetensors") for folder in folders)
    # each head is in its adapter; the base's own is there too, unused
    assert sum(weights.values()) == base + of_adapter
    assert sum(weights.values()) < 2 * base
    shutil.rmtree(tmp_path / "run1/model/adapter")  # one whole model among them: all are loaded whole
    apart = load_ensemble(str(tmp_path / "e"))
    weights = {id(p): p.numel() for member in apart.scorers for p in member.model.parameters()}
    assert sum(weights.values()) == 3 * base


def len_of(path: Path) -> int:
    from safetensors.torch import load_file

    return sum(weight.numel() for weight in load_file(path).values())
