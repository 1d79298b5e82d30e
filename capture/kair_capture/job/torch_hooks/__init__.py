"""How capture sees a PyTorch job: hooks that find steps and scopes by themselves."""
