"""Small tokenizers with chat templates, of the kinds of well-known models, and random conversations for them.

Each has the parts of its model's tokenizer (normalizer, pre-tokenizer, decoder, marks) with pieces learned from a few
hundred lines, and a template that treats blanks, roles, marks and earlier thoughts as the model's does.
"""

import json
import random
import unicodedata
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from lmgym.text import Conversation, Turn, ensure_template, tokenize_texts

ALTERNATE = "{{ raise_exception('turns must alternate') if (turn.role == 'user') != (loop.index0 is even) else '' }}"
WITH_SYSTEM = "{%- if messages and messages[0].role == 'system' -%}"
NO_SYSTEM = WITH_SYSTEM + "{{ raise_exception('no system message') }}{%- endif -%}"
SYSTEM_APART = "{%- set ns = namespace(system='', turns=messages) -%}" + WITH_SYSTEM
SYSTEM_APART += "{%- set ns.system = messages[0].content -%}{%- set ns.turns = messages[1:] -%}{%- endif -%}"


def plain(masked: str) -> str:
    """A template without the blocks of transformers' mask."""
    return masked.replace("{% generation %}", "").replace("{% endgeneration %}", "")


LLAMA2_TEXT = (
    SYSTEM_APART + "{%- for turn in ns.turns -%}" + ALTERNATE + "{%- if turn.role == 'user' -%}"
    r"{{ bos_token + '[INST] ' }}{{ '<<SYS>>\n' + ns.system + '\n<</SYS>>\n\n' if loop.first and ns.system else '' }}"
    "{{ turn.content.strip() + ' [/INST]' }}{%- else -%}{% generation %}{{ ' ' + turn.content.strip() + ' ' }}"
    "{% endgeneration %}{{ eos_token }}{%- endif -%}{%- endfor -%}"
)
LLAMA3_TEXT = (
    "{{ bos_token }}{%- for turn in messages -%}{{ '<|start_header_id|>' + turn.role + '<|end_header_id|>' }}"
    r"{{ '\n\n' + turn.content.strip() + '<|eot_id|>' }}{%- endfor -%}"
    r"{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' if add_generation_prompt else '' }}"
)
MISTRAL_TEXT = (  # its marks are tokens
    f"{NO_SYSTEM}{{{{ bos_token }}}}{{%- for turn in messages -%}}{ALTERNATE}"
    "{%- if turn.role == 'user' -%}{{ '[INST] ' + turn.content + '[/INST]' }}"
    "{%- else -%}{{ ' ' + turn.content + eos_token }}{%- endif -%}{%- endfor -%}"
)
MISTRAL_FOLDS_TEXT = (  # its marks are text, and no blank parts prompt and reply
    f"{SYSTEM_APART}{{{{ bos_token }}}}{{%- for turn in ns.turns -%}}{ALTERNATE}"
    r"{%- if turn.role == 'user' -%}{{ '[INST] ' + (ns.system + '\n\n' if loop.first and ns.system else '') }}"
    "{{ turn.content + ' [/INST]' }}{%- else -%}{{ turn.content + eos_token }}{%- endif -%}{%- endfor -%}"
)


ZEPHYR_TEXT = (
    r"{%- for turn in messages -%}{{ '<|' + turn.role + '|>\n' }}{%- if turn.role == 'assistant' -%}"
    "{% generation %}{{ turn.content }}{% endgeneration %}{%- else -%}{{ turn.content }}{%- endif -%}"
    r"{{ eos_token + '\n' }}{%- endfor -%}{{ '<|assistant|>\n' if add_generation_prompt else '' }}"
)
GEMMA_TEXT = (
    f"{NO_SYSTEM}{{{{ bos_token }}}}{{%- for turn in messages -%}}{ALTERNATE}"
    r"{{ '<start_of_turn>' + ('model' if turn.role == 'assistant' else turn.role) + '\n' + turn.content.strip() }}"
    r"{{ '<end_of_turn>\n' }}{%- endfor -%}{{ '<start_of_turn>model\n' if add_generation_prompt else '' }}"
)


CHATML_TEXT = (  # with a system message of its own where a conversation has none
    WITH_SYSTEM + r"{%- else -%}{{ '<|im_start|>system\nBe of help.<|im_end|>\n' }}{%- endif -%}"
    r"{%- for turn in messages -%}{{ '<|im_start|>' + turn.role + '\n' }}{%- if turn.role == 'assistant' -%}"
    "{% generation %}{{ turn.content + '<|im_end|>' }}{% endgeneration %}{%- else -%}{{ turn.content + '<|im_end|>' }}"
    r"{%- endif -%}{{ '\n' }}{%- endfor -%}{{ '<|im_start|>assistant\n' if add_generation_prompt else '' }}"
)
QWEN3_TEXT = r"""{%- if tools -%}{{ '<|im_start|>system\n' }}
{%- if messages[0].role == 'system' -%}{{ messages[0].content + '\n\n' }}{%- endif -%}{{ '# Tools\n\n<tools>' }}
{%- for tool in tools -%}{{ '\n' + (tool | tojson) }}{%- endfor -%}{{ '\n</tools>\n\nCall one so: <tool_call>\n' }}
{{- '{"name": ..., "arguments": ...}\n</tool_call><|im_end|>\n' }}
{%- elif messages[0].role == 'system' -%}{{ '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}
{%- endif -%}
{%- set ns = namespace(query=-1) -%}
{%- for turn in messages -%}{%- if turn.role == 'user' -%}{%- set ns.query = loop.index0 -%}{%- endif -%}{%- endfor -%}
{%- for turn in messages -%}
{%- if turn.role == 'user' -%}{{ '<|im_start|>user\n' + turn.content + '<|im_end|>\n' }}
{%- elif turn.role == 'tool' -%}
{%- if loop.previtem.role != 'tool' -%}{{ '<|im_start|>user' }}{%- endif -%}
{{ '\n<tool_response>\n' + turn.content + '\n</tool_response>' }}
{%- if loop.last or loop.nextitem.role != 'tool' -%}{{ '<|im_end|>\n' }}{%- endif -%}
{%- elif turn.role == 'assistant' -%}
{%- set text, thought = turn.content or '', '' -%}
{%- if turn.reasoning_content is string -%}{%- set thought = turn.reasoning_content -%}
{%- elif '</think>' in text -%}
{%- set thought = text.split('</think>')[0].split('<think>')[-1] -%}
{%- set text = text.split('</think>')[-1].lstrip('\n') -%}
{%- endif -%}
{{ '<|im_start|>assistant\n' }}
{%- if loop.index0 > ns.query and (loop.last or thought) -%}
{{ '<think>\n' + thought.strip('\n') + '\n</think>\n\n' + text.lstrip('\n') }}
{%- else -%}{{ text }}{%- endif -%}
{%- for call in turn.tool_calls or [] -%}{%- if text or not loop.first -%}{{ '\n' }}{%- endif -%}
{{ '<tool_call>\n{"name": "' + call.function.name + '", "arguments": ' + (call.function.arguments | tojson) }}
{{- '}\n</tool_call>' }}{%- endfor -%}
{{ '<|im_end|>\n' }}
{%- endif -%}{%- endfor -%}
{{ '<|im_start|>assistant\n' if add_generation_prompt else '' }}"""
PHI3_TEXT = (
    r"{%- for turn in messages -%}{{ '<|' + turn.role + '|>\n' + turn.content + '<|end|>\n' }}{%- endfor -%}"
    r"{{ '<|assistant|>\n' if add_generation_prompt else eos_token }}"
)


R1_TEXT = (  # every earlier thought is lost
    SYSTEM_APART + "{{ bos_token + ns.system }}{%- for turn in ns.turns -%}{%- if turn.role == 'user' -%}"
    "{{ '<｜User｜>' + turn.content }}{%- else -%}{{ '<｜Assistant｜>' + turn.content.split('</think>')[-1] }}"
    "{{ eos_token }}{%- endif -%}{%- endfor -%}{{ '<｜Assistant｜>' if add_generation_prompt else '' }}"
)
R1_THINKS_TEXT = R1_TEXT + r"{{ '<think>\n' if add_generation_prompt else '' }}"
VICUNA_TEXT = (  # its prompt ends with a blank, which the whole text has in the reply's first token
    r"{%- for turn in messages -%}{%- if turn.role == 'assistant' -%}{{ 'ASSISTANT: ' + turn.content + eos_token }}"
    r"{%- else -%}{{ ('USER: ' if turn.role == 'user' else '') + turn.content + ' ' }}{%- endif -%}{%- endfor -%}"
    "{{ 'ASSISTANT: ' if add_generation_prompt else '' }}"
)

TEXTS = r"""The soup is hot, and I don't know why it isn't hotter. What about tea? She'll have it at 7:45 p.m.
def total(rows):\n    return sum(row["price"] * 1.2 for row in rows if row)  # 42 of them
for (int i = 0; i < 10; i++) {\n\tprintf("%d", i);\n}
| name | age |\n|---|---|\n| Ada | 36 |\n\n* one\n* two\n\n1. first\n2. second
On 2024-05-06 there were 3,141 people; 27% of them said "yes", 1234567 said no.
Der Hund läuft über die Straße, und Zoë isst naïve Crème brûlée à la carte. ¿Qué tal, señor?
Привет, мир! Как дела сегодня?\nХорошо, спасибо.
日本語のテキストと漢字、それからカタカナ。\n今日は良い天気ですね。
你好，世界。今天天气很好。 한국어 문장도 있습니다. Ελληνικά και άλλα.
שלום עולם ومرحبا بالعالم नमस्ते दुनिया สวัสดีชาวโลก
Hello! I can help you with that. Let me think about the first step, and then the second one.
The user asked the assistant about the model; the system said to be of help, and to call a tool.
👍 great 😀 thanks 👩‍👩‍👧 ∑ x² ≤ y — “quotes” …
"""


@cache
def corpus() -> tuple[str, ...]:
    """A few hundred texts."""
    rng, texts = random.Random(0), [line.replace("\\n", "\n") for line in TEXTS.splitlines()]
    words = " ".join(texts).split(" ")
    return tuple(texts * 20 + [" ".join(rng.choices(words, k=12)) for _ in range(200)])


@cache
def pieces(kind: str) -> tuple[list[str], list[tuple[str, str]]]:
    """(pieces, merges) of a BPE: of "bytes", or split by WORDS; or with ▁ of "lines", or with "breaks" too."""
    lines = [line for text in corpus() for line in text.split("\n")] if kind == "lines" else corpus()
    backend, alphabet = Tokenizer(models.BPE()), pre_tokenizers.ByteLevel.alphabet()
    if kind in ("bytes", "words"):
        plain_bytes = [pre_tokenizers.ByteLevel(add_prefix_space=False)]
        backend.pre_tokenizer = pre_tokenizers.Sequence(BY_WORDS["1"] if kind == "words" else plain_bytes)
        trainer = trainers.BpeTrainer(vocab_size=650, initial_alphabet=alphabet, show_progress=False)
    else:  # what is not in the alphabet is bytes
        apart = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.Split(Regex("\n+"), "isolated")]
        backend.pre_tokenizer = pre_tokenizers.Sequence([*apart, pre_tokenizers.Metaspace(prepend_scheme="never")])
        trainer = trainers.BpeTrainer(vocab_size=500, limit_alphabet=110, show_progress=False)
    backend.train_from_iterator(lines, trainer)
    model = json.loads(backend.to_str())["model"]
    return sorted(model["vocab"], key=model["vocab"].get), [tuple(pair) for pair in model["merges"]]


BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
FROM_BLANKS = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
WITHOUT_FIRST = [*FROM_BLANKS, decoders.Strip(" ", 1, 0)]
TO_BLANKS = normalizers.Replace(" ", "▁")
LEGACY = normalizers.Sequence([normalizers.Prepend("▁"), TO_BLANKS])


def sentencepiece(normalizer=None, blanks=None, learned: str = "lines", decoder=WITHOUT_FIRST) -> Tokenizer:
    """A BPE of characters that falls back to bytes."""
    found, merges = pieces(learned)
    vocabulary = {piece: i for i, piece in enumerate(["<unk>", *BYTES, *found])}
    backend = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    backend.normalizer, backend.pre_tokenizer, backend.decoder = normalizer, blanks, decoders.Sequence(decoder)
    return backend


legacy = partial(sentencepiece, LEGACY)
first = partial(sentencepiece, None, pre_tokenizers.Metaspace(prepend_scheme="first", split=False))
always = partial(sentencepiece, None, pre_tokenizers.Metaspace(prepend_scheme="always", split=False))
gemma = partial(sentencepiece, TO_BLANKS, pre_tokenizers.Split(" ", "merged_with_previous"), "breaks", FROM_BLANKS)


def unigram() -> Tokenizer:
    """T5's, with a fallback to bytes."""
    backend = Tokenizer(models.Unigram())
    backend.pre_tokenizer = blanks = pre_tokenizers.Metaspace(prepend_scheme="always")
    trainer = trainers.UnigramTrainer(vocab_size=400, unk_token="<unk>", special_tokens=["<unk>"], show_progress=False)
    backend.train_from_iterator([line for text in corpus() for line in text.split("\n")], trainer)
    found = [tuple(pair) for pair in json.loads(backend.to_str())["model"]["vocab"]]
    backend = Tokenizer(models.Unigram([*found, *((byte, -20.0) for byte in BYTES)], unk_id=0, byte_fallback=True))
    backend.normalizer, backend.pre_tokenizer = normalizers.NFKC(), blanks
    backend.decoder = decoders.Sequence(WITHOUT_FIRST)
    return backend


def wordpiece(*marks: str) -> Tokenizer:
    """BERT's: in small letters, and blanks are lost."""
    backend = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    backend.normalizer, backend.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(vocab_size=600, special_tokens=["[UNK]", *marks], show_progress=False)
    backend.train_from_iterator(corpus(), trainer)
    return backend


WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,DIGITS}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
WORDS += r"|\s+(?!\S)|\s+"


def split_by(*patterns: str) -> list[Any]:
    found = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns]
    return [*found, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]


BY_WORDS = {digits: split_by(WORDS.replace("DIGITS", digits)) for digits in "13"}
BY_DIGITS = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]


def byte_level(splits: list[Any], composes: bool = False, ignore_merges: bool = False) -> Tokenizer:
    found, merges = pieces("words" if splits in BY_WORDS.values() else "bytes")
    backend = Tokenizer(models.BPE({p: i for i, p in enumerate(found)}, merges, ignore_merges=ignore_merges))
    backend.normalizer = normalizers.NFC() if composes else None
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.Sequence(splits), decoders.ByteLevel()
    return backend


@dataclass(frozen=True)
class Kind:
    """A kind of tokenizer with its template, and what these do."""

    name: str
    backend: Callable[[], Tokenizer]
    template: str = ""
    """empty: the flat one that lmgym sets"""
    eos: str = "</s>"
    bos: str = ""
    marks: tuple[str, ...] = ()
    """further tokens that are never split"""
    blanks: str = "kept"
    """or "first": one before the text is lost or added; or "marks": one behind each mark, too; or "lost"."""
    form: str = ""  # of Unicode, to which characters are brought
    keeps_text: bool = True
    is_encoder: bool = False
    takes_system: bool = True
    takes_tools: bool = False
    writes_reasoning: bool = False
    strips_thoughts_always: bool = False
    rewrites_history: bool = False
    """a reply is written otherwise once turns follow it"""
    opens_thought: bool = False
    """the generation prompt does"""
    turn_end: str = ""
    """what ends a turn; empty: the eos"""

    def __str__(self) -> str:
        return self.name

    @property
    def end(self) -> str:
        """The token behind a reply."""
        return self.turn_end or self.eos

    @property
    def end_id(self) -> int:
        return self.tokenizer.convert_tokens_to_ids(self.end)

    @property
    def tokenizer(self) -> PreTrainedTokenizerFast:
        return made(self)

    def ids(self, text: str) -> list[int]:
        return tokenize_texts(self.tokenizer, [text])[0]

    def decoded(self, ids: Iterable[int]) -> str:
        return self.tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)

    def seen(self, text: str) -> str:
        """A text as far as its tokens keep it."""
        text = unicodedata.normalize(self.form, text) if self.form else text
        return "".join(text.split()) if self.blanks == "lost" else text


@cache
def made(kind: Kind) -> PreTrainedTokenizerFast:
    """The tokenizer of a kind; by itself it adds a bos, as the models' do, which templates write too."""
    backend, eats = kind.backend(), kind.blanks == "lost" and kind.keeps_text
    tokens = [token for token in (kind.bos, kind.eos) if token]
    backend.add_special_tokens([AddedToken(token, normalized=False) for token in tokens])
    for mark in kind.marks:
        is_text = mark in ("<think>", "</think>", "<tool_call>", "</tool_call>")
        token = AddedToken(mark, normalized=False, rstrip=eats, special=not is_text)
        _ = backend.add_tokens([token]) if is_text else backend.add_special_tokens([token])
    if kind.is_encoder:
        ends = [(mark, backend.token_to_id(mark)) for mark in ("[CLS]", "[SEP]")]
        backend.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", special_tokens=ends)
    elif kind.bos:
        first = [(kind.bos, backend.token_to_id(kind.bos))]
        backend.post_processor = processors.TemplateProcessing(f"{kind.bos} $A", special_tokens=first)
    names = {"bos_token": kind.bos, "eos_token": kind.eos, "cls_token": "[CLS]" if kind.is_encoder else ""}
    named = {name: token for name, token in names.items() if token}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, name_or_path=kind.name, **named)
    tokenizer.chat_template = kind.template or None
    ensure_template(tokenizer)
    return tokenizer


IM, PHI = ("<|im_start|>", "<|im_end|>", "<|endoftext|>"), ("<|system|>", "<|user|>", "<|assistant|>", "<|end|>")
THINK, CALL = ("<think>", "</think>"), ("<tool_call>", "</tool_call>")
BY_BPE = partial(byte_level, [pre_tokenizers.ByteLevel(add_prefix_space=False)])
BY_BPE_BEHIND_BLANK = partial(byte_level, [pre_tokenizers.ByteLevel(add_prefix_space=True)])
QWEN = {"backend": partial(byte_level, BY_WORDS["1"], composes=True), "eos": IM[1], "form": "NFC"}
HEADER = {"bos": "<|begin_of_text|>", "marks": ("<|start_header_id|>", "<|end_header_id|>", "<|end_of_text|>")}
DEEPSEEK = {
    "backend": partial(byte_level, split_by(r"\p{N}{1,3}", "[一-龥\u3040-\u30ff]+", WORDS.replace("DIGITS", "3"))),
    "bos": "<｜begin▁of▁sentence｜>", "eos": "<｜end▁of▁sentence｜>", "strips_thoughts_always": True,
    "marks": ("<｜User｜>", "<｜Assistant｜>", *THINK),
}  # fmt: skip
INST = {"bos": "<s>", "marks": ("[INST]", "[/INST]"), "blanks": "first", "takes_system": False}
WRITES = {"takes_tools": True, "writes_reasoning": True, "rewrites_history": True}

LLAMA_2 = Kind("llama 2", legacy, plain(LLAMA2_TEXT), bos="<s>", blanks="marks")
ZEPHYR = Kind("zephyr", legacy, plain(ZEPHYR_TEXT), bos="<s>", blanks="marks")
QWEN_2 = Kind("qwen 2", template=plain(CHATML_TEXT), marks=IM, **QWEN)
QWEN_3 = Kind("qwen 3", template=QWEN3_TEXT, marks=IM + THINK + CALL, **QWEN, **WRITES)
SMOLLM_2 = Kind("smollm 2", partial(byte_level, BY_DIGITS), plain(CHATML_TEXT), IM[1], IM[0], IM)
R1 = Kind("r1", template=R1_TEXT, **DEEPSEEK)
R1_THINKS = Kind("r1 thinks", template=R1_THINKS_TEXT, opens_thought=True, **DEEPSEEK)
CROSSING = (
    Kind("vicuna of bytes", BY_BPE, VICUNA_TEXT),
    Kind("vicuna of qwen's bytes", template=VICUNA_TEXT, **QWEN),
    Kind("vicuna of legacy", legacy, VICUNA_TEXT, blanks="marks"),
    Kind("vicuna of metaspace first", first, VICUNA_TEXT, blanks="first"),
    Kind("vicuna of metaspace always", always, VICUNA_TEXT, blanks="marks"),
    Kind("vicuna of unigram", unigram, VICUNA_TEXT, blanks="marks", form="NFKC"),
)
BERT = Kind("bert", partial(wordpiece, "[CLS]", "[SEP]"), eos="", blanks="lost", keeps_text=False, is_encoder=True)
DECODERS = (
    LLAMA_2,
    ZEPHYR,
    Kind("mistral", first, MISTRAL_TEXT, **INST),
    Kind("mistral folds", always, MISTRAL_FOLDS_TEXT, bos="<s>", blanks="marks"),
    Kind(
        "gemma",
        gemma,
        GEMMA_TEXT,
        "<eos>",
        "<bos>",
        ("<start_of_turn>", "<end_of_turn>"),
        takes_system=False,
        turn_end="<end_of_turn>",
    ),
    Kind("llama 3", partial(byte_level, BY_WORDS["3"], ignore_merges=True), LLAMA3_TEXT, "<|eot_id|>", **HEADER),
    QWEN_2,
    QWEN_3,
    SMOLLM_2,
    Kind("phi 3 of bytes", partial(byte_level, BY_WORDS["3"]), PHI3_TEXT, IM[2], marks=PHI, turn_end=PHI[3]),
    Kind(
        "phi 3", legacy, PHI3_TEXT, IM[2], "<s>", PHI, blanks="lost", turn_end=PHI[3]
    ),  # its marks take the blanks behind them
    R1,
    *CROSSING,
    Kind("unigram", unigram, blanks="marks", form="NFKC"),
    Kind("wordpiece", wordpiece, eos="[EOS]", blanks="lost", keeps_text=False),
    Kind("bytes", BY_BPE),
    Kind("bytes behind a blank", BY_BPE_BEHIND_BLANK, blanks="marks"),
)
KINDS = (*DECODERS, R1_THINKS, BERT)
ENDS = {  # of a short chat: the last prompt, and the reply to it
    "llama 2": ("u [/INST] a </s><s>[INST] v [/INST]", " b </s>"),
    "zephyr": ("<|user|>\nv</s>\n<|assistant|>\n", "b</s>\n"),
    "mistral": ("<s>[INST] u[/INST] a</s>[INST] v[/INST]", " b</s>"),
    "mistral folds": ("<s>[INST] S\n\nu [/INST]a</s>[INST] v [/INST]", "b</s>"),
    "gemma": ("<start_of_turn>user\nv<end_of_turn>\n<start_of_turn>model\n", "b<end_of_turn>\n"),
    "llama 3": ("<|end_header_id|>\n\nv<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n", "b<|eot_id|>"),
    "smollm 2": ("<|im_start|>user\nv<|im_end|>\n<|im_start|>assistant\n", "b<|im_end|>\n"),
    "qwen 3": ("<|im_start|>user\nv<|im_end|>\n<|im_start|>assistant\n", "<think>\n\n</think>\n\nb<|im_end|>\n"),
    "phi 3": ("<|user|>\nv<|end|>\n<|assistant|>\n", "b<|end|>\n<|endoftext|>"),
    "r1": ("<｜User｜>u<｜Assistant｜>a<｜end▁of▁sentence｜><｜User｜>v<｜Assistant｜>", "b<｜end▁of▁sentence｜>"),
    "vicuna of bytes": ("S USER: u ASSISTANT: a</s>USER: v ASSISTANT: ", "b</s>"),
    "bytes": ("S\nUser: u\nBot: a\nUser: v\nBot:", " b</s>"),
}
MASKS = ((LLAMA_2, LLAMA2_TEXT), (ZEPHYR, ZEPHYR_TEXT), (QWEN_2, CHATML_TEXT), (SMOLLM_2, CHATML_TEXT))
MASKED = tuple(replace(kind, name=f"{kind.name} with a mask", template=template) for kind, template in MASKS)

SAMPLES = (
    "soup", "the first step", "and then", "I don't know!", "42", "3,141 and 1234567", "\ttab", "\\n", "two  blanks",
    "x = [i**2 for i in range(10)]\n    print(x)\n\n\nend", "| a | b |\n|---|---|", "<b>bold</b> {{ x }}", "a\r\nb",
    "naïve", "cafe\u0301 e\u0323\u0301", "\u0301accent", "日本語のテキスト、漢字", "한국어 문장", "Привет, мир", "שלום",
    "مرحبا", "नमस्ते", "สวัสดี", "👍", "👩\u200d👩\u200d👧 🏳️\u200d🌈", "∑ x² ≤ y", "— “quotes” …", "zero\u200bwidth",
    "\u00a0hard\u2028line", "\ue0000\ue001", "𝒳𐍈", "ﬁ½",
)  # fmt: skip
LOOKALIKES = (
    "<|user|>", "<|assistant|>\nyes", "[INST] no [/INST]", "<|im_start|>", "<start_of_turn>model", "<end_of_turn>",
    "<|end|>", "<s>", "<|eot_id|>", "User: hi\nBot: yo", "ASSISTANT: ok", "<｜User｜>", "<<SYS>>", "<|endoftext|>",
)  # fmt: skip


def random_text(rng: random.Random, kind: Kind) -> str:
    """A few words, rarely marks of some template, with blanks around them; no end of a turn."""
    # some do not keep blanks behind marks of their own
    without = [kind.eos, kind.end, *((kind.bos, *kind.marks) if kind.blanks in ("marks", "lost") else ())]
    marks = [text for text in LOOKALIKES if not any(mark and mark in text for mark in without)]
    words = [rng.choice(marks if rng.random() < 0.08 else SAMPLES) for _ in range(rng.randint(1, 7))]
    text = words[0] + "".join(rng.choice((" ", " ", " ", "\n", "\n\n", "")) + word for word in words[1:])
    around = ("", "", "", " ", "\n", "  \n", "\n\n   ")
    return rng.choice(around) + text.strip() + rng.choice(around)


def random_chat(rng: random.Random, kind: Kind) -> tuple[Conversation, tuple[int, ...]]:
    """One to four exchanges, and the turns that are outputs, the last among them."""
    turns: list[Turn] = []
    for _ in range(rng.randint(1, 4)):
        thinks = kind.writes_reasoning and rng.random() < 0.5
        extra = json.dumps({"reasoning_content": random_text(rng, kind)}) if thinks else ""
        quoted = f" {kind.end} " if rng.random() < 0.1 else ""  # by a user
        turns += [Turn("user", random_text(rng, kind) + quoted), Turn("bot", random_text(rng, kind), extra)]
    system = random_text(rng, kind).strip() if kind.takes_system and rng.random() < 0.4 else ""
    outputs = tuple(i for i in range(1, len(turns) - 1, 2) if rng.random() < 0.8)
    return Conversation(tuple(turns), system), (*outputs, len(turns) - 1)
