"""The ends of turns of many templates; and that sampling, training, averages and scorers end there."""

import json
from functools import cache
from pathlib import Path

import pytest
import torch
from chat_kinds import GEMMA_TEXT, KINDS, PHI3_TEXT, QWEN, QWEN3_TEXT, Kind
from transformers import LlamaConfig, LlamaForCausalLM

from lmgym.data.truncation import tokenize_apart, tokenize_replies
from lmgym.generation.local_generation import LocalGenerator
from lmgym.generation.protocol import Sampling
from lmgym.models.forward.policies import PolicyModel, load_policy
from lmgym.text import Conversation, Turn
from lmgym.turn_ends import turn_end_notes, turn_ends
from preferences.config import LossConfig
from preferences.examples import PairExample
from preferences.objectives import Pairwise, ReplyModel
from sft.conversations import TrainingChat
from sft.objectives import NextToken
from sft.probes import HeldOutProbe
from sft.tokenization import tokenize_chats

LLAMA31_TEXT = r"""{{ bos_token }}{%- for m in messages -%}
{%- if m.tool_calls -%}
{%- if m.tool_calls | length > 1 -%}{{ raise_exception('one call at a time') }}{%- endif -%}
{%- set call = m.tool_calls[0].function -%}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{{- '{"name": "' + call.name + '", "parameters": ' + (call.arguments | tojson) + '}<|eom_id|>' }}
{%- else -%}{{ '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n' + m.content + '<|eot_id|>' }}{%- endif -%}
{%- endfor -%}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' if add_generation_prompt else '' }}"""
GPT_OSS_TEXT = r"""{%- for m in messages -%}{%- if m.role == 'assistant' -%}
{%- if m.thinking and loop.last -%}{{ '<|start|>assistant<|channel|>analysis<|message|>' + m.thinking + '<|end|>' }}
{%- endif -%}
{%- if m.tool_calls -%}{%- set call = m.tool_calls[0].function -%}
{{ '<|start|>assistant to=' + call.name + '<|channel|>commentary<|message|>' + (call.arguments | tojson) + '<|call|>' }}
{%- else -%}{{ '<|start|>assistant<|channel|>final<|message|>' + m.content }}
{{- '<|return|>' if loop.last else '<|end|>' }}{%- endif -%}
{%- else -%}{{ '<|start|>' + m.role + '<|message|>' + m.content + '<|end|>' }}{%- endif -%}
{%- endfor -%}{{ '<|start|>assistant' if add_generation_prompt else '' }}"""
GLM_TEXT = r"""[gMASK]{%- for m in messages -%}{{ '<|' + ('observation' if m.role == 'tool' else m.role) + '|>' }}
{%- for call in m.tool_calls or [] -%}
{{ '<tool_call>' + call.function.name + (call.function.arguments | tojson) + '</tool_call>' }}{%- endfor -%}
{{- m.content }}{%- endfor -%}{{ '<|assistant|>' if add_generation_prompt else '' }}"""
ALPACA_TEXT = r"""{%- for m in messages -%}
{{ ('### Instruction:\n' if m.role == 'user' else '### Response:\n') + m.content + '\n\n' }}
{%- endfor -%}{{ '### Response:\n' if add_generation_prompt else '' }}"""
USER_TEXT = r"""{%- for m in messages -%}{{ ('USER: ' if m.role == 'user' else 'ASSISTANT: ') + m.content + ' ' }}
{%- endfor -%}{{ 'ASSISTANT:' if add_generation_prompt else '' }}"""
BACKEND, EOS = QWEN["backend"], "<|endoftext|>"
HEADERS, IM = ("<|start_header_id|>", "<|end_header_id|>"), ("<|im_start|>", "<|im_end|>")
CHATML = Kind("chatml of a base model", BACKEND, QWEN3_TEXT, EOS, marks=(*IM, "<tool_call>", "</tool_call>"))
GEMMA = Kind("gemma's layout", BACKEND, GEMMA_TEXT, "<eos>", "<bos>", ("<start_of_turn>", "<end_of_turn>"))
PHI = Kind("phi 3's layout", BACKEND, PHI3_TEXT, EOS, marks=("<|user|>", "<|assistant|>", "<|end|>"))
LLAMA31 = Kind("llama 3.1", BACKEND, LLAMA31_TEXT, "<|end_of_text|>", "<s>", (*HEADERS, "<|eot_id|>", "<|eom_id|>"))
OWN = Kind("of our own", BACKEND, PHI3_TEXT.replace("<|end|>", "[stop]"), EOS, marks=("[stop]",))
FIVE = (CHATML, GEMMA, PHI, LLAMA31, OWN)
OSS_MARKS = ("<|start|>", "<|end|>", "<|return|>", "<|call|>", "<|channel|>", "<|message|>")
GLM_MARKS = ("<|user|>", "<|assistant|>", "<|observation|>", "<tool_call>", "</tool_call>")
ENDS = {
    CHATML: ("<|im_end|>", EOS),
    GEMMA: ("<end_of_turn>", "<eos>"),
    PHI: ("<|end|>", EOS),
    OWN: ("[stop]", EOS),
    LLAMA31: ("<|eot_id|>", "<|eom_id|>", "<|end_of_text|>"),
    Kind("gpt-oss", BACKEND, GPT_OSS_TEXT, EOS, marks=OSS_MARKS): ("<|return|>", "<|call|>", EOS),
    Kind("glm", BACKEND, GLM_TEXT, EOS, marks=GLM_MARKS): ("<|user|>", "<|observation|>", EOS),
    Kind("one that raises", BACKEND, "{{ raise_exception('no') }}", EOS): (EOS,),
}
CHAT = Conversation((Turn("user", "two and two?"),))
REPLIES = ("It is 4.", "five,\nor so")


@cache
def made(kind: Kind):
    """A tokenizer, and a model whose next token depends on those before."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = LlamaConfig(vocab_size=len(kind.tokenizer), **sizes, eos_token_id=kind.tokenizer.eos_token_id)
    model = LlamaForCausalLM(config).eval()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.3)
    return kind.tokenizer, model


@pytest.mark.parametrize("kind", ENDS, ids=lambda kind: kind.name)
def test_the_ends_of_a_turn_are_what_the_template_writes_in_each_place_and_the_eos(kind: Kind) -> None:
    ends = turn_ends(kind.tokenizer)
    assert (ends.tokens, ends.stops) == (ENDS[kind], ())
    assert ends.ids == tuple(kind.tokenizer.convert_tokens_to_ids(token) for token in ends.tokens)


def test_where_the_template_ends_turns_with_the_eos_nothing_is_added_and_nothing_said() -> None:
    for kind in KINDS:
        if kind.eos and not kind.name.startswith(("gemma", "phi")):
            assert (turn_ends(kind.tokenizer).tokens, turn_end_notes(kind.tokenizer)) == ((kind.eos,), [])


@pytest.mark.parametrize(("template", "stop"), [(ALPACA_TEXT, "### Instruction:"), (USER_TEXT, "USER:")])
def test_a_template_without_a_token_for_it_has_the_text_before_the_next_turn_as_a_stop_string(template, stop) -> None:
    kind = Kind("plain text", BACKEND, template, EOS)
    ends = turn_ends(kind.tokenizer)
    assert (ends.tokens, ends.stops, ends.in_template) == ((EOS,), (stop,), False)
    [note] = turn_end_notes(kind.tokenizer)
    assert note == (
        f"the chat template of plain text writes no token where a turn ends: a reply ends with its eos, {EOS}; "
        f"generation stops before '{stop}', too, where the next turn begins"
    )


def test_ends_follow_a_template_that_is_exchanged() -> None:
    tokenizer = Kind("exchanged", BACKEND, PHI3_TEXT, EOS, marks=("<|end|>", "[stop]")).tokenizer
    assert turn_ends(tokenizer).tokens[0] == "<|end|>"
    tokenizer.chat_template = PHI3_TEXT.replace("<|end|>", "[stop]")
    assert turn_ends(tokenizer).tokens[0] == "[stop]"


@pytest.mark.parametrize("kind", FIVE, ids=lambda kind: kind.name)
def test_sampling_ends_at_the_turn_as_generate_does_with_those_ids(kind: Kind, tmp_path: Path) -> None:
    tokenizer, model = made(kind)
    [prompt] = tokenize_apart(tokenizer, [CHAT], [REPLIES], 500)
    ids = [*prompt.prefix, prompt.suffixes[0][0]]
    free = LocalGenerator(model, tokenizer).generate([ids], 1, Sampling(12, temperature=0, ends_at_eos=False))[0][0]
    end, place = turn_ends(tokenizer).ids[0], next(i for i in range(4, 12) if free.ids[i] not in free.ids[:i])
    head = model.lm_head.weight.data
    head[[end, free.ids[place]]] = head[[free.ids[place], end]]  # now that place has the end of the turn
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    loaded = load_policy(str(tmp_path), tokenizer)
    # what is saved after training tells transformers and vLLM the same
    stops = loaded.generation_config.eos_token_id
    assert set(turn_ends(tokenizer).ids) == set(stops)
    theirs = loaded.generate(torch.tensor([ids]), do_sample=False, max_new_tokens=12, pad_token_id=0)[0, len(ids) :]
    [[reply]] = LocalGenerator(model, tokenizer).generate([ids], 1, Sampling(12, temperature=0))
    assert list(reply.ids) == theirs.tolist()
    assert (len(reply.ids), reply.ids[-1], reply.finish_reason) == (place + 1, end, "eos")
    assert reply.text == tokenizer.decode(reply.ids[:-1])


@pytest.mark.parametrize("kind", FIVE, ids=lambda kind: kind.name)
def test_perplexity_and_mean_log_probabilities_are_those_of_the_reply_up_to_the_end_of_its_turn(kind: Kind) -> None:
    tokenizer, model = made(kind)
    end = tokenizer.convert_tokens_to_ids(ENDS[kind][0])
    prompt = tokenizer(
        tokenizer.apply_chat_template(
            [{"role": "user", "content": CHAT.turns[0].text}], tokenize=False, add_generation_prompt=True
        ),
        add_special_tokens=False,
    ).input_ids

    def plain(reply: str) -> torch.Tensor:
        """Log-probabilities of a reply's tokens and the end of its turn, by transformers alone."""
        ids = [*prompt, *tokenizer(thought + reply, add_special_tokens=False).input_ids, end]
        with torch.no_grad():
            odds = model(torch.tensor([ids])).logits[0].log_softmax(-1)
        return odds[len(prompt) - 1 : -1].gather(1, torch.tensor(ids[len(prompt) :])[:, None])[:, 0]

    thought = "<think>\n\n</think>\n\n" if kind is CHATML else ""
    expected = [plain(reply) for reply in REPLIES]
    turns = (*CHAT.turns, Turn("bot", REPLIES[0]))
    rows, _ = tokenize_chats([TrainingChat(Conversation(turns), (1,), file="f", line=1)], tokenizer, 500)
    probe = HeldOutProbe(rows, NextToken(PolicyModel(model), 0), 1000)
    figures = probe.measure(PolicyModel(model).eval(), torch.device("cpu"))
    assert figures["perplexity"] == pytest.approx(float((-expected[0].mean()).exp()), rel=1e-4)

    [replies] = tokenize_apart(tokenizer, [CHAT], [REPLIES], 500)
    both = ReplyModel(PolicyModel(model).eval(), turn_ends(tokenizer).ids[0])
    batch = Pairwise(both, LossConfig("simpo")).collate([(PairExample(replies, 0, CHAT, "f", 1), True)])
    assert batch["lengths"].tolist() == [len(one) for one in expected]
    sums = both.sums(both.policy, batch, torch.device("cpu"))
    assert sums.tolist() == pytest.approx([float(one.sum()) for one in expected], rel=1e-4)


def test_each_turn_of_a_conversation_is_learned_up_to_its_end_and_nothing_behind_it() -> None:
    turns = (*CHAT.turns, Turn("bot", "4"), Turn("user", "sure?"), Turn("bot", "yes"))
    for kind in FIVE:
        chat = TrainingChat(Conversation(turns), (1, 3), file="f", line=1)
        rows, rejections = tokenize_chats([chat], kind.tokenizer, 500)
        end, text = ENDS[kind][0], "".join(kind.decoded(row.targets) for row in rows)
        assert (rejections, text.replace("<think>\n\n</think>\n\n", "")) == ([], f"4{end}yes{end}"), kind.name


def test_a_reply_ends_with_what_the_template_writes_behind_a_call_of_a_tool() -> None:
    call = {"type": "function", "function": {"name": "sum", "arguments": {"a": 2}}}
    turn = Turn("bot", "", json.dumps({"tool_calls": [call]}))
    rows, _ = tokenize_chats(
        [TrainingChat(Conversation((*CHAT.turns, turn)), (1,), file="f", line=1)], LLAMA31.tokenizer, 500
    )
    assert LLAMA31.decoded(rows[0].targets) == '{"name": "sum", "parameters": {"a": 2}}<|eom_id|>'
    [row] = tokenize_apart(LLAMA31.tokenizer, [CHAT], [(turn, "4")], 500)
    assert [LLAMA31.decoded([one]) for one in row.ends] == ["<|eom_id|>", "<|eot_id|>"]


def test_a_reply_that_holds_an_end_of_a_turn_is_refused() -> None:
    for kind in FIVE:
        found = tokenize_apart(kind.tokenizer, [CHAT], [(f"4 {ENDS[kind][0]} 5",)], 500)
        assert found == [f"a reply that holds {ENDS[kind][0]}, which ends a reply; needed: text without it"]


def test_a_scorer_reads_up_to_the_end_of_the_turn_or_the_whole_text() -> None:
    for to_end, behind in ((True, ""), (False, f"\n{EOS}")):
        [row] = tokenize_replies(PHI.tokenizer, [CHAT], [REPLIES], 500, as_sampled=to_end)
        for suffix, reply in zip(row.suffixes, REPLIES, strict=True):
            assert PHI.decoded(row.prefix + suffix).endswith(f"{reply}<|end|>{behind}")


def test_sampling_stops_before_the_text_of_the_next_turn_where_no_token_ends_one() -> None:
    kind = Kind("of text", BACKEND, USER_TEXT, EOS)
    tokenizer, model = made(kind)
    [ids] = tokenizer(["x"]).input_ids
    generator = LocalGenerator(model, tokenizer)
    [[free]] = generator.generate([ids], 1, Sampling(30, temperature=0, ends_at_eos=False))
    generator.stops = (free.text[8:11],)
    [[reply]] = generator.generate([ids], 1, Sampling(30, temperature=0))
    assert (reply.finish_reason, reply.text) == ("stop", free.text[: free.text.index(free.text[8:11])])
