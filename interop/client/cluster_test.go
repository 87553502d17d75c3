// Package client holds tests of programs that people use with etcd: the official Go client, etcdctl, and etcd's own
// benchmark, against three real members of kv-server.
//
//	KV_SERVER_BIN       the server to test; without it, target/debug/kv-server. etcd's binary must pass as well.
//	interop/bin         etcdctl and benchmark, as build.sh makes them; tests that need them are left out otherwise.
//
// Tests share one cluster and stay below a key prefix of their own. A test that hurts its members starts others.
package client

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"kv-server/interop/internal/process"
)

const (
	clusterSize = 3
	// No call of these tests should come near it, however busy the machine is.
	callTimeout = time.Minute
)

// shared is the cluster of all tests that leave their members alone. It is nil where there is no server to test.
var shared []*process.Member

func serverBinary() string {
	if binary := os.Getenv("KV_SERVER_BIN"); binary != "" {
		return binary
	}
	return "../../target/debug/kv-server"
}

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(run(m))
}

func run(m *testing.M) int {
	binary, err := filepath.Abs(serverBinary())
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if _, err := os.Stat(binary); err != nil {
		if os.Getenv("KV_SERVER_BIN") != "" {
			fmt.Fprintf(os.Stderr, "KV_SERVER_BIN: %v\n", err)
			return 1
		}
		fmt.Printf("left out: no server at %s; run `cargo build -p kv-server`, or set KV_SERVER_BIN\n", binary)
		return 0
	}
	dir, err := os.MkdirTemp("", "interop-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	shared, err = process.Start(binary, dir, clusterSize)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer stop(shared)
	return m.Run()
}

func stop(members []*process.Member) {
	for _, member := range members {
		member.Kill()
	}
}

// newCluster starts members that the test may kill.
func newCluster(t *testing.T) []*process.Member {
	t.Helper()
	binary, err := filepath.Abs(serverBinary())
	if err != nil {
		t.Fatal(err)
	}
	members, err := process.Start(binary, t.TempDir(), clusterSize)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		stop(members)
		if t.Failed() {
			for _, member := range members {
				t.Logf("last lines of %s:\n%s", member.Name, member.LogTail())
			}
		}
	})
	return members
}

func endpoints(members []*process.Member) []string {
	var urls []string
	for _, member := range members {
		urls = append(urls, member.ClientURL)
	}
	return urls
}

// connect makes a client of the given members, or of the whole shared cluster.
func connect(t *testing.T, members ...*process.Member) *clientv3.Client {
	t.Helper()
	if len(members) == 0 {
		members = shared
	}
	client, err := clientv3.New(clientv3.Config{
		Endpoints: endpoints(members), DialTimeout: callTimeout, Logger: zap.NewNop(),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return client
}

func deadline(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	t.Cleanup(cancel)
	return ctx
}

// put writes the pairs in the given order, and returns the revision of the last.
func put(t *testing.T, client *clientv3.Client, pairs ...string) int64 {
	t.Helper()
	var revision int64
	for i := 0; i < len(pairs); i += 2 {
		answer, err := client.Put(deadline(t), pairs[i], pairs[i+1])
		if err != nil {
			t.Fatalf("put %s: %v", pairs[i], err)
		}
		revision = answer.Header.Revision
	}
	return revision
}
