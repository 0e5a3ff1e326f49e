#!/bin/bash
MODEL=${MODEL:-Qwen/Qwen2.5-0.5B}
LEN=$((2 * 1024))

llamafactory-cli train \
    --stage sft \
    --model_name_or_path "$MODEL" \
    --do_train \
    --finetuning_type full \
    --dataset identity \
    --template default \
    --cutoff_len ${LEN} \
    --packing \
    --per_device_train_batch_size 4 \
    --gradient_accumulation_steps 2 \
    --learning_rate 1e-5 \
    --num_train_epochs 1.0 \
    --lr_scheduler_type constant \
    --bf16 \
    --output_dir saves/$MODEL/sft # here
