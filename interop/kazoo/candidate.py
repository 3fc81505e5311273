"""A candidate that kazoo drives: `candidate.py lock|election HOSTS PATH ID SESSION_SECONDS`.

Says `started` when it leads, works until it is told to end (SIGTERM), then leaves politely.
"""

import signal
import sys
import threading

from kazoo.client import KazooClient

kind, hosts, path, name, seconds = sys.argv[1:]
stop = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: stop.set())

client = KazooClient(hosts=hosts, timeout=float(seconds))
client.start()


def work():
    print("started", flush=True)
    # In short waits: Python runs its signal handlers between them.
    while not stop.wait(0.01):
        pass


print("standing", flush=True)
if kind == "election":
    election = client.Election(path, name)
    thread = threading.Thread(target=lambda: election.run(work), daemon=True)
    thread.start()
    while thread.is_alive():
        if stop.is_set():
            election.cancel()
        thread.join(0.01)
else:
    with client.Lock(path, name):
        work()
client.stop()
