package main

import (
	"context"
	"fmt"
	"os"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
)

// pairs shows keys and values.
func pairs(kvs []*mvccpb.KeyValue) string {
	var all []string
	for _, kv := range kvs {
		all = append(all, fmt.Sprintf("%s=%s", kv.Key, kv.Value))
	}
	return strings.Join(all, " ")
}

// events shows the changes that a watch brings, until there are so many.
func events(watch clientv3.WatchChan, wanted int) (string, error) {
	var all []string
	for answer := range watch {
		if err := answer.Err(); err != nil {
			return "", err
		}
		for _, event := range answer.Events {
			all = append(all, fmt.Sprintf("%s %s=%s", event.Type, event.Kv.Key, event.Kv.Value))
		}
		if len(all) >= wanted {
			break
		}
	}
	return strings.Join(all, ", "), nil
}

func values(ctx context.Context, client *clientv3.Client) error {
	for _, pair := range []string{"a=1", "b=2", "a=3"} {
		key, value, _ := strings.Cut(pair, "=")
		answer, err := client.Put(ctx, "app/"+key, value, clientv3.WithPrevKV())
		if err != nil {
			return err
		}
		say("put", pair, "before:", answer.PrevKv != nil)
	}
	for _, options := range [][]clientv3.OpOption{
		{clientv3.WithPrefix()},
		{clientv3.WithPrefix(), clientv3.WithSort(clientv3.SortByVersion, clientv3.SortDescend)},
		{clientv3.WithPrefix(), clientv3.WithLimit(1)},
		{clientv3.WithPrefix(), clientv3.WithKeysOnly(), clientv3.WithSerializable()},
		{clientv3.WithRange("app/b"), clientv3.WithCountOnly()},
	} {
		answer, err := client.Get(ctx, "app/", options...)
		if err != nil {
			return err
		}
		say("get", pairs(answer.Kvs), answer.Count, answer.More)
	}
	answer, err := client.Delete(ctx, "app/", clientv3.WithPrefix(), clientv3.WithPrevKV())
	if err != nil {
		return err
	}
	say("delete", answer.Deleted, pairs(answer.PrevKvs))
	return nil
}

func transactions(ctx context.Context, client *clientv3.Client) error {
	for range 2 {
		answer, err := client.Txn(ctx).
			If(clientv3.Compare(clientv3.CreateRevision("app/t"), "=", 0)).
			Then(clientv3.OpPut("app/t", "made"), clientv3.OpGet("app/t")).
			Else(clientv3.OpGet("app/t"), clientv3.OpDelete("app/t", clientv3.WithPrevKV())).Commit()
		if err != nil {
			return err
		}
		say("transaction", answer.Succeeded, len(answer.Responses))
	}
	return nil
}

func watches(ctx context.Context, client *clientv3.Client) error {
	first, err := client.Put(ctx, "app/w/1", "a")
	if err != nil {
		return err
	}
	if _, err := client.Put(ctx, "app/w/2", "b"); err != nil {
		return err
	}
	if _, err := client.Delete(ctx, "app/w/", clientv3.WithPrefix()); err != nil {
		return err
	}
	past := clientv3.WithRev(first.Header.Revision)
	seen, err := events(client.Watch(ctx, "app/w/", clientv3.WithPrefix(), past), 4)
	if err != nil {
		return err
	}
	say("watch of the past:", seen)
	seen, err = events(client.Watch(ctx, "app/w/", clientv3.WithPrefix(), past, clientv3.WithFilterPut()), 2)
	say("watch of deletions:", seen)
	return err
}

func leases(ctx context.Context, client *clientv3.Client) error {
	granted, err := client.Grant(ctx, 300)
	if err != nil {
		return err
	}
	if _, err := client.Put(ctx, "app/l", "kept", clientv3.WithLease(granted.ID)); err != nil {
		return err
	}
	left, err := client.TimeToLive(ctx, granted.ID, clientv3.WithAttachedKeys())
	if err != nil {
		return err
	}
	renewed, err := client.KeepAliveOnce(ctx, granted.ID)
	if err != nil {
		return err
	}
	say("lease", left.GrantedTTL, len(left.Keys), renewed.TTL)
	if _, err := client.Revoke(ctx, granted.ID); err != nil {
		return err
	}
	brief, err := client.Grant(ctx, 1)
	if err != nil {
		return err
	}
	put, err := client.Put(ctx, "app/l", "brief", clientv3.WithLease(brief.ID))
	if err != nil {
		return err
	}
	seen, err := events(client.Watch(ctx, "app/l", clientv3.WithRev(put.Header.Revision)), 2)
	say("expired:", seen)
	return err
}

// concurrent makes sessions, locks, elections and software transactions.
func concurrent(ctx context.Context, client *clientv3.Client) error {
	first, err := concurrency.NewSession(client, concurrency.WithTTL(60))
	if err != nil {
		return err
	}
	defer first.Close()
	second, err := concurrency.NewSession(client, concurrency.WithTTL(60))
	if err != nil {
		return err
	}
	defer second.Close()
	held, waiting := concurrency.NewMutex(first, "app/lock"), concurrency.NewMutex(second, "app/lock")
	if err := held.Lock(ctx); err != nil {
		return err
	}
	say("second lock:", waiting.TryLock(ctx))
	got := make(chan error)
	go func() { got <- waiting.Lock(ctx) }()
	if err := held.Unlock(ctx); err != nil {
		return err
	}
	if err := <-got; err != nil {
		return err
	}
	say("second lock after the first")
	if err := waiting.Unlock(ctx); err != nil {
		return err
	}
	if err := elect(ctx, first, second); err != nil {
		return err
	}
	for range 5 {
		if _, err := concurrency.NewSTM(client, func(stm concurrency.STM) error {
			stm.Put("app/n", stm.Get("app/n")+"x")
			return nil
		}, concurrency.WithAbortContext(ctx)); err != nil {
			return err
		}
	}
	answer, err := client.Get(ctx, "app/n")
	if err != nil {
		return err
	}
	say("software transactions", pairs(answer.Kvs))
	return nil
}

func elect(ctx context.Context, first, second *concurrency.Session) error {
	one, other := concurrency.NewElection(first, "app/election"), concurrency.NewElection(second, "app/election")
	if err := one.Campaign(ctx, "one"); err != nil {
		return err
	}
	observed := other.Observe(ctx)
	say("observed", string((<-observed).Kvs[0].Value))
	if err := one.Proclaim(ctx, "changed"); err != nil {
		return err
	}
	leader, err := other.Leader(ctx)
	if err != nil {
		return err
	}
	say("leader", string(leader.Kvs[0].Value))
	next := make(chan error)
	go func() { next <- other.Campaign(ctx, "other") }()
	if err := one.Resign(ctx); err != nil {
		return err
	}
	if err := <-next; err != nil {
		return err
	}
	for answer := range observed {
		if string(answer.Kvs[0].Value) == "other" {
			break
		}
	}
	say("leader other")
	if err := other.Resign(ctx); err != nil {
		return err
	}
	_, err = one.Leader(ctx)
	say("leader", failure(err))
	return nil
}

func refusals(ctx context.Context, client *clientv3.Client) error {
	read, err := client.Get(ctx, "app/none")
	if err != nil {
		return err
	}
	revision := read.Header.Revision
	if os.Getenv("NAME") != "" {
		_, err := client.Put(ctx, "other", "x")
		say("of another:", failure(err))
		_, err = client.Get(ctx, "other")
		say("of another, read:", failure(err))
		_, err = client.UserList(ctx)
		say("users:", failure(err))
		return nil
	}
	_, err = client.Compact(ctx, revision+1000)
	say("future:", failure(err))
	_, err = client.Compact(ctx, revision)
	say("compact:", failure(err))
	_, err = client.Get(ctx, "app/a", clientv3.WithRev(1))
	say("compacted, read:", failure(err))
	_, err = client.Put(ctx, "app/large", strings.Repeat("x", 1_700_000))
	say("large:", failure(err))
	members, err := client.MemberList(ctx)
	if err != nil {
		return err
	}
	for _, member := range members.Members {
		say("member", member.Name)
	}
	return nil
}
