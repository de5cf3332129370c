"""Post-mortem: which single change would have kept a failed run alive.

A run that failed is replayed from a checkpoint before the failure, unchanged (the control: resume is exact, so it fails again)
and with one change each. Changes that can only act from the beginning (a longer warm-up, Admin) start there.
"""
