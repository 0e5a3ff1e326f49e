"""Stage 1: scorers trained from people's feedback on chats."""
