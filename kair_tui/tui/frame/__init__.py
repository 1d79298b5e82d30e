"""Parts of the full-screen program that show no results: the app, keys, prompts, help, exports."""
