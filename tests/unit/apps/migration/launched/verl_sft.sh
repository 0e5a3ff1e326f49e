torchrun --standalone --nproc_per_node=4 -m verl.trainer.fsdp_sft_trainer \
    data.train_files=rows/train.parquet data.val_files=rows/test.parquet \
    data.prompt_key=question data.response_key=answer data.micro_batch_size_per_gpu=4 data.train_batch_size=64 \
    optim.lr=1e-4 model.partial_pretrain=Qwen/Qwen2.5-0.5B-Instruct model.lora_rank=32 model.lora_alpha=16 \
    trainer.total_epochs=2 trainer.logger=console
