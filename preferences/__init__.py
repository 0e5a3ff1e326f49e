"""Beside stage 2: a policy learns from preferences without a reward model: DPO, KTO and related losses."""
