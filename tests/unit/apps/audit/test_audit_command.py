"""`lmgym audit`: its table, its file and its page; a policy's own replies; rewriting; and what it refuses."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from click.testing import CliRunner

from lmgym.apps.audit.audit_command import AuditConfig, run_audit
from lmgym.apps.audit.edits import Exchange, Others
from lmgym.apps.audit.recorded import EXAMPLES, Sample, read_samples
from lmgym.apps.audit.rewriting import length_by_rewriting
from lmgym.apps.audit.wordings import SYSTEMS
from lmgym.cli.main import main
from lmgym.errors import InputError
from lmgym.generation.protocol import Completion, Sampling
from lmgym.text import Conversation, Turn


def test_a_scorer_by_name_is_audited_on_the_shipped_pairs(tmp_path: Path, capsys) -> None:
    audit = run_audit("world:0", AuditConfig(max_prompts=12, edited=1, output=str(tmp_path / "out")))
    found = json.loads((tmp_path / "out/audit.json").read_text())
    assert (found["scorer"], found["prompts"], found["replies"]) == ("world:0", 12, 48)
    assert found["spread"] == audit.spread
    verdicts = [row["verdict"] for row in found["biases"]]
    assert verdicts[: len(audit.biased)] == ["biased"] * len(audit.biased)
    assert found["steadiness"]["asked_again"]["value"] == 1
    assert "a text that is in no list here (lmgym attack searches for those)" in found["not_looked_for"]
    assert {row["verdict"] for row in found["biases"]} >= {"biased", "loses, as it may"}
    said = capsys.readouterr().out
    assert "biases named, of 0.5 spreads or more: " in said
    assert "this audit has 12" in said
    page = (tmp_path / "out/audit.html").read_text()
    assert "Worst examples of each bias" in page
    assert "http://" not in page.split("<script>")[0]
    for effect in audit.biased:
        assert f'data-testid="panel-{effect.bias.replace(" ", "_").replace(chr(39), "&#39;")}"' in page


def test_the_page_shows_the_prompts_of_an_edited_prompt(tmp_path: Path) -> None:
    from lmgym.apps.audit.audit_page import audit_page
    from lmgym.apps.audit.biases import biases
    from lmgym.apps.audit.measuring import audit_scorer
    from lmgym.scoring.scorers import FunctionScorer

    scorer = FunctionScorer(
        lambda chats, replies: [len(r) + 500 * bool(c.persona) for c, r in zip(chats, replies, strict=True)]
    )
    page = audit_page("<b>mine</b>", audit_scorer(scorer, read_samples(EXAMPLES)[:14], biases(), 1), "replies")
    assert "<b>mine" not in page
    assert any(f"— with: {text} " in page for text in SYSTEMS)


def test_a_policys_own_replies_are_audited(tmp_path: Path, small_models, scorer_folders) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": f"do you like number {i}?"}) + "\n" for i in range(3)))
    config = AuditConfig(
        prompts=str(prompts),
        policy=str(small_models["llama"]),
        replies=3,
        max_new_tokens=12,
        output=str(tmp_path / "out"),
    )
    audit = run_audit(str(next(iter(scorer_folders.values()))), config)
    assert (audit.prompts, audit.replies) == (3, 9)
    assert all(effect.verdict.startswith("cannot tell: about ") for effect in audit.effects)
    assert f"replies of {small_models['llama']}" in json.loads((tmp_path / "out/audit.json").read_text())["replies_of"]


def test_prompts_without_replies_need_a_policy(tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "Why?"}\n{"prompt": "How?"}\n')
    with pytest.raises(InputError, match="needed: two or more replies to a prompt, or --policy MODEL"):
        run_audit("world:0", AuditConfig(prompts=str(prompts), output=str(tmp_path / "out")))
    assert not (tmp_path / "out").exists()
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="is a file; needed: a folder"):
        run_audit("world:0", AuditConfig(output=str(tmp_path / "file")))
    with pytest.raises(InputError, match="needed: words of 1 to 80 characters"):
        AuditConfig(words=("",))


def test_the_command_lists_its_flags_and_refuses_unknown_ones() -> None:
    assert "--prompts FILE" in CliRunner().invoke(main, ["audit", "--help"]).output
    found = CliRunner().invoke(main, ["audit", "world:0", "--promts", "x"])
    assert found.exit_code == 2
    assert "did you mean --prompts?" in found.output


@dataclass
class Rewriter:
    """Repeats a reply until it has the words that it should have, and corrects every "teh", as rewriting models do."""

    orders: list[str] = field(default_factory=list)
    ends: bool = True

    def reply(self, conversations: Sequence[Conversation], n: int, sampling: Sampling, progress=None):
        self.orders += [chat.turns[0].text for chat in conversations]
        return [[self._rewrite(chat.turns[0].text)] for chat in conversations]

    def _rewrite(self, order: str) -> Completion:
        words = order.rpartition("Reply: ")[2].replace("teh", "the").split()
        number = int(order.partition("in about ")[2].split()[0])
        said = [words[i % len(words)] for i in range(number)]
        return Completion(" ".join(said), "eos" if self.ends else "length")


def test_both_versions_are_rewritten_twice() -> None:
    chat = Conversation((Turn("user", "Where is it?"),))
    sample = Sample(chat, ("It is teh red house on hills.", "No."))
    rewriter = Rewriter()
    bias = length_by_rewriting(rewriter, [sample], 1, Sampling(temperature=0))
    made = bias.edits[""](Exchange(chat, sample.replies[0]), Others())
    assert made is not None
    short, long = made.plain.reply, made.tested.reply
    assert long.split() == ["It", "is", "the", "red", "house"] * 2 + [
        "It",
        "is",
        "the",
        "red",
    ]  # 5 words, then 14
    assert short == "It is the red house"  # 14 words, then 5
    assert "teh" not in short + long
    assert len(rewriter.orders) == 4
    assert all("Question: Where is it?" in order for order in rewriter.orders)
    assert bias.edits[""](Exchange(chat, sample.replies[1]), Others()) is None


def test_rewrites_that_do_not_end_are_left_out_and_counted(capsys) -> None:
    chat = Conversation((Turn("user", "Where is it?"),))
    sample = Sample(chat, ("It is the red house on the hill.",))
    bias = length_by_rewriting(Rewriter(ends=False), [sample], 1, Sampling(temperature=0))
    assert bias.edits[""](Exchange(chat, sample.replies[0]), Others()) is None
    assert "longer, rewritten: 0 of 1 replies; left out: 1 whose rewrites are empty" in capsys.readouterr().out
