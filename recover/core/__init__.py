"""What a look means and what to do next: pure functions over the model. No clock, no I/O, no randomness."""
