"""How much host memory a launch asks for, whether it fits, and the largest size that does: pure arithmetic on data.

The way through it:

    Launch    = launch.parse(text, files, env) | launch.from_argv(argv, env)   what would be started (never guessed)
    Facts                                                                      the machine, as it was read
    Semantics = table.semantics(engine, version, flag) | a proof from source   what the number means; proof wins
    Verdict   = solve.judge(launch, facts, config, semantics=(...))            fits, tight, does-not-fit, cannot-tell
    words.verdict_lines(verdict), words.as_json(verdict)                       for a person, for a machine

The types are in `model`, sizes with units in `sizes`, bytes per token from a config.json in `bytes_per_token`.
"""
