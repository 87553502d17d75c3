// Command cilium writes, locks and watches keys with Cilium's client of its key-value store, which Cilium's agents and
// its cluster mesh use, and prints what it answers.
//
// ENDPOINTS are host:port. CA, CERT and KEY are files, NAME and PASSWORD those of a user; all of them may be missing.
// With KILL, a file, keys are written before and after a member is killed: the file is made, and KILL.done waited for.
// Nothing that differs between two runs is printed.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/cilium/cilium/pkg/kvstore"
)

// No run should come near it, however busy the machine is.
const timeout = 2 * time.Minute

const prefix = "cilium/state/"

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	err := run(ctx)
	cancel()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	client, err := connect(ctx)
	if err != nil {
		return err
	}
	defer client.Close()
	events := client.ListAndWatch(ctx, prefix)
	if os.Getenv("KILL") != "" {
		return failover(ctx, client, events)
	}
	lock, err := client.LockPath(ctx, "cilium/locks/a")
	if err != nil {
		return err
	}
	a, b, none := prefix+"a", prefix+"b", prefix+"none"
	done := func(err error) (any, error) { return "done", err }
	text := func(found []byte, err error) (any, error) { return string(found), err }
	list := func(found kvstore.KeyValuePairs, err error) (any, error) {
		var pairs []string
		for _, key := range slices.Sorted(maps.Keys(found)) {
			pairs = append(pairs, key+"="+string(found[key].Data))
		}
		return pairs, err
	}
	for _, step := range []struct {
		name string
		do   func() (any, error)
	}{
		{"create", func() (any, error) { return client.CreateOnly(ctx, a, []byte("1"), true) }},
		{"create again", func() (any, error) { return client.CreateOnly(ctx, a, []byte("2"), true) }},
		{"update to the same", func() (any, error) { return client.UpdateIfDifferent(ctx, a, []byte("1"), true) }},
		{"update to another", func() (any, error) { return client.UpdateIfDifferent(ctx, a, []byte("3"), true) }},
		{"update", func() (any, error) { return done(client.Update(ctx, b, []byte("4"), false)) }},
		{"get", func() (any, error) { return text(client.Get(ctx, a)) }},
		{"get nothing", func() (any, error) { return text(client.Get(ctx, none)) }},
		{"list", func() (any, error) { return list(client.ListPrefix(ctx, prefix)) }},
		{"create locked", func() (any, error) { return client.CreateOnlyIfLocked(ctx, none, []byte("5"), false, lock) }},
		{"update locked", func() (any, error) { return done(client.UpdateIfLocked(ctx, b, []byte("6"), true, lock)) }},
		{"list locked", func() (any, error) { return list(client.ListPrefixIfLocked(ctx, prefix, lock)) }},
		{"delete locked", func() (any, error) { return done(client.DeleteIfLocked(ctx, none, lock)) }},
		{"unlock", func() (any, error) { return done(lock.Unlock(ctx)) }},
		{"get unlocked", func() (any, error) { return text(client.GetIfLocked(ctx, a, lock)) }},
		{"update unlocked", func() (any, error) { return done(client.UpdateIfLocked(ctx, b, []byte("7"), true, lock)) }},
		{"elsewhere", func() (any, error) { return done(client.Update(ctx, "other/a", []byte("8"), true)) }},
		{"delete", func() (any, error) { return done(client.Delete(ctx, a)) }},
		{"delete all", func() (any, error) { return done(client.DeletePrefix(ctx, prefix)) }},
	} {
		answer, err := step.do()
		fmt.Println(step.name, answer, err)
	}
	for range 9 {
		event, err := next(ctx, events)
		if err != nil {
			return err
		}
		fmt.Println(event.Typ, event.Key, string(event.Value))
	}
	return nil
}

// failover writes keys, half of them after a member is killed: each has to be there, and the watch has to bring each
// once and in order.
func failover(ctx context.Context, client kvstore.BackendOperations, events kvstore.EventChan) error {
	const count = 60
	for i := range count {
		if i == count/2 {
			if err := kill(ctx); err != nil {
				return err
			}
		}
		for {
			call, cancel := context.WithTimeout(ctx, 2*time.Second)
			err := client.Update(call, fmt.Sprintf("%s%02d", prefix, i), nil, true)
			cancel()
			if err == nil {
				break
			}
			if ctx.Err() != nil {
				return err
			}
		}
	}
	for seen := 0; seen < count; {
		event, err := next(ctx, events)
		if err != nil {
			return err
		}
		if event.Typ == kvstore.EventTypeCreate { // a write that was repeated is a change
			fmt.Println(event.Key)
			seen++
		}
	}
	found, err := client.ListPrefix(ctx, prefix)
	fmt.Println("list", len(found), err)
	return nil
}

// connect waits for the first session.
func connect(ctx context.Context) (kvstore.BackendOperations, error) {
	scheme := "http://"
	if os.Getenv("CA") != "" {
		scheme = "https://"
	}
	endpoints := strings.Split(os.Getenv("ENDPOINTS"), ",")
	for i := range endpoints {
		endpoints[i] = scheme + endpoints[i]
	}
	settings := map[string]any{"endpoints": endpoints}
	for name, variable := range map[string]string{
		"trusted-ca-file": "CA", "cert-file": "CERT", "key-file": "KEY", "username": "NAME", "password": "PASSWORD",
	} {
		if value := os.Getenv(variable); value != "" {
			settings[name] = value
		}
	}
	text, err := json.Marshal(settings) // which YAML includes
	if err != nil {
		return nil, err
	}
	file, err := os.CreateTemp("", "etcd.config")
	if err != nil {
		return nil, err
	}
	defer os.Remove(file.Name())
	if _, err := file.Write(text); err != nil {
		return nil, err
	}
	client, failures := kvstore.NewClient(ctx, slog.New(slog.DiscardHandler), kvstore.EtcdBackendName,
		map[string]string{kvstore.EtcdOptionConfig: file.Name(), kvstore.EtcdRateLimitOption: "1000"}, kvstore.ExtraOptions{})
	return client, <-failures
}

func next(ctx context.Context, events kvstore.EventChan) (kvstore.KeyValueEvent, error) {
	select {
	case event, open := <-events:
		if !open {
			return event, errors.New("the watch has ended")
		}
		return event, nil
	case <-ctx.Done():
		return kvstore.KeyValueEvent{}, ctx.Err()
	}
}

func kill(ctx context.Context) error {
	file := os.Getenv("KILL")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		return err
	}
	for ctx.Err() == nil {
		if _, err := os.Stat(file + ".done"); err == nil {
			return nil
		}
		time.Sleep(10 * time.Millisecond)
	}
	return ctx.Err()
}
