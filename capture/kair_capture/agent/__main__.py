"""`python -m kair_capture.agent`: the agent of this host, as the environment says; a second one ends at once."""

import signal
import sys

from kair_capture.agent.agent import Agent, BusyError
from kair_capture.agent.settings import agent_settings
from kair_capture.settings import SettingsError


def main() -> int:
    """The exit status: 0 also where another agent is there already."""
    # Ctrl-C is for the job; the agent ends when that has.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        Agent(agent_settings()).run()
    except BusyError:
        return 0
    except SettingsError as error:
        print(f"kair: capture's agent: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"kair: capture's agent cannot work: {error}", file=sys.stderr)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
