"""Runs the agent of this host: `python -m kair_capture.agent`, configured by the environment; a second one ends at
once.

With `--detach` it leaves its parent, and is restarted if it is killed.
"""

import os
import signal
import subprocess
import sys
import time

DETACH = "--detach"


def main(arguments: list[str]) -> int:
    """Return the exit status; 0 also if another agent runs already."""
    # Ctrl-C is for the job; the agent ends after it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return _stand_by() if arguments == [DETACH] else _work()


def _work() -> int:
    from kair_capture.agent.agent import Agent, agent_settings
    from kair_capture.files import BusyError
    from kair_capture.settings import SettingsError
    from kair_capture.unheard import agent_in

    try:
        settings = agent_settings()
        Agent(settings).run()
    except BusyError:
        other, store = agent_in(settings.run_dir), settings.places.store
        if other is not None and not other.serves(store):
            print(
                f"kair: job {settings.job} is not captured into the store {store}: the agent in {settings.run_dir} "
                f"(process {other.pid}) serves the store {other.store}",
                file=sys.stderr,
            )
        return 0
    except SettingsError as error:
        print(f"kair: capture's agent: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"kair: capture's agent cannot work: {error}", file=sys.stderr)
        return 3
    return 0


def _stand_by() -> int:
    """Restart the agent in the background; this process stays small by loading nothing of it."""
    if os.fork():
        return 0
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1):
        os.dup2(null, stream)
    while True:
        status = subprocess.run([sys.executable, "-P", "-m", "kair_capture.agent"], check=False).returncode
        if status >= 0:
            return status
        time.sleep(1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
