"""Uses the package etcd3 as its documentation does, and prints what it answers.

ENDPOINT is host:port. CA, CERT and KEY are files, NAME and PASSWORD those of a user; all of them may be missing.
With KILL, a file, the client writes before and after the member at ENDPOINT is killed and started again: it makes the
file, and waits for KILL.done. Nothing that differs between two runs is printed.
"""

import os
import pathlib
import queue
import threading
import time

import etcd3

# No call should come near it, however busy the machine is.
TIMEOUT_SECONDS = 60


def connect():
    host, port = os.environ["ENDPOINT"].rsplit(":", 1)
    return etcd3.client(
        host=host, port=int(port), timeout=TIMEOUT_SECONDS,
        ca_cert=os.environ.get("CA"), cert_cert=os.environ.get("CERT"), cert_key=os.environ.get("KEY"),
        user=os.environ.get("NAME"), password=os.environ.get("PASSWORD"),
    )


def failure(call):
    try:
        call()
    except Exception as error:  # the kind of error is what is compared
        details = getattr(error, "details", None)
        return f"{type(error).__name__} {details() if callable(details) else error}"
    return "accepted"


def values(client):
    client.put("app/a", "1")
    client.put("app/b", b"\x00\xff")
    client.put("app/a", "2")
    value, meta = client.get("app/a")
    print("get", value, meta.version, meta.mod_revision - meta.create_revision)
    print("missing", client.get("app/none"))
    print("prefix", [(value, meta.key) for value, meta in client.get_prefix("app/", sort_order="descend")])
    print("range", [meta.key for _, meta in client.get_range("app/a", "app/b")])
    print("replace", client.replace("app/a", "2", "3"), client.replace("app/a", "2", "4"))
    print("create", client.put_if_not_exists("app/a", "5"), client.put_if_not_exists("app/c", "6"))
    print("delete", client.delete("app/c"), client.delete("app/c"))
    print("delete prefix", client.delete_prefix("app/").deleted)


def transactions(client):
    on = client.transactions
    for version in (0, 7):
        done, answers = client.transaction(
            compare=[on.version("app/t") == version, on.value("app/none") != "x"] if version else
            [on.version("app/t") == version],
            success=[on.put("app/t", "made"), on.get("app/t")],
            failure=[on.get("app/t"), on.delete("app/t")],
        )
        read = [[value for value, _ in answer] for answer in answers if isinstance(answer, list)]
        print("transaction", done, len(answers), read)


def watches(client):
    seen = queue.Queue()
    events, cancel = client.watch_prefix("app/w/")

    def follow():
        for event in events:
            seen.put((type(event).__name__, event.key, event.value))

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    client.put("app/w/1", "a")
    client.put("app/w/1", "b")
    client.delete("app/w/1")
    print("watch", [seen.get(timeout=TIMEOUT_SECONDS) for _ in range(3)])
    cancel()
    thread.join(TIMEOUT_SECONDS)
    print("watch ended", not thread.is_alive())
    _, meta = client.get("app/w/1")
    revision = client.get_response("app/w/1").header.revision
    events, cancel = client.watch("app/w/1", start_revision=revision - 2)
    print("watch of the past", [type(next(events)).__name__ for _ in range(3)])
    cancel()


def leases(client):
    lease = client.lease(300)
    client.put("app/l", "kept", lease=lease)
    print("lease", lease.granted_ttl, lease.remaining_ttl > 290, lease.keys)
    print("refresh", [answer.TTL for answer in lease.refresh()])
    lease.revoke()
    print("revoked", client.get("app/l"))
    short = client.lease(1)
    client.put("app/l", "short", lease=short)
    events, cancel = client.watch("app/l")
    print("expired", type(next(events)).__name__)
    cancel()


def locks(client):
    first, second = client.lock("app/lock", ttl=60), client.lock("app/lock", ttl=60)
    print("lock", first.acquire(timeout=1), second.acquire(timeout=1), first.is_acquired())
    print("unlock", first.release(), second.acquire(timeout=TIMEOUT_SECONDS), second.release())


def refusals(client):
    revision = client.get_response("app/none").header.revision
    if os.environ.get("NAME"):
        print("of another", failure(lambda: client.put("other", "x")))
        print("of another, read", failure(lambda: client.get("other")))
        print("compact", failure(lambda: client.compact(revision)))
        return
    print("future", failure(lambda: client.compact(revision + 1000)))
    client.compact(revision)
    print("compacted", failure(lambda: client.compact(revision)))
    print("large", failure(lambda: client.put("app/large", "x" * 1_700_000)))
    print("members", [member.name for member in client.members])


# Writes before and after the kill.
WRITES = 30


def failover(client):
    revision = client.get_response("app/f").header.revision
    lease = client.lease(60)
    client.put("app/leased", "x", lease=lease)
    done = threading.Event()
    order = []

    def follow():
        # The package ends a watch with its connection: its user begins another one at the next revision.
        following = revision + 1
        while len(order) < 2 * WRITES:
            try:
                events, cancel = client.watch_prefix("app/f/", start_revision=following)
                for event in events:
                    following = event.mod_revision + 1
                    if event.version == 1:  # a put whose answer was lost is made again
                        order.append(event.key.decode())
                    if len(order) == 2 * WRITES:
                        cancel()
                        break
            except Exception:
                time.sleep(0.05)
        done.set()

    threading.Thread(target=follow, daemon=True).start()
    names = [f"app/f/{n:02}" for n in range(2 * WRITES)]
    for n, name in enumerate(names):
        if n == WRITES:
            kill()
        until_written(client, name)
    print("watch", done.wait(TIMEOUT_SECONDS), order == names)
    print("keys", len(list(client.get_prefix("app/f/"))), [answer.TTL for answer in lease.refresh()])
    print("lock", client.lock("app/lock", ttl=60).acquire(timeout=TIMEOUT_SECONDS))


def until_written(client, key):
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while True:
        try:
            return client.put(key, "x")
        except etcd3.exceptions.Etcd3Exception:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def kill():
    file = pathlib.Path(os.environ["KILL"])
    file.touch()
    while not file.with_name(file.name + ".done").exists():
        time.sleep(0.01)


def main():
    client = connect()
    parts = (failover,) if os.environ.get("KILL") else (values, transactions, watches, leases, locks, refusals)
    for part in parts:
        part(client)
    client.close()


main()
