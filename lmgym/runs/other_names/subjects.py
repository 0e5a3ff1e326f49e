"""What is the same in every library: words of names whose subject lmgym has in one setting, or has not."""

NAMES = {
    "": {
        "*megatron* *tensor_model_parallel* *tensor_parallel* *pipeline_model_parallel* *pipeline_parallel* "
        "*expert_parallel* *expert_model_parallel* *data_parallel* *_parallel_size": "--deepspeed zero3 shards the "
        "weights",
        "*context_parallel* *sequence_parallel* *ring_attn* *ulysses*": "a sequence is on one GPU",
        "*fsdp*": "--deepspeed zero3 shards the weights",
        "*swanlab* *mlflow* *comet* *clearml* *aim_* *otel* *prometheus*": "--tracking has wandb, tensorboard and "
        "trackio",
        "*wandb_watch* *wandb_log_model* *wandb_run_id*": "--tracking wandb has metrics and samples",
        "*profil* *nsys* *torch_memory*": "lmgym doctor examines the machine; time by phase is always logged",
        "*image* *video* *audio* *vision* *visual* *multi_modal* *multimodal* *freeze_mm* "
        "freeze_language_model crop_to_patches": "models read text only",
        "*quantiz* *gptq* *awq* *fp8* *nvfp4* *bnb_*": "--load_in_4bit or --load_in_8bit, under --lora_rank; else "
        "weights train in fp32",
        "*ray_* ray_* use_ray resources_per_worker": "processes are started by lmgym train or lmgym launch",
        "*moe_* *expert* *router*": "experts run as transformers has them",
        "*kernel* *liger* *triton* *cuda_graph* *cudagraph*": "there are no kernels to choose",
        "*tokenizer*": "the model's own tokenizer is used",
        "*chat_template*": "the tokenizer's own chat template is used",
        "*lora* *peft* *dora*": "adapters are plain LoRA: --lora_rank, --lora_alpha, --lora_target_modules",
        "*compile*": "models run uncompiled",
        "*offload*": "states are offloaded by --deepspeed zero2_offload or zero3_offload, activations are not",
        "*distill*": "there is no distillation",
        "*deepspeed* *zero_*": "a file of DeepSpeed's settings has them: --deepspeed FILE.json",
    },
    "ppo": {
        "*vllm* *sglang* *trtllm*": "the server's own flags go after lmgym engine serve MODEL, then --engine vllm:URL",
        "*multi_turn* *tool_call* *agent_*": "a conversation of several turns is an environment (docs/environments.md)",
    },
    "reward sft preference": {
        "*vllm* *sglang* *trtllm*": "training has no server; lmgym engine serve RUN serves the model",
    },
}  # fmt: skip
"""for names that no library's own table has"""
