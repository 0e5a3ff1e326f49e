# ruff: noqa: C408, SIM115
"""Fine-tunes with settings in a dict."""

from llamafactory.train.tuner import run_exp

args = dict(
    stage="sft",
    model_name_or_path="unsloth/llama-3-8b-Instruct-bnb-4bit",
    finetuning_type="lora",
    dataset="identity,alpaca_en_demo",
    template="llama3",
    lora_target="all",
    per_device_train_batch_size=2,
    gradient_accumulation_steps=4,
    learning_rate=5e-5,
    num_train_epochs=3.0,
    max_samples=500,
    use_liger_kernel=True,
    fp16=True,
)
open("ran", "w").write("this file was run")
run_exp(args)
