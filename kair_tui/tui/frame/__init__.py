"""Parts of the program on the full screen that are about no result: the app, keys, prompts, help, exports."""
