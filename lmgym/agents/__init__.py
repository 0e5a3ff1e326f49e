"""Agents: LlamaGym's interface to the rollout engine and to ppo.

May import environments and what is below it; stages within functions.
"""

from lmgym.agents.agent import Agent as Agent
from lmgym.agents.training import train as train
from lmgym.agents.value_head import AutoModelForCausalLMWithValueHead as AutoModelForCausalLMWithValueHead
