"""Words in, words out, an exit code: nothing is decided here, and whatever is heavy is imported when it is needed."""
