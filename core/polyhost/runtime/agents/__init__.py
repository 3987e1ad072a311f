"""Agents: the driver of turns over one session, its inbox, requests and tools, and the doors that open sessions."""
