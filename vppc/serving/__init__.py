"""Serving: programs that grow while requests come, and what that comes to."""
