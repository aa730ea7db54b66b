"""What `check` says, in four forms made from the same records; no form ever shows an unknown as healthy or as 0."""
