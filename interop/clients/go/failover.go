package main

import (
	"context"
	"fmt"
	"os"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// Writes before and after a member is killed.
const writes = 30

// failover writes, asks for a member to be killed, writes on, and says what a watch and a lease felt.
//
// It asks by making the file KILL. The file KILL.done says that the member is gone.
func failover(ctx context.Context, client *clientv3.Client) error {
	granted, err := client.Grant(ctx, 60)
	if err != nil {
		return err
	}
	if _, err := client.KeepAlive(ctx, granted.ID); err != nil {
		return err
	}
	if _, err := client.Put(ctx, "app/leased", "x", clientv3.WithLease(granted.ID)); err != nil {
		return err
	}
	watch := client.Watch(ctx, "app/f/", clientv3.WithPrefix())
	for i := range 2 * writes {
		if i == writes {
			if err := kill(ctx); err != nil {
				return err
			}
		}
		if err := write(ctx, client, fmt.Sprintf("app/f/%02d", i)); err != nil {
			return err
		}
	}
	seen := 0
	for seen < 2*writes {
		answer, isOpen := <-watch
		if !isOpen || answer.Err() != nil {
			return fmt.Errorf("the watch ended: %w", answer.Err())
		}
		for _, event := range answer.Events {
			if want := fmt.Sprintf("app/f/%02d", seen); event.IsCreate() && string(event.Kv.Key) == want {
				seen++
			} else if event.IsCreate() {
				return fmt.Errorf("the watch brought %s, want %s", event.Kv.Key, want)
			}
		}
	}
	say("watch:", seen, "keys in order")
	read, err := client.Get(ctx, "app/f/", clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err != nil {
		return err
	}
	left, err := client.TimeToLive(ctx, granted.ID, clientv3.WithAttachedKeys())
	if err != nil {
		return err
	}
	say("keys:", read.Count, "lease:", left.TTL > 0, len(left.Keys))
	return nil
}

// write repeats a put until it is acknowledged.
func write(ctx context.Context, client *clientv3.Client, key string) error {
	for {
		call, cancel := context.WithTimeout(ctx, 2*time.Second)
		_, err := client.Put(call, key, "x")
		cancel()
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return err
		}
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
