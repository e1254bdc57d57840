"""Commands for a checkout; `environment` is shared with the tests."""
