package check

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"kv-server/interop/kubernetes/internal/cluster"
)

// leaderElection lets two candidates run. The first wins and stops without a word; the second follows when
// the time of the first one's lease is over.
func leaderElection(ctx context.Context, t *task) error {
	candidate := func(name string) (func(), <-chan time.Time, error) {
		leads := make(chan time.Time, 1)
		config := leaderelection.LeaderElectionConfig{
			Lock: &resourcelock.LeaseLock{
				LeaseMeta: metav1.ObjectMeta{Name: "lock", Namespace: t.namespace}, Client: t.Client.CoordinationV1(),
				LockConfig: resourcelock.ResourceLockConfig{Identity: name},
			},
			LeaseDuration: 8 * time.Second, RenewDeadline: 6 * time.Second, RetryPeriod: time.Second,
			Callbacks: leaderelection.LeaderCallbacks{
				OnStartedLeading: func(context.Context) { leads <- time.Now() },
				OnStoppedLeading: func() {},
			},
		}
		elector, err := leaderelection.NewLeaderElector(config)
		if err != nil {
			return nil, nil, err
		}
		running, stop := context.WithCancel(ctx)
		go elector.Run(running)
		return stop, leads, nil
	}
	wait := func(leads <-chan time.Time) error {
		select {
		case <-leads:
			return nil
		case <-ctx.Done():
			return fmt.Errorf("no candidate leads: %w", ctx.Err())
		}
	}
	stopFirst, first, err := candidate("first")
	if err != nil {
		return err
	}
	defer stopFirst()
	if err := wait(first); err != nil {
		return err
	}
	stopSecond, second, err := candidate("second")
	if err != nil {
		return err
	}
	defer stopSecond()
	stopFirst()
	if err := wait(second); err != nil {
		return err
	}
	lease, err := t.Client.CoordinationV1().Leases(t.namespace).Get(ctx, "lock", metav1.GetOptions{})
	if err != nil {
		return err
	}
	t.observe("holder %s, transitions %d", *lease.Spec.HolderIdentity, *lease.Spec.LeaseTransitions)
	return nil
}

// eventsExpire waits until the store deletes events by the end of their lease, and not before.
func eventsExpire(ctx context.Context, t *task) error {
	const count = 5
	ttl, err := time.ParseDuration(cluster.EventTTL)
	if err != nil {
		return err
	}
	events := t.Client.CoreV1().Events(t.namespace)
	watcher, err := events.Watch(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	defer watcher.Stop()
	created := time.Now()
	for _, name := range numbered("event", count) {
		event := &corev1.Event{
			ObjectMeta:     metav1.ObjectMeta{Name: name},
			InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: t.namespace, Name: "p"},
		}
		if _, err := events.Create(ctx, event, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	lease, err := t.leaseOf(ctx, "/registry/events/"+t.namespace+"/event-000")
	if err != nil {
		return err
	}
	t.observe("events: a lease of %d s", lease)
	if lease, err = t.leaseOf(ctx, "/registry/masterleases/192.0.2.1"); err != nil {
		return err
	}
	t.observe("the apiserver's own entry: a lease of %d s", lease)
	for deleted := 0; deleted < count; {
		event, err := next(ctx, watcher)
		if err != nil {
			return err
		}
		if event.Type == watch.Deleted {
			deleted++
		}
		if passed := time.Since(created); event.Type == watch.Deleted && passed < ttl {
			return fmt.Errorf("an event with a TTL of %v ended after %v", ttl, passed)
		}
	}
	t.remark("all %d gone %.1f s after the first was created", count, time.Since(created).Seconds())
	left, err := events.List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	t.observe("events left: %d", len(left.Items))
	return nil
}

// leaseOf is the TTL, in seconds, of the lease that a key of the store has.
func (t *task) leaseOf(ctx context.Context, key string) (int64, error) {
	read, err := t.Store.Get(ctx, key)
	if err != nil {
		return 0, err
	}
	if len(read.Kvs) == 0 || read.Kvs[0].Lease == 0 {
		return 0, fmt.Errorf("the store has %d keys %s, with a lease: %v", len(read.Kvs), key, read.Kvs)
	}
	lease, err := t.Store.TimeToLive(ctx, clientv3.LeaseID(read.Kvs[0].Lease))
	if err != nil {
		return 0, err
	}
	return lease.GrantedTTL, nil
}

// consistentReads lists after each write. The apiserver must answer from its cache, which asks the store
// for progress of its watch, and the list must have the write.
func consistentReads(ctx context.Context, t *task) error {
	const count = 20
	for i, name := range numbered("s", count) {
		if err := t.create(ctx, cached, name); err != nil {
			return err
		}
		list, err := t.resource(cached).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		if len(list.Items) != i+1 {
			return fmt.Errorf("%d objects after %d writes: %s", len(list.Items), i+1, namesOf(list))
		}
	}
	metrics, err := t.API.Metrics(ctx)
	if err != nil {
		return err
	}
	labels := map[string]string{"resource": "secrets"}
	total := metrics.Sum("apiserver_watch_cache_consistent_read_total", labels)
	labels["success"], labels["fallback"] = "true", "false"
	succeeded := metrics.Sum("apiserver_watch_cache_consistent_read_total", labels)
	t.observe("all from the cache: %t", succeeded >= count && succeeded == total)
	t.remark("%.0f of %.0f lists from the cache", succeeded, total)
	if succeeded < count || succeeded != total {
		return fmt.Errorf("%.0f of %.0f lists came from the cache, at least %d were asked for", succeeded, total, count)
	}
	return nil
}

// rangeStream lists more than a page of the store, and asks the members whether RangeStream was called. The
// apiserver falls back to pages for ten minutes when one call of it is refused.
func rangeStream(ctx context.Context, t *task) error {
	if err := t.create(ctx, uncached, numbered("r", 60)...); err != nil {
		return err
	}
	list, err := t.resource(uncached).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	t.observe("%d objects", len(list.Items))
	called, err := t.Members.Sum(ctx, "grpc_server_handled_total", map[string]string{
		"grpc_method": "RangeStream", "grpc_code": "OK",
	})
	if err != nil {
		return err
	}
	t.observe("RangeStream answered: %t", called > 0)
	return nil
}

// encryption looks at the bytes of a secret in the store.
func encryption(ctx context.Context, t *task) error {
	const secret = "a-value-that-must-not-be-stored-in-the-clear"
	if _, err := t.resource(cached).Create(ctx, object(cached, "s", secret), metav1.CreateOptions{}); err != nil {
		return err
	}
	stored, err := t.Store.Get(ctx, "/registry/secrets/"+t.namespace+"/s")
	if err != nil {
		return err
	}
	if len(stored.Kvs) != 1 {
		return fmt.Errorf("the store has %d such keys", len(stored.Kvs))
	}
	value := stored.Kvs[0].Value
	t.observe("encrypted: %t, in the clear: %t", bytes.HasPrefix(value, []byte("k8s:enc:aescbc:v1:key1:")),
		bytes.Contains(value, []byte(secret)))
	read, err := t.Client.CoreV1().Secrets(t.namespace).Get(ctx, "s", metav1.GetOptions{})
	if err != nil {
		return err
	}
	t.observe("read back: %t", string(read.Data["value"]) == secret)
	return nil
}

// discovery asks for all groups and resources at once.
func discovery(ctx context.Context, t *task) error {
	for _, path := range []string{"/api", "/apis"} {
		body, err := t.API.Get(ctx, path, "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList")
		if err != nil {
			return err
		}
		var groups struct {
			Kind  string
			Items []struct {
				Metadata metav1.ObjectMeta
				Versions []struct {
					Version   string
					Resources []struct{ Resource string }
				}
			}
		}
		if err := json.Unmarshal(body, &groups); err != nil {
			return err
		}
		for _, group := range groups.Items {
			if strings.HasSuffix(group.Metadata.Name, customGroup) {
				continue // another check defines it meanwhile
			}
			for _, version := range group.Versions {
				t.observe("%s %s %s/%s: %d resources", path, groups.Kind, group.Metadata.Name, version.Version, len(version.Resources))
			}
		}
	}
	return nil
}
