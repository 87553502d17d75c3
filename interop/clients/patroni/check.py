"""Uses Patroni's etcd3 store as two candidates for one PostgreSQL cluster do, and prints what they see.

ENDPOINTS are host:port. CA, CERT and KEY are files, NAME and PASSWORD those of a user; all of them may be missing.
With KILL, a file, the leader of PostgreSQL renews its lock while a member is killed: the file is made, and KILL.done
waited for. Nothing that differs between two runs is printed.
"""

import json
import logging
import os
import pathlib
import threading
import time

from patroni.dcs import get_dcs

# No call should come near it, however busy the machine is.
TIMEOUT_SECONDS = 60
TTL_SECONDS = 20


def candidate(name):
    environment = os.environ
    settings = {"hosts": environment["ENDPOINTS"].split(",")}
    if "CA" in environment:
        settings.update(protocol="https", cacert=environment["CA"])
    if "CERT" in environment:
        settings.update(cert=environment["CERT"], key=environment["KEY"])
    if "NAME" in environment:
        settings.update(username=environment["NAME"], password=environment["PASSWORD"])
    return get_dcs({
        "namespace": "/app/", "scope": "shop", "name": name, "ttl": TTL_SECONDS, "loop_wait": 5,
        "retry_timeout": 10, "etcd3": settings,
    })


def until(question):
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not question():
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(0.05)


def acquires(dcs):
    return bool(dcs.attempt_to_acquire_leader())


# What another candidate wrote is waited for: each of them reads from a copy that a watch keeps.
def bootstrap(one, other):
    print("empty", one.get_cluster().is_empty())
    print("initialize", bool(one.initialize(create_new=True, sysid="")), bool(other.initialize(create_new=True, sysid="")))
    print("system", bool(one.initialize(create_new=False, sysid="7000000000000000001")))
    print("config", one.set_config_value(json.dumps({"ttl": TTL_SECONDS})))
    for dcs, role in ((one, "primary"), (other, "replica")):
        print("member", dcs.touch_member({"role": role, "state": "running", "conn_url": f"postgres://{role}/"}))
    print("leader", acquires(one), acquires(other))
    until(lambda: other.get_cluster().leader_name == "one" and len(other.get_cluster().members) == 2)
    cluster = other.get_cluster()
    print("seen", cluster.leader_name, sorted(member.name for member in cluster.members), cluster.initialize,
          cluster.config.data, cluster.is_unlocked())


def lead(one, other):
    print("update", one.update_leader(one.get_cluster(), 1024, {"slot": 1000}, {"one": "http://one/"}))
    until(lambda: other.get_cluster().status.last_lsn == 1024 and other.get_cluster().failsafe)
    print("status", other.get_cluster().status.slots, other.get_cluster().failsafe)
    version = one.get_cluster().sync.version
    state = one.write_sync_state("one", ["other"], 0, version=version)
    until(lambda: other.get_cluster().sync.matches("other"))
    print("sync", state.leader, state.sync_standby)
    print("sync of an old version", one.write_sync_state("one", [], 0, version=1))
    print("history", one.set_history_value(json.dumps([[1, 1024, "no recovery target specified"]])))
    until(lambda: other.get_cluster().history)
    print("timeline", other.get_cluster().history.lines)


def switch(one, other):
    print("failover", other.manual_failover("one", "other"))
    until(lambda: one.get_cluster().failover)
    failover = one.get_cluster().failover
    print("asked for", failover.leader, failover.candidate)
    # A watch of the leader's key ends when the lock is given up.
    woken = []
    version = other.get_cluster().leader.version
    waiting = threading.Thread(target=lambda: woken.append(other.watch(version, TIMEOUT_SECONDS)))
    waiting.start()
    print("give up", one.delete_leader(one.get_cluster().leader, 2048))
    waiting.join()
    print("woken", woken)
    print("leader", acquires(other), acquires(one))
    print("failover done", other.manual_failover("", ""))
    until(lambda: one.get_cluster().leader_name == "other")
    print("seen", one.get_cluster().leader_name)


def expire(one, other):
    """The leader does not renew: the lock ends with its lease, and the member's key with it."""
    one.touch_member({"role": "replica", "state": "streaming"})

    def free():
        one.touch_member({"role": "replica", "state": "streaming"})
        return one.get_cluster().is_unlocked()

    until(free)
    print("after the lease", acquires(one))
    until(lambda: one.get_cluster().leader_name == "one")
    print("members", [member.name for member in one.get_cluster().members])
    print("delete", bool(one.delete_cluster()))
    until(lambda: one.get_cluster().is_empty())
    print("empty", one.get_cluster().is_empty())


def failover(one, other):
    one.touch_member({"role": "primary"})
    print("leader", acquires(one), acquires(other))
    until(lambda: one.get_cluster().leader_name == "one")
    renewed = []
    for turn in range(20):
        if turn == 5:
            file = pathlib.Path(os.environ["KILL"])
            file.touch()
            until(file.with_name(file.name + ".done").exists)
        renewed.append(bool(one.update_leader(one.get_cluster(), turn)))
        time.sleep(0.25)
    print("kept the lock", len(renewed), all(renewed))
    other.touch_member({"role": "replica"})
    print("seen", other.get_cluster().leader_name, acquires(other))


def main():
    logging.disable(logging.CRITICAL)
    one, other = candidate("one"), candidate("other")
    for part in (failover,) if "KILL" in os.environ else (bootstrap, lead, switch, expire):
        part(one, other)


main()
os._exit(0)  # its threads that watch do not end
