package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/leasing"
	"go.etcd.io/etcd/client/v3/mirror"
	"go.etcd.io/etcd/client/v3/namespace"
	"go.etcd.io/etcd/client/v3/naming/endpoints"
	"go.etcd.io/etcd/client/v3/naming/resolver"
	"go.etcd.io/etcd/client/v3/ordering"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
)

// namespaces uses keys, watches and leases below a prefix that the package adds and removes.
func namespaces(ctx context.Context, client *clientv3.Client) error {
	const prefix = "app/space/"
	kv := namespace.NewKV(client.KV, prefix)
	watcher := namespace.NewWatcher(client.Watcher, prefix)
	lease := namespace.NewLease(client.Lease, prefix)
	granted, err := lease.Grant(ctx, 300)
	if err != nil {
		return err
	}
	first, err := kv.Put(ctx, "k", "1", clientv3.WithLease(granted.ID))
	if err != nil {
		return err
	}
	answer, err := kv.Txn(ctx).If(clientv3.Compare(clientv3.Value("k"), "=", "1")).
		Then(clientv3.OpPut("k", "2"), clientv3.OpGet("", clientv3.WithPrefix())).Commit()
	if err != nil {
		return err
	}
	left, err := lease.TimeToLive(ctx, granted.ID, clientv3.WithAttachedKeys())
	if err != nil {
		return err
	}
	seen, err := events(watcher.Watch(ctx, "", clientv3.WithPrefix(), clientv3.WithRev(first.Header.Revision)), 2)
	if err != nil {
		return err
	}
	raw, err := client.Get(ctx, prefix, clientv3.WithPrefix())
	if err != nil {
		return err
	}
	say("namespace:", answer.Succeeded, pairs(answer.Responses[1].GetResponseRange().Kvs), "keys of the lease:",
		len(left.Keys), "watch:", seen, "outside:", pairs(raw.Kvs))
	_, err = kv.Delete(ctx, "", clientv3.WithFromKey())
	if err != nil {
		return err
	}
	raw, err = client.Get(ctx, prefix, clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err == nil {
		say("namespace, all deleted:", raw.Count)
	}
	return err
}

// mirrors reads all keys below a prefix in pages, then what changes: what it has must be what is there.
func mirrors(ctx context.Context, client *clientv3.Client) error {
	const prefix, count = "app/mirror/", 1500 // more than a page of the package
	for i := 0; i < count; i += 100 {
		var puts []clientv3.Op
		for j := range 100 {
			puts = append(puts, clientv3.OpPut(fmt.Sprintf("%s%05d", prefix, i+j), "v"))
		}
		if _, err := client.Txn(ctx).Then(puts...).Commit(); err != nil {
			return err
		}
	}
	syncer, copied := mirror.NewSyncer(client, prefix, 0), map[string]string{}
	base, errs := syncer.SyncBase(ctx)
	for page := range base {
		for _, kv := range page.Kvs {
			copied[string(kv.Key)] = string(kv.Value)
		}
	}
	if err := <-errs; err != nil {
		return err
	}
	say("mirror, base:", len(copied))
	if _, err := client.Put(ctx, prefix+"00000", "changed"); err != nil {
		return err
	}
	if _, err := client.Delete(ctx, prefix+"00001", clientv3.WithRange(prefix+"00011")); err != nil {
		return err
	}
	seen, err := events(syncer.SyncUpdates(ctx), 11)
	if err != nil {
		return err
	}
	say("mirror, updates:", seen)
	_, err = client.Delete(ctx, prefix, clientv3.WithPrefix())
	return err
}

// leasedReads reads through a cache that owns its keys; a write of another owner takes the key away.
func leasedReads(ctx context.Context, client *clientv3.Client) error {
	first, closeFirst, err := leasing.NewKV(client, "app/leasing/")
	if err != nil {
		return err
	}
	defer closeFirst()
	second, closeSecond, err := leasing.NewKV(client, "app/leasing/")
	if err != nil {
		return err
	}
	defer closeSecond()
	for i, kv := range []clientv3.KV{first, second, first} {
		if _, err := kv.Put(ctx, "app/leased", fmt.Sprint(i)); err != nil {
			return err
		}
		for _, reader := range []clientv3.KV{first, second} {
			read, err := reader.Get(ctx, "app/leased")
			if err != nil {
				return err
			}
			say("leasing:", pairs(read.Kvs))
		}
	}
	answer, err := second.Txn(ctx).If(clientv3.Compare(clientv3.Value("app/leased"), "=", "2")).
		Then(clientv3.OpDelete("app/leased")).Commit()
	if err != nil {
		return err
	}
	read, err := first.Get(ctx, "app/leased")
	if err == nil {
		say("leasing, transaction:", answer.Succeeded, len(read.Kvs))
	}
	return err
}

// orderedReads refuses an answer that is older than one before.
func orderedReads(ctx context.Context, client *clientv3.Client) error {
	errOlder := errors.New("older than an answer before")
	kv := ordering.NewKV(client.KV, func(clientv3.Op, clientv3.OpResponse, int64) error { return errOlder })
	for i := range 20 {
		if _, err := kv.Put(ctx, "app/ordered", fmt.Sprint(i)); err != nil {
			return err
		}
		if _, err := kv.Get(ctx, "app/ordered", clientv3.WithSerializable()); err != nil && !errors.Is(err, errOlder) {
			return err
		}
		read, err := kv.Get(ctx, "app/ordered")
		if err != nil {
			return err
		}
		if got := string(read.Kvs[0].Value); got != fmt.Sprint(i) {
			return fmt.Errorf("ordering: %s after a put of %d", got, i)
		}
	}
	say("ordering: 20 writes read")
	return nil
}

// names registers servers, and calls them by the name of their service, in turn, until they are gone.
func names(ctx context.Context, client *clientv3.Client) error {
	const service = "app/service"
	manager, err := endpoints.NewManager(client, service)
	if err != nil {
		return err
	}
	granted, err := client.Grant(ctx, 60)
	if err != nil {
		return err
	}
	for i := range 2 {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		server := grpc.NewServer()
		healthpb.RegisterHealthServer(server, health.NewServer())
		go func() { _ = server.Serve(listener) }()
		defer server.Stop()
		endpoint := endpoints.Endpoint{Addr: listener.Addr().String(), Metadata: i}
		if err := manager.AddEndpoint(ctx, fmt.Sprintf("%s/%d", service, i), endpoint,
			clientv3.WithLease(granted.ID)); err != nil {
			return err
		}
	}
	listed, err := manager.List(ctx)
	if err != nil {
		return err
	}
	var keys []string
	for key := range listed {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	say("naming:", keys)
	if err := callByName(ctx, client, service); err != nil {
		return err
	}
	updates, err := manager.NewWatchChannel(ctx)
	if err != nil {
		return err
	}
	say("naming, watch:", len(<-updates))
	if err := manager.DeleteEndpoint(ctx, service+"/0"); err != nil {
		return err
	}
	removed := <-updates
	say("naming, removed:", removed[0].Op == endpoints.Delete, removed[0].Key)
	if _, err := client.Revoke(ctx, granted.ID); err != nil {
		return err
	}
	expired := <-updates
	say("naming, expired:", expired[0].Op == endpoints.Delete, expired[0].Key)
	return nil
}

func callByName(ctx context.Context, client *clientv3.Client, service string) error {
	builder, err := resolver.NewBuilder(client)
	if err != nil {
		return err
	}
	connection, err := grpc.NewClient("etcd:///"+service, grpc.WithResolvers(builder),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultServiceConfig(`{"loadBalancingConfig": [{"round_robin":{}}]}`))
	if err != nil {
		return err
	}
	defer connection.Close()
	for range 4 {
		answer, err := healthpb.NewHealthClient(connection).Check(ctx, &healthpb.HealthCheckRequest{},
			grpc.WaitForReady(true))
		if err != nil {
			return err
		}
		say("naming, call:", answer.Status)
	}
	return nil
}
