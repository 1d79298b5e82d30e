"""The full screen: a session, questions to the registry, and the screens that show the answers."""
