"""The agent runtime that every front end projects: sessions, agents, models, tools and interaction.

Each part is a built-in plugin (see ``builtins``) and is reached through the keys of ``polyhost.interfaces``.
"""
