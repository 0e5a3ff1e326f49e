"""Chat with a model and see the scores of its replies by every reward model.

    python3 -m IPython -i -- eval_rewards_api.py talk_to_models --experiment_name NAME --select_model NAME
    python3 -m IPython -i -- eval_rewards_api.py convo_evolution --experiment_name NAME

Without IPython the session runs in the terminal, or from a pipe. An experiment is a file of
reward_models/evaluation/experiments, or the path of your own; the fields of its CONFIG are flags too.
"""

from lmgym.apps.chat.commands import convo_evolution as convo_evolution
from lmgym.apps.chat.commands import sessions as main
from lmgym.apps.chat.commands import talk_to_models as talk_to_models

if __name__ == "__main__":
    main()
