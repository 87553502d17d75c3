package client

import (
	"errors"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// grant makes a lease and revokes it at the end of the test.
func grant(t *testing.T, client *clientv3.Client, ttl int64) clientv3.LeaseID {
	t.Helper()
	granted, err := client.Grant(deadline(t), ttl)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = client.Revoke(deadline(t), granted.ID) })
	return granted.ID
}

func count(t *testing.T, client *clientv3.Client, key string) int64 {
	t.Helper()
	answer, err := client.Get(deadline(t), key, clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err != nil {
		t.Fatal(err)
	}
	return answer.Count
}

func putWith(t *testing.T, client *clientv3.Client, key string, lease clientv3.LeaseID) {
	t.Helper()
	if _, err := client.Put(deadline(t), key, "x", clientv3.WithLease(lease)); err != nil {
		t.Fatal(err)
	}
}

func TestARevokedLeaseTakesItsKeysWithIt(t *testing.T) {
	client := connect(t)
	lease := grant(t, client, 600)
	for _, key := range []string{"lease/revoke/a", "lease/revoke/b"} {
		putWith(t, client, key, lease)
	}
	left, err := client.TimeToLive(deadline(t), lease, clientv3.WithAttachedKeys())
	if err != nil || left.GrantedTTL != 600 || left.TTL < 580 || len(left.Keys) != 2 {
		t.Fatalf("%v %v", left, err)
	}
	if _, err := client.Revoke(deadline(t), lease); err != nil {
		t.Fatal(err)
	}
	if n := count(t, client, "lease/revoke/"); n != 0 {
		t.Fatalf("%d keys are left", n)
	}
	if _, err := client.Revoke(deadline(t), lease); !errors.Is(err, rpctypes.ErrLeaseNotFound) {
		t.Fatalf("revoked twice: %v", err)
	}
	if _, err := client.Put(deadline(t), "lease/revoke/a", "x", clientv3.WithLease(lease)); !errors.Is(err, rpctypes.ErrLeaseNotFound) {
		t.Fatalf("a put with a revoked lease: %v", err)
	}
}

func TestALeaseLivesWhileItIsKeptAliveThroughAnyMemberAndThenExpires(t *testing.T) {
	for _, member := range shared {
		client := connect(t, member)
		key := "lease/alive/" + member.Name
		const ttl = 4
		lease := grant(t, client, ttl)
		putWith(t, client, key, lease)
		alive, err := client.KeepAlive(deadline(t), lease)
		if err != nil {
			t.Fatal(err)
		}
		for begin := time.Now(); time.Since(begin) < 6*time.Second; {
			answer, ok := <-alive
			if !ok || answer.TTL != ttl {
				t.Fatalf("%s: kept alive until %v: %v", member.Name, time.Since(begin), answer)
			}
		}
		if n := count(t, client, key); n != 1 {
			t.Fatalf("%s: the key of a lease that is kept alive is gone", member.Name)
		}
		// Closing the lessor ends the renewals and nothing else.
		_ = client.Lease.Close()
		renewed := time.Now()
		other := connect(t)
		for count(t, other, key) != 0 {
			if time.Since(renewed) > recoveryTimeout {
				left, err := other.TimeToLive(deadline(t), lease)
				t.Fatalf("%s: the key is still there: TTL %d, %v", member.Name, left.TTL, err)
			}
			time.Sleep(20 * time.Millisecond)
		}
		// The last renewal was at most a third of the TTL before the close.
		if lived := time.Since(renewed); lived < 2*time.Second {
			t.Fatalf("%s: gone after %v", member.Name, lived)
		}
	}
}

func TestAnUnknownLeaseIsNotKeptAlive(t *testing.T) {
	client := connect(t)
	if _, err := client.KeepAliveOnce(deadline(t), 0x7ead); !errors.Is(err, rpctypes.ErrLeaseNotFound) {
		t.Fatal(err)
	}
	left, err := client.TimeToLive(deadline(t), 0x7ead)
	if err != nil || left.TTL != -1 {
		t.Fatalf("%v %v", left, err)
	}
}

func TestLeasesOutliveTheDeathOfTheirLeader(t *testing.T) {
	members := newCluster(t)
	client := connect(t, members...)
	putUntil(t, client, "before", "0")
	lease := grant(t, client, 15)
	granted := time.Now()
	putWith(t, client, "lease/leader", lease)
	leader(t, members).Kill()
	putUntil(t, client, "after", "0")
	if n := count(t, client, "lease/leader"); n != 1 {
		t.Fatalf("gone %v after the grant", time.Since(granted))
	}
	if _, err := client.KeepAliveOnce(deadline(t), lease); err != nil {
		t.Fatal(err)
	}
	for count(t, client, "lease/leader") != 0 {
		if time.Since(granted) > recoveryTimeout {
			t.Fatal("the key is still there")
		}
		time.Sleep(50 * time.Millisecond)
	}
	if lived := time.Since(granted); lived < 15*time.Second {
		t.Fatalf("gone after %v", lived)
	}
}
