"""Stands in for an engine: answers /health after a while, has a child as vLLM has, and dies as requested."""

import argparse
import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("port", type=int)
parser.add_argument("--ready-after-s", type=float, default=0.1)
parser.add_argument("--die-after-s", type=float)
parser.add_argument("--say")
parser.add_argument("--with-child", action="store_true")
parser.add_argument("--ignore-term", action="store_true")
parser.add_argument("--drain-s", type=float, help="after SIGTERM, end only when this time has passed")
parser.add_argument("--mark", help="a file that the first start makes; later starts do as --later says")
parser.add_argument("--later", choices=["hang", "reject"])
parser.add_argument("--health-status", type=int, default=200)
options = parser.parse_args()


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(options.health_status)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


def drain(*_):
    threading.Timer(options.drain_s, lambda: os._exit(0)).start()


if options.mark and Path(options.mark).exists():
    if options.later == "reject":
        parser.error("unrecognized arguments: --now-rejected")
    options.ready_after_s = 600
elif options.mark:
    Path(options.mark).touch()
if options.drain_s is not None:
    signal.signal(signal.SIGTERM, drain)
if options.ignore_term:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if options.with_child:
    # Like vLLM's core process: it does not notice the front end's death.
    subprocess.Popen([sys.executable, "-I", "-S", "-c", "import time; time.sleep(600)"])
if options.say:
    print(options.say, flush=True)
if options.die_after_s is not None:
    threading.Timer(options.die_after_s, lambda: os._exit(3)).start()
print("INFO Starting to load model stand-in", flush=True)
time.sleep(options.ready_after_s)
ThreadingHTTPServer(("127.0.0.1", options.port), Handler).serve_forever()
