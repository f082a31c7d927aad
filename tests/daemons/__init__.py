"""Real servers for tests, each started by the test that needs it and stopped by its process id."""
