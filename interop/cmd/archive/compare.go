package main

import (
	"context"
	"fmt"
	"hash/maphash"
	"os"
	"os/exec"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"kv-server/interop/internal/process"
)

// Keys that are read at once from a restored store.
const page = 2000

var seed = maphash.MakeSeed()

// state is what is compared of a key. Version 0 is a deletion.
type state struct {
	create, mod, version, lease int64
	value                       uint64
}

// change is an event of the watcher.
type change struct {
	key string
	state
}

// recording is what a watcher of all keys from the first revision on has seen, in order.
type recording struct {
	mutex   sync.Mutex
	changes []change
	err     error
}

func stateOf(kv *mvccpb.KeyValue) state {
	return state{kv.CreateRevision, kv.ModRevision, kv.Version, kv.Lease, maphash.Bytes(seed, kv.Value)}
}

// record watches until the context ends. The client goes on at another member when one is killed.
func record(ctx context.Context, client *clientv3.Client) *recording {
	seen := &recording{}
	names := map[string]string{} // one string for all changes of a key
	events := client.Watch(ctx, "", clientv3.WithPrefix(), clientv3.WithRev(1))
	go func() {
		for answer := range events {
			seen.mutex.Lock()
			if err := answer.Err(); err != nil {
				seen.err = err
			}
			for _, event := range answer.Events {
				name, known := names[string(event.Kv.Key)]
				if !known {
					name = string(event.Kv.Key)
					names[name] = name
				}
				seen.changes = append(seen.changes, change{name, stateOf(event.Kv)})
			}
			seen.mutex.Unlock()
		}
	}()
	return seen
}

func (r *recording) waitFor(revision int64) error {
	for began := time.Now(); time.Since(began) < patience; time.Sleep(50 * time.Millisecond) {
		r.mutex.Lock()
		count, err := len(r.changes), r.err
		reached := count > 0 && r.changes[count-1].mod >= revision
		r.mutex.Unlock()
		if err != nil {
			return fmt.Errorf("the watcher of this test: %w", err)
		}
		if reached {
			return nil
		}
	}
	return fmt.Errorf("the watcher of this test has not seen revision %d after %v", revision, patience)
}

// at is the store at the revision.
func (r *recording) at(revision int64) map[string]state {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	store := map[string]state{}
	for _, change := range r.changes {
		switch {
		case change.mod > revision:
			return store
		case change.version == 0:
			delete(store, change.key)
		default:
			store[change.key] = change.state
		}
	}
	return store
}

// check restores the revision, starts a member with it and compares all its keys. Returns how many there are, and
// how long the restore took.
func check(binary, dir, place string, revision int64, seen *recording) (int, time.Duration, error) {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return 0, 0, err
	}
	defer os.RemoveAll(dir)
	members, err := process.Prepare(binary, dir, 1)
	if err != nil {
		return 0, 0, err
	}
	member := members[0]
	began := time.Now()
	restore := exec.Command(process.Beside(binary, "kvctl"), "restore", "--from", place, "--revision", fmt.Sprint(revision),
		"--data-dir", member.DataDir, "--name", member.Name, "--initial-cluster", member.InitialCluster,
		"--initial-cluster-token", process.Token, "--initial-advertise-peer-urls", member.PeerURL)
	said, err := restore.CombinedOutput()
	took := time.Since(began)
	if err != nil {
		return 0, took, fmt.Errorf("restore: %w\n%s", err, said)
	}
	if err := member.Start(); err != nil {
		return 0, took, err
	}
	defer member.Kill()
	client, err := connect([]string{member.ClientURL})
	if err != nil {
		return 0, took, err
	}
	defer client.Close()
	count, err := compare(client, revision, seen.at(revision))
	return count, took, err
}

func compare(client *clientv3.Client, revision int64, wanted map[string]state) (int, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	count, from := 0, "\x00"
	for {
		answer, err := client.Get(ctx, from, clientv3.WithFromKey(), clientv3.WithLimit(page))
		if err != nil {
			return count, err
		}
		if answer.Header.Revision != revision {
			return count, fmt.Errorf("the restored store is at revision %d", answer.Header.Revision)
		}
		for _, kv := range answer.Kvs {
			count++
			state, known := wanted[string(kv.Key)]
			if !known || state != stateOf(kv) {
				return count, fmt.Errorf("key %q: restored %+v; the watcher saw %+v (%v)",
					kv.Key, stateOf(kv), state, known)
			}
			from = string(kv.Key) + "\x00"
		}
		if !answer.More {
			break
		}
	}
	if count != len(wanted) {
		return count, fmt.Errorf("restored %d keys; the watcher saw %d", count, len(wanted))
	}
	return count, nil
}
