package client

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"go.etcd.io/etcd/api/v3/version"
)

// tool runs one of etcd's own programs against the shared cluster and returns what it printed.
func tool(t *testing.T, name, stdin string, args ...string) string {
	t.Helper()
	path, err := filepath.Abs(filepath.Join("..", "bin", name))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Skipf("left out: no %s; run interop/build.sh", path)
	}
	urls := strings.ReplaceAll(strings.Join(endpoints(shared), ","), "http://", "")
	command := exec.CommandContext(deadline(t), path, append([]string{"--endpoints", urls}, args...)...)
	command.Stdin = strings.NewReader(stdin)
	output, err := command.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, output)
	}
	return string(output)
}

func TestEtcdctlPrintsWhatItPrintsWithEtcd(t *testing.T) {
	for _, check := range []struct {
		stdin string
		args  string
		want  string
	}{
		{"", "put ctl/a 1", "OK\n"},
		{"", "put ctl/b 2", "OK\n"},
		{"", "put ctl/a 3 --prev-kv", "OK\nctl/a\n1\n"},
		{"", "get ctl/a", "ctl/a\n3\n"},
		{"", "get ctl/ --prefix", "ctl/a\n3\nctl/b\n2\n"},
		{"", "get ctl/ --prefix --keys-only", "ctl/a\n\nctl/b\n\n"},
		{"", "get ctl/ --prefix --print-value-only --order DESCEND --sort-by KEY", "2\n3\n"},
		{"", "get ctl/ --prefix --limit 1", "ctl/a\n3\n"},
		{"", "get ctl/ --prefix --stream", "ctl/a\n3\nctl/b\n2\n"},
		{"", "get ctl/a --consistency s", "ctl/a\n3\n"},
		{"value(\"ctl/a\") = \"3\"\n\nput ctl/c 4\nget ctl/c\n\nget ctl/b\n\n", "txn", "SUCCESS\n\nOK\n\nctl/c\n4\n"},
		{"version(\"ctl/a\") = \"9\"\n\nget ctl/a\n\nget ctl/b\n\n", "txn", "FAILURE\n\nctl/b\n2\n"},
		{"", "del ctl/b", "1\n"},
		{"", "del ctl/ --prefix --prev-kv", "2\nctl/a\n3\nctl/c\n4\n"},
		{"", "alarm list", ""},
	} {
		if got := tool(t, "etcdctl", check.stdin, strings.Fields(check.args)...); got != check.want {
			t.Errorf("etcdctl %s: %q, want %q", check.args, got, check.want)
		}
	}
}

func TestEtcdctlCompacts(t *testing.T) {
	revision := fmt.Sprint(put(t, connect(t), "ctl-compaction", "1"))
	if got := tool(t, "etcdctl", "", "compaction", revision); got != "compacted revision "+revision+"\n" {
		t.Error(got)
	}
	if got := tool(t, "etcdctl", "", "get", "ctl-compaction", "--rev", revision); got != "ctl-compaction\n1\n" {
		t.Error(got)
	}
}

func TestEtcdctlSeesAHealthyCluster(t *testing.T) {
	for args, want := range map[string]string{
		"endpoint health":                   "is healthy",
		"endpoint health --cluster":         "is healthy",
		"endpoint status":                   version.Version,
		"endpoint status --write-out table": version.Version,
		"endpoint hashkv":                   "127.0.0.1",
		"member list":                       "started",
		"member list --write-out table":     "started",
		"endpoint status --write-out json":  "\"dbSize\"",
	} {
		got := tool(t, "etcdctl", "", strings.Fields(args)...)
		if strings.Count(got, want) < clusterSize {
			t.Errorf("etcdctl %s:\n%s", args, got)
		}
	}
}

func TestEtcdsBenchmarkRunsToItsEnd(t *testing.T) {
	for _, args := range []string{
		"--conns 4 --clients 40 put --total 2000 --val-size 256 --sequential-keys --key-space-size 1000",
		"--conns 4 --clients 40 range a --total 2000",
		"--conns 4 --clients 40 range \x01 z --total 200 --limit 50 --consistency s",
		"--conns 2 --clients 10 txn-put --txn-ops 8 --key-space-size 1000 --total 200",
		"--conns 2 --clients 10 txn-mixed mixed/ --total 200",
		"--conns 2 --clients 10 stm --keys 10 --total 200",
		"watch --streams 4 --watch-per-stream 20 --put-total 200",
		"watch-latency --streams 4 --watchers-per-stream 5 --put-total 100 --put-rate 1000",
		"watch-latency --streams 2 --watchers-per-stream 5 --put-total 100 --put-rate 1000 --prevkv",
	} {
		got := tool(t, "benchmark", "", strings.Fields(args)...)
		if !strings.Contains(got, "Requests/sec") || strings.Contains(got, "Error distribution") {
			t.Errorf("benchmark %s:\n%s", args, got)
		}
	}
}
