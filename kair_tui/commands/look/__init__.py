"""Look at the job: views that accuse nobody, and a machine measured."""
