#!/usr/bin/env python3
"""Memory and processor time that idle connections cost a server: opens them, lets them rest, and asks the kernel.

  benches/idle-connections.py COUNT COMMAND…   the server is started with four client addresses, one member

Each connection is one of HTTP/2 whose preface and settings were exchanged, and which never asks for anything. Says the
resident memory of the server before and after, and for one connection, and its processor time in SECONDS_EACH (default 10) of rest.
Wants `ulimit -n` above COUNT.
"""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

PORT = 26900
ADDRESSES = 4  # Of the client side: the kernel has some 28,000 ports for each pair of addresses.
SETTINGS = bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
SETTINGS_ACK = bytes([0, 0, 0, 4, 1, 0, 0, 0, 0])
HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + SETTINGS + SETTINGS_ACK


def resident(pid):
    with open(f"/proc/{pid}/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS:")) << 10


def processor_seconds(pid):
    """Of all threads; /proc/PID/stat counts in hundredths of a second."""
    threads = f"/proc/{pid}/task"
    return sum(int(open(f"{threads}/{thread}/schedstat").read().split()[0]) for thread in os.listdir(threads)) / 1e9


def main():
    rest = float(os.environ.get("SECONDS_EACH", 10))
    count, command = int(sys.argv[1]), sys.argv[2:]
    data = tempfile.mkdtemp(dir=os.environ.get("DIR", "target"))
    urls = ",".join(f"http://127.0.0.{n + 1}:{PORT}" for n in range(ADDRESSES))
    peer = f"http://127.0.0.1:{PORT + 1}"
    arguments = ["--name", "m", "--data-dir", data, "--listen-client-urls", urls, "--advertise-client-urls", urls]
    arguments += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", f"m={peer}"]
    with open(f"{data}/log", "wb") as log:
        server = subprocess.Popen(command + arguments, stdout=log, stderr=log)
    try:
        for _ in range(600):
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/health", timeout=5) as answer:
                    if b"true" in answer.read():
                        break
            except OSError:
                pass
            time.sleep(0.1)
        before, open_sockets = resident(server.pid), []
        for number in range(count):
            one = socket.create_connection((f"127.0.0.{number % ADDRESSES + 1}", PORT), timeout=60)
            one.sendall(HELLO)
            open_sockets.append(one)
            if number % 500 == 499:
                one.recv(9)  # The server keeps up.
        for one in open_sockets:
            one.setblocking(False)
        time.sleep(10)
        after, began = resident(server.pid), processor_seconds(server.pid)
        time.sleep(rest)
        share = (processor_seconds(server.pid) - began) / rest
        closed = 0
        for one in open_sockets:
            try:
                while True:
                    if not one.recv(4096):
                        closed += 1
                        break
            except BlockingIOError:
                pass
        print(f"{count} connections, {closed} closed by the server: {before >> 20} MiB before, {after >> 20} MiB after,", end=" ")
        print(f"{(after - before) / max(count, 1) / 1024:.1f} KiB for each; {share:.2%} of a processor at rest")
    finally:
        server.kill()
        server.wait()
        shutil.rmtree(data)


main()
