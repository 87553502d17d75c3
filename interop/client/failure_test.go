package client

import (
	"context"
	"fmt"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"kv-server/interop/internal/process"
)

// How long a cluster of three may take to serve again after it lost a member.
const recoveryTimeout = 2 * time.Minute

func leader(t *testing.T, members []*process.Member) *process.Member {
	t.Helper()
	for _, member := range members {
		client := connect(t, member)
		status, err := client.Status(deadline(t), member.ClientURL)
		if err != nil {
			t.Fatal(err)
		}
		if status.Leader == status.Header.MemberId {
			return member
		}
	}
	t.Fatal("no member says that it leads")
	return nil
}

// putUntil writes until one write is acknowledged; while a leader is missing, single calls may fail.
func putUntil(t *testing.T, client *clientv3.Client, key, value string) {
	t.Helper()
	for begin := time.Now(); ; {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		_, err := client.Put(ctx, key, value)
		cancel()
		if err == nil {
			return
		}
		if time.Since(begin) > recoveryTimeout {
			t.Fatalf("no write for %v: %v", recoveryTimeout, err)
		}
	}
}

func TestReadsAndWritesGoOnWithoutAnyOneMember(t *testing.T) {
	members := newCluster(t)
	client := connect(t, members...)
	putUntil(t, client, "before", "0")
	for round := range 3 {
		// The leader first, then whoever leads then: each kill asks for an election.
		victim := leader(t, members)
		victim.Kill()
		putUntil(t, client, fmt.Sprintf("without/%d", round), victim.Name)
		answer, err := client.Get(deadline(t), "before")
		if err != nil || len(answer.Kvs) != 1 {
			t.Fatalf("read without %s: %v %v", victim.Name, answer, err)
		}
		if err := victim.Start(); err != nil {
			t.Fatal(err)
		}
	}
	sameEverywhere(t, members, client)
}

func TestEverythingAcknowledgedSurvivesACrashOfAllMembers(t *testing.T) {
	members := newCluster(t)
	client := connect(t, members...)
	const keys = 50
	for n := range keys {
		putUntil(t, client, fmt.Sprintf("kept/%02d", n), "v")
	}
	for _, member := range members {
		member.Kill()
	}
	for _, err := range startTogether(members) {
		if err != nil {
			t.Fatal(err)
		}
	}
	again := connect(t, members...)
	answer, err := again.Get(deadline(t), "kept/", clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err != nil || answer.Count != keys {
		t.Fatalf("%v %v", answer, err)
	}
	sameEverywhere(t, members, again)
}

func startTogether(members []*process.Member) []error {
	errs := make(chan error)
	for _, member := range members {
		go func() { errs <- member.Start() }()
	}
	var all []error
	for range members {
		all = append(all, <-errs)
	}
	return all
}

// sameEverywhere waits until every member's own state is the cluster's, by etcd's hash over all history.
func sameEverywhere(t *testing.T, members []*process.Member, client *clientv3.Client) {
	t.Helper()
	answer, err := client.Get(deadline(t), "nothing")
	if err != nil {
		t.Fatal(err)
	}
	revision := answer.Header.Revision
	hashes := map[uint32]string{}
	for _, member := range members {
		hashes[hashOf(t, member, revision)] += member.Name + " "
	}
	if len(hashes) != 1 {
		t.Errorf("members differ at revision %d: %v", revision, hashes)
	}
}

func hashOf(t *testing.T, member *process.Member, revision int64) uint32 {
	t.Helper()
	client := connect(t, member)
	for begin := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		answer, err := client.HashKV(deadline(t), member.ClientURL, revision)
		if err == nil {
			return answer.Hash
		}
		// A member that was away does not know the revision until it has caught up.
		if time.Since(begin) > recoveryTimeout {
			t.Fatalf("%s does not catch up to %d: %v", member.Name, revision, err)
		}
	}
}

func TestASerializableReadNeedsNoQuorum(t *testing.T) {
	members := newCluster(t)
	client := connect(t, members...)
	putUntil(t, client, "alone", "1")
	sameEverywhere(t, members, client)
	members[1].Kill()
	members[2].Kill()
	alone := connect(t, members[0])
	answer, err := alone.Get(deadline(t), "alone", clientv3.WithSerializable())
	if err != nil || len(answer.Kvs) != 1 {
		t.Fatalf("%v %v", answer, err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if answer, err := alone.Get(ctx, "alone"); err == nil {
		t.Errorf("a linearizable read without a quorum: %v", answer)
	}
}

func TestEveryMemberTellsTheSameCluster(t *testing.T) {
	names := map[string]bool{}
	var leaders, ids []uint64
	for _, member := range shared {
		client := connect(t, member)
		list, err := client.MemberList(deadline(t))
		if err != nil || len(list.Members) != clusterSize {
			t.Fatalf("%v %v", list, err)
		}
		for _, m := range list.Members {
			names[fmt.Sprintf("%x %s %v %v", m.ID, m.Name, m.PeerURLs, m.ClientURLs)] = true
		}
		status, err := client.Status(deadline(t), member.ClientURL)
		if err != nil || status.DbSize <= 0 || status.Version == "" {
			t.Fatalf("%v %v", status, err)
		}
		leaders = append(leaders, status.Leader)
		ids = append(ids, status.Header.MemberId)
	}
	if len(names) != clusterSize || leaders[0] != leaders[1] || leaders[1] != leaders[2] {
		t.Errorf("members %v, leaders %x", names, leaders)
	}
	if ids[0] == ids[1] || ids[1] == ids[2] || ids[0] == ids[2] {
		t.Errorf("ids %x", ids)
	}
}
