"""Players of debates: debaters and judges, scripted, recorded, human, or models of any kind."""
