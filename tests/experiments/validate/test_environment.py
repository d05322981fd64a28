"""How much of a machine others take while a step runs."""

import os
import signal
import subprocess
import sys
import time

from phasewise.clients.processes import listening_processes
from phasewise.experiments.validate.environment import OthersWatch
from tests.real_engine import free_port

BUSY_ORPHAN = """
import os, socket, sys, time
if os.fork():
    os._exit(0)
held = socket.socket()
held.bind(("127.0.0.1", int(sys.argv[1])))
held.listen()
ends = time.monotonic() + 20
while time.monotonic() < ends:
    pass
"""


def test_what_an_engine_uses_is_not_taken_by_others_though_a_supervisor_keeps_it():
    port = free_port()
    subprocess.run([sys.executable, "-c", BUSY_ORPHAN, str(port)], check=True)
    while not listening_processes({port}):
        time.sleep(0.05)
    ours, not_ours = OthersWatch(lambda: [f"http://127.0.0.1:{port}"]), OthersWatch(list)
    time.sleep(1.0)
    with_it, without = ours.share(), not_ours.share()
    os.kill(listening_processes({port})[port], signal.SIGKILL)
    assert with_it < without
