accelerate launch --config_file zero3.yaml trl/scripts/dpo.py \
    --model_name_or_path Qwen/Qwen2-0.5B-Instruct --dataset_name trl-lib/ultrafeedback_binarized \
    --learning_rate 5.0e-7 --beta 0.05 --per_device_train_batch_size 2 --use_peft --lora_r 8 --report_to none
trl sft --model_name_or_path Qwen/Qwen2-0.5B --dataset_name trl-lib/Capybara --packing
