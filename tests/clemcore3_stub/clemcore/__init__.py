"""A stand-in for clemcore 3: as much as its steps, its recorders and the toy game need."""
