"""Where a run computes, and runs that go on without a terminal."""
