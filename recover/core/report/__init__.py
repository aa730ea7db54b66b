"""What a run says at its end, made from its journal alone: the same journal gives the same words."""
