"""The SFT, DPO and PPO configs of NYU's debate project: the rows that they train on, and the command that trains."""

from collections.abc import Mapping
from typing import Any

from lmgym.apps.migration.commands import Translation, display
from lmgym.apps.migration.libraries import SILENT, give, of_all_processes, whole
from lmgym.apps.migration.nyu_entries import Entry, Settings, transcripts_at
from lmgym.apps.migration.nyu_rounds import EPOCH_SIZE, write_experiment
from lmgym.apps.migration.renaming import check, experiment_of, rename
from lmgym.errors import InputError, shown, shown_path
from lmgym.origin import names_code_or_address
from lmgym.runs.launching import FORMS
from lmgym.shell import command

TRAINERS = ("sft", "dpo", "ppo")
HYPER, SUPPLEMENTAL = "training_hyperparameters", "training_hyperparameters.supplemental"
DEBATES = ("quality_debates", "quality_consultancy")
PREFERENCES = ("judge_preferences", "correctness_judge_preferences")
EXTERNAL = "external_huggingface"
MODULES = {
    "attention": "q_proj,k_proj,v_proj",
    "mlp": "gate_proj,up_proj,down_proj",
    "all": "q_proj,k_proj,v_proj,gate_proj,up_proj,down_proj",
}
"""the layers that get adapters, by target_module"""
QUANTIZED = ("llama", "mistral")
"""types of models that theirs loads in 4 bits"""
SCALES = {"log_prob": 2.25, "prob": 5.75, "sigmoid": 5.0}
"""`multiplier` of lmgym debate data --preference"""
DPO_WARMUP = round(1 / 24, 4)
"""of their DPO, unless the schedule is constant"""
SENTENCES = {
    "llm_type": "the model's own chat template is used",
    "requires_token": "the hub's token is HF_TOKEN",
    "tokenizer_file_path": "the model's own tokenizer is used",
    "reference_model_name": "of an adapter, which lmgym merge joins to it; --reference names another reference",
    "opening_speeches_only": "rows are of all speeches; play rounds of one speech, or leave out the others' rows",
    "speech_structure": "the format is that of the transcripts, or of the experiment",
    f"{HYPER}.steps": "--max_updates counts updates",
    f"{HYPER}.optim": "it is AdamW of torch",
    f"{SUPPLEMENTAL}.lr_multiplier": "one schedule for the whole run",
    f"{SUPPLEMENTAL}.continue_training": "the same command resumes by itself",
    f"{SUPPLEMENTAL}.force_sft_as_reference": "the reference is the model that training starts from",
    f"{SUPPLEMENTAL}.gold_labels": "--kind judge learns the right answers",
    f"{SUPPLEMENTAL}.use_minimal_output_format": "rows are as lmgym debate data writes them",
    "logging_and_saving_config.merge_output_dir": "the merged model is OUTPUT/model",
}
UNIMPORTANT = ("logging_and_saving_config.logging_steps",)
NAMES = {
    f"{HYPER}.num_train_epochs": "num_train_epochs",
    f"{HYPER}.learning_rate": "learning_rate",
    f"{HYPER}.max_grad_norm": "max_grad_norm",
    "logging_and_saving_config.output_dir": "output_dir",
}
"""settings that are TRL's, by theirs"""


def trainer_of(entry: Entry, trainer: str | None) -> str:
    """The script that an entry is for: as said, or by the file's name or its rows. Raises InputError for none."""
    if trainer:
        if trainer not in TRAINERS:
            raise InputError(f"--trainer {trainer}: the project trains by {', '.join(TRAINERS)}; needed: one of them")
        return trainer
    named = [one for one in TRAINERS if one in entry.file.stem.lower().split("_")]
    if len(named) == 1:
        return named[0]
    if any(one in PREFERENCES for one, _ in _datasets(entry)):
        return "dpo"
    raise InputError(
        f"{shown_path(entry.file)}, entry {shown(entry.name)}: its name does not tell which script it is for; needed: "
        "--trainer sft, dpo or ppo"
    )


def translate_training(entry: Entry, trainer: str | None) -> list[Translation]:
    """The commands that train by an entry. Raises InputError for values of other types."""
    kind = trainer_of(entry, trainer)
    for flag in entry.flags:
        if flag not in ("local", "test", "log_level", "load_only", "local_rank", "configuration"):
            raise InputError(f"--{flag} is no flag of run_{kind}; needed: flags behind the command that is printed")
    left = Settings({name: value for name, value in entry.values.items() if name != "dataset"}, entry.name)
    found = Translation(kind)
    found.flags |= {"method": "ppo"} if kind == "ppo" else {}
    target = left.take("target", "debater").lower()
    _rows(found, entry, kind, left, target)
    word = found.command.partition(" ")[0]
    module = experiment_of(word)
    if found.command.endswith(".py"):
        module = f"lmgym.apps.debate.experiments.{'debate_dpo' if kind == 'dpo' else 'debate_letters'}"
    _training(found, left, kind)
    _adapters(found, left)
    model = left.find("model_name", str)
    if model is None:
        found.ask("model", "none in the entry")
    else:
        give(found, "model", model, f"model_name={model}")
    rename(found, "TRL", {ours: left.left.pop(name) for name, ours in NAMES.items() if name in left.left}, module)
    _name_the_rest(found, left)
    for flag in found.asked:
        found.flags.pop(flag, None)
    check(found, FORMS[word].flags, module, SILENT)
    return [found]


def _name_the_rest(found: Translation, left: Settings) -> None:
    for name, value in left.left.items():
        if name in UNIMPORTANT or value in (False, {}, []):
            continue
        sentence = SENTENCES.get(name, "no equivalent")
        found.lines.append(f"{name.rpartition('.')[2]}={display(value)}: {sentence}")


def _datasets(entry: Entry) -> list[tuple[str, Mapping[str, Any]]]:
    """(its type, its settings) of each data set of an entry. Raises InputError for another form."""
    given = entry.values.get("dataset")
    sets = given if isinstance(given, list) else [given]
    found = [one for one in sets if isinstance(one, Mapping) and isinstance(one.get("dataset_type"), str)]
    if not sets or len(found) < len(sets):
        raise InputError(f"{shown(entry.name)}: dataset={display(given)}; needed: one or several with a dataset_type")
    return [(str(one["dataset_type"]).lower(), one) for one in found]


def _rows(found: Translation, entry: Entry, kind: str, left: Settings, target: str) -> None:
    """The files that the run reads, and the commands that write them out of transcripts."""
    sets = _datasets(entry)
    plays = kind == "ppo" or (kind == "dpo" and not any(one in PREFERENCES for one, _ in sets))
    wording, scale = _preference(found, left) if kind == "dpo" else ("", None)
    if plays:
        left.left.pop("opening_speeches_only", None)  # as the experiments do
        epoch_size = left.take(f"{SUPPLEMENTAL}.epoch_size", EPOCH_SIZE)
        write_experiment(found, entry, kind, sets[0][1], epoch_size)
        if kind == "dpo":
            _updates_of_rounds(found, left, epoch_size)
        return
    rows_of = "preferences" if kind == "dpo" else "judge" if target == "judge" else "sft"
    files: list[str] = []
    for name, settings in sets:
        given = settings.get("full_dataset_file_path")
        for path in given if isinstance(given, list) and given else [given]:
            files.append(_file_of(found, name, path, len(files) + 1, rows_of, wording))
        if name in DEBATES:
            found.lines.append(f"dataset_type={name}: rows are of all debates; a tenth is held out, no split of theirs")
        for key, value in settings.items():
            if key not in ("dataset_type", "full_dataset_file_path", "split_type") and value:
                found.lines.append(f"dataset.{key}={display(value)}: rows are of all rounds in the file")
    if scale:
        found.lines.append(scale)
    if "" in files:
        found.ask("dataset", f"dataset_type={', '.join(name for name, _ in sets)}: a file of rows, or a hub id")
    else:
        found.flags["dataset"] = ",".join(files)
    if any(name == EXTERNAL for name, _ in sets):
        found.lines.append(
            "external_huggingface: all of its rows; --dataset_weights 1,2 keeps two of them a debate's row"
        )


def _file_of(found: Translation, name: str, path: Any, number: int, rows_of: str, preference: str) -> str:
    """The file of rows of a data set, which a command writes; empty if the user has to give it."""
    if name == EXTERNAL:
        return path if isinstance(path, str) and not names_code_or_address(path) else ""
    if name not in (*DEBATES, *PREFERENCES) or not isinstance(path, str):
        return ""
    output = f"outputs/{rows_of}_{number}.jsonl"
    source = transcripts_at(path) if name in PREFERENCES else path
    words = ["lmgym", "debate", "data", source, "--kind", rows_of]
    words += ["--preference", preference] if preference else []
    found.before.append(command(*words, "--output", output))
    return output


def _preference(found: Translation, left: Settings) -> tuple[str, str | None]:
    """The form of preferences and the loss that reads them; a line on a scale that is another one here."""
    known = {name: name for name in ("log_prob", "prob", "logit", "sigmoid", "binary")}
    name = left.one_of(f"{SUPPLEMENTAL}.reward_type", known, "log_prob")
    losses = {"bon": "bon", "bon-ipo": "bon-ipo", "sigmoid": "dpo", "dpo": "dpo", "ipo": "ipo"}
    loss = left.one_of(f"{SUPPLEMENTAL}.loss_type", losses, "bon")
    if loss == "bon-ipo":
        found.ask("loss", "loss_type=bon-ipo: bon has the loss of DPO")
    else:
        found.flags["loss"] = loss
    found.flags["beta"] = left.left.pop(f"{HYPER}.kl_penalty", 0.1)
    alpha = left.left.pop(f"{SUPPLEMENTAL}.alpha", 0.005)
    if loss == "bon":
        found.flags["sft_share"] = alpha
    scale, width = (left.left.pop(f"{SUPPLEMENTAL}.{word}", None) for word in ("multiplier", "temperature"))
    different = [f"multiplier={display(scale)}"] if scale not in (None, SCALES.get(name)) else []
    different += [f"temperature={display(width)}"] if width not in (None, 0.125) else []
    return name, f"{', '.join(different)}: --preference {name} has a scale of its own" if different else None


def _training(found: Translation, left: Settings, kind: str) -> None:
    """Batches, schedule, lengths and checkpoints."""
    micro = left.left.pop(f"{HYPER}.per_device_train_batch_size", None)
    accumulation = left.left.pop(f"{HYPER}.gradient_accumulation_steps", 1)
    if kind == "ppo":  # a batch is as many rounds, in forward passes of one
        whole(found, "num_rollouts", micro)
        whole(found, "global_batch", micro)
        found.flags["micro_batch"] = 1
        steps = left.find(f"{HYPER}.steps", int)
        found.flags |= {"ppo_epochs": 1, "init_kl_coef": 0.1} | ({"max_updates": steps} if steps else {})
        for name in ("num_train_epochs", "warmup_ratio", "lr_scheduler_type"):
            left.left.pop(f"{HYPER}.{name}", None)
        of_all_processes(found, "num_rollouts", "global_batch")
        return
    whole(found, "micro_batch", micro)
    whole(found, "global_batch", micro, accumulation)
    of_all_processes(found, "global_batch")
    schedule = left.take(f"{HYPER}.lr_scheduler_type", "linear")
    ratio = left.left.pop(f"{HYPER}.warmup_ratio", 0)
    if kind == "dpo":  # whose trainer does not read it
        ratio = DPO_WARMUP
    constant = schedule == "constant"
    found.flags |= {"schedule": "constant_with_warmup" if constant else schedule, "warmup": 0 if constant else ratio}
    found.flags["gradient_checkpointing"] = True
    length = left.find("max_length", int)
    found.flags["max_length"] = length or (32768 if kind == "sft" else 16384)
    if (steps := left.find(f"{SUPPLEMENTAL}.save_steps", int)) is not None:
        found.flags["save_updates"] = steps
    if kind == "dpo" and not found.command.endswith(".py"):
        left.left.pop(f"{SUPPLEMENTAL}.epoch_size", None)  # of rounds that are played
        _passes(found, left)


def _updates_of_rounds(found: Translation, left: Settings, epoch_size: int) -> None:
    """The updates of all epochs, each of which plays rounds and learns from the two pairs of each of them."""
    steps = left.find(f"{HYPER}.steps", int) or 1
    micro = left.left.get(f"{HYPER}.per_device_train_batch_size")
    accumulation = left.left.get(f"{HYPER}.gradient_accumulation_steps", 1)
    if type(micro) is int and type(accumulation) is int and micro * accumulation > 0:
        found.flags["max_updates"] = max(1, steps * 2 * epoch_size // (micro * accumulation))
    epochs = left.left.pop(f"{HYPER}.num_train_epochs", None)
    if epochs not in (None, 1):
        found.lines.append(
            f"num_train_epochs={display(epochs)}: each pair is learned once, and then rounds are played anew"
        )


def _passes(found: Translation, left: Settings) -> None:
    """Epochs over preference rows: each of their steps trains num_train_epochs on all of them."""
    steps = left.find(f"{HYPER}.steps", int) or 1
    epochs = left.left.get(f"{HYPER}.num_train_epochs")
    if steps > 1 and type(epochs) is int:
        left.left[f"{HYPER}.num_train_epochs"] = steps * epochs
        found.lines.append(f"steps={steps}: {steps} x {epochs} epochs, in one schedule")


def _adapters(found: Translation, left: Settings) -> None:
    """LoRA, with their constants; other adapters are asked for."""
    kind = left.take(f"{HYPER}.peft_type", "").lower()
    rank = left.left.pop(f"{HYPER}.lora_rank", 64)
    layers = left.one_of(f"{HYPER}.target_module", MODULES, "attention")
    model = left.take("llm_type", "llama")
    if kind == "lora":
        found.flags |= {"lora_rank": rank, "lora_alpha": 16, "lora_target_modules": layers}
        if model in QUANTIZED:
            found.flags["load_in_4bit"] = True
        if "logging_and_saving_config.merge_output_dir" in left.left and not found.command.endswith(".py"):
            found.flags["merge_adapter"] = True
    elif kind:
        found.ask("lora_rank", f"peft_type={kind}: adapters are plain LoRA; 0 trains every weight")
    left.left["llm_type"] = model
