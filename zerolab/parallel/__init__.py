"""The strategies: what each rank keeps whole, and what it keeps a shard of."""
