"""What outlives a run: journals, baselines, locks and evidence, all below one state folder."""
