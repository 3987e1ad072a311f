"""Asking people: approvals and questions (``broker``), permission modes (``modes``) and what they mean for tool calls
(``permissions``). How a question looks to a person is the business of the front ends.
"""
