// Package move takes a history from one server to another in a file of `etcdctl snapshot save`: from kv-server to
// etcd, from etcd to kv-server, and from kv-server to kv-server. The server at the end must answer as the one at the
// beginning, at every revision.
//
//	KV_SERVER_BIN       the server to test, with kvctl next to it; without it, target/debug/kv-server.
//	interop/bin         etcd, etcdctl and etcdutl, as build.sh makes them; without them the tests are left out.
package move

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"kv-server/interop/internal/process"
)

const (
	// No call should come near it, however busy the machine is.
	callTimeout = 60 * time.Second
	// Requests after that, each of which changes a few keys.
	requests = 300
)

// keyCount is the number of keys before the history is compacted. They are put in transactions of 100.
var keyCount = flag.Int("keys", 2000, "keys of the history; with more than 2000, not every revision is read as a whole")

// kvServer is the path of the server to test.
func kvServer(t *testing.T) string {
	t.Helper()
	binary, isGiven := os.LookupEnv("KV_SERVER_BIN")
	if !isGiven {
		binary = "../../target/debug/kv-server"
	}
	return found(t, binary, isGiven)
}

// kvctl is the path of the program that makes data directories, next to the server.
func kvctl(t *testing.T) string {
	t.Helper()
	return process.Beside(kvServer(t), "kvctl")
}

// tool is the path of one of etcd's programs.
func tool(t *testing.T, name string) string {
	t.Helper()
	return found(t, filepath.Join("..", "bin", name), false)
}

func found(t *testing.T, path string, isNeeded bool) string {
	t.Helper()
	path, err := filepath.Abs(path)
	if err == nil {
		_, err = os.Stat(path)
	}
	if err != nil && isNeeded {
		t.Fatal(err)
	}
	if err != nil {
		t.Skipf("left out: %v; run `cargo build -p kv-server` and interop/build.sh", err)
	}
	return path
}

// run runs a program to its end and returns what it printed.
func run(t *testing.T, path string, args ...string) string {
	t.Helper()
	output, err := exec.CommandContext(deadline(t), path, args...).Output()
	if err != nil {
		stderr := ""
		if exit, ok := err.(*exec.ExitError); ok {
			stderr = string(exit.Stderr)
		}
		t.Fatalf("%s %s: %v\n%s", filepath.Base(path), strings.Join(args, " "), err, stderr)
	}
	return string(output)
}

func deadline(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	t.Cleanup(cancel)
	return ctx
}

// start starts members and stops them with the test.
func start(t *testing.T, members []*process.Member) *clientv3.Client {
	t.Helper()
	t.Cleanup(func() {
		for _, member := range members {
			member.Kill()
			if t.Failed() {
				t.Logf("last lines of %s:\n%s", member.Name, member.LogTail())
			}
		}
	})
	if err := process.StartAll(members); err != nil {
		t.Fatal(err)
	}
	var urls []string
	for _, member := range members {
		urls = append(urls, member.ClientURL)
	}
	client, err := clientv3.New(clientv3.Config{Endpoints: urls, DialTimeout: 5 * time.Second, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return client
}

func prepare(t *testing.T, binary string, size int) []*process.Member {
	t.Helper()
	members, err := process.Prepare(binary, t.TempDir(), size)
	if err != nil {
		t.Fatal(err)
	}
	return members
}

func must[T any](t *testing.T) func(T, error) T {
	return func(value T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
}

// generate makes a history with overwrites, deletes of one key and of ranges, re-creations, transactions, leases,
// empty and large values, and a compaction in the middle.
func generate(t *testing.T, client *clientv3.Client, seed uint64) {
	t.Helper()
	random, keys := rand.New(rand.NewPCG(seed, 0)), *keyCount
	ctx := context.Background()
	key := func() string { return fmt.Sprintf("key/%06d", random.IntN(keys)) }
	value := func() string {
		switch random.IntN(40) {
		case 0:
			return ""
		case 1:
			return strings.Repeat("large ", 1+random.IntN(10_000))
		default:
			return fmt.Sprintf("value %d", random.Uint64())
		}
	}
	txn := must[*clientv3.TxnResponse](t)
	for from := 0; from < keys; from += 100 {
		var ops []clientv3.Op
		for number := range 100 {
			ops = append(ops, clientv3.OpPut(fmt.Sprintf("key/%06d", from+number), fmt.Sprint(random.Uint64())))
		}
		txn(client.Txn(ctx).Then(ops...).Commit())
	}
	var leases []clientv3.LeaseID
	for number := range 20 {
		granted := must[*clientv3.LeaseGrantResponse](t)(client.Grant(ctx, int64(1000+number)))
		leases = append(leases, granted.ID)
	}
	for number := range requests {
		if number == requests/2 {
			newest := must[*clientv3.GetResponse](t)(client.Get(ctx, "none")).Header.Revision
			must[*clientv3.CompactResponse](t)(client.Compact(ctx, newest-20, clientv3.WithCompactPhysical()))
		}
		switch random.IntN(8) {
		case 0:
			must[*clientv3.DeleteResponse](t)(client.Delete(ctx, key()))
		case 1:
			from := key()
			must[*clientv3.DeleteResponse](t)(client.Delete(ctx, from, clientv3.WithRange(from+"~")))
		case 2:
			first := random.IntN(keys - 40)
			from, to := fmt.Sprintf("key/%06d", first), fmt.Sprintf("key/%06d", first+1+random.IntN(30))
			deleted := must[*clientv3.DeleteResponse](t)(client.Delete(ctx, from, clientv3.WithRange(to)))
			if deleted.Deleted > 0 {
				must[*clientv3.PutResponse](t)(client.Put(ctx, from, "again"))
			}
		case 3:
			lease := leases[random.IntN(len(leases))]
			must[*clientv3.PutResponse](t)(client.Put(ctx, key(), value(), clientv3.WithLease(lease)))
		case 4:
			one := fmt.Sprintf("one/%d", random.IntN(5))
			txn(client.Txn(ctx).Then(clientv3.OpDelete(one), clientv3.OpPut(one+"x", value()), clientv3.OpPut(key(), value())).Commit())
		default:
			must[*clientv3.PutResponse](t)(client.Put(ctx, key(), value()))
		}
	}
	must[*clientv3.LeaseRevokeResponse](t)(client.Revoke(ctx, leases[0]))
}

// described is what a server answers, in a form that can be compared.
type described struct {
	Revision, Compacted int64
	Hash                uint32
	// One digest of all keys for each revision that is read.
	Revisions []string
	// One line for each lease: TTL as granted, and keys.
	Leases []string
	// A digest of all events from the compact revision on.
	Events string
}

func describe(t *testing.T, client *clientv3.Client) described {
	t.Helper()
	ctx := deadline(t)
	hash := must[*clientv3.HashKVResponse](t)(client.HashKV(ctx, client.Endpoints()[0], 0))
	found := described{Revision: hash.Header.Revision, Compacted: hash.CompactRevision, Hash: hash.Hash}
	from := max(1, hash.CompactRevision) // -1: nothing is compacted.
	for revision := from; revision <= hash.Header.Revision; revision += int64(max(1, *keyCount/2000)) {
		all := must[*clientv3.GetResponse](t)(client.Get(ctx, "\x00", clientv3.WithFromKey(), clientv3.WithRev(revision)))
		digest := sha256.New()
		for _, kv := range all.Kvs {
			fmt.Fprintf(digest, "%q %q %d %d %d %d\n", kv.Key, kv.Value, kv.CreateRevision, kv.ModRevision, kv.Version, kv.Lease)
		}
		found.Revisions = append(found.Revisions, fmt.Sprintf("%d: %d keys, %x", revision, len(all.Kvs), digest.Sum(nil)))
	}
	for _, lease := range must[*clientv3.LeaseLeasesResponse](t)(client.Leases(ctx)).Leases {
		live := must[*clientv3.LeaseTimeToLiveResponse](t)(client.TimeToLive(ctx, lease.ID, clientv3.WithAttachedKeys()))
		slices.SortFunc(live.Keys, bytes.Compare) // etcd returns them in any order.
		found.Leases = append(found.Leases, fmt.Sprintf("%x %d %q", lease.ID, live.GrantedTTL, live.Keys))
	}
	slices.Sort(found.Leases)
	found.Events = events(t, client, from, hash.Header.Revision)
	return found
}

// events watches all keys from one revision to another.
func events(t *testing.T, client *clientv3.Client, from, to int64) string {
	t.Helper()
	ctx, cancel := context.WithCancel(deadline(t))
	defer cancel()
	digest, count := sha256.New(), 0
	for response := range client.Watch(ctx, "\x00", clientv3.WithFromKey(), clientv3.WithRev(from), clientv3.WithFragment()) {
		if err := response.Err(); err != nil {
			t.Fatal(err)
		}
		for _, event := range response.Events {
			count++
			fmt.Fprintf(digest, "%v %q %q %d %d %d %d\n", event.Type, event.Kv.Key, event.Kv.Value,
				event.Kv.CreateRevision, event.Kv.ModRevision, event.Kv.Version, event.Kv.Lease)
		}
		if events := response.Events; len(events) > 0 && events[len(events)-1].Kv.ModRevision == to {
			break
		}
	}
	return fmt.Sprintf("%d events, %x", count, digest.Sum(nil))
}

// save saves a snapshot of a server with etcd's tool, and checks it with etcd's other tool.
func save(t *testing.T, client *clientv3.Client, want described) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "snapshot.db")
	run(t, tool(t, "etcdctl"), "--endpoints", client.Endpoints()[0], "snapshot", "save", file)
	var status struct {
		Revision int64  `json:"revision"`
		Version  string `json:"version"`
	}
	if err := json.Unmarshal([]byte(run(t, tool(t, "etcdutl"), "snapshot", "status", file, "-w", "json")), &status); err != nil {
		t.Fatal(err)
	}
	if status.Revision != want.Revision || status.Version != "3.7.0" {
		t.Errorf("etcdutl snapshot status: %+v, want revision %d and version 3.7.0", status, want.Revision)
	}
	var hash struct {
		Hash            uint32 `json:"hash"`
		HashRevision    int64  `json:"hashRevision"`
		CompactRevision int64  `json:"compactRevision"`
	}
	// Of a copy: the tool opens the file to write, and the checksum would no longer be that of the file.
	scratch := filepath.Join(t.TempDir(), "copy.db")
	if err := os.WriteFile(scratch, must[[]byte](t)(os.ReadFile(file)), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(run(t, tool(t, "etcdutl"), "hashkv", scratch, "-w", "json")), &hash); err != nil {
		t.Fatal(err)
	}
	if hash.Hash != want.Hash || hash.HashRevision != want.Revision || hash.CompactRevision != want.Compacted {
		t.Errorf("etcdutl hashkv: %+v, want %d at %d, compacted at %d", hash, want.Hash, want.Revision, want.Compacted)
	}
	return file
}

// restore makes the data directories of etcd.
func restore(t *testing.T, file string, members []*process.Member) {
	t.Helper()
	for _, member := range members {
		run(t, tool(t, "etcdutl"), append([]string{"snapshot", "restore", file}, membership(member)...)...)
	}
}

// imports makes the data directories of kv-server.
func imports(t *testing.T, file string, members []*process.Member, flags ...string) {
	t.Helper()
	for _, member := range members {
		args := slices.Concat([]string{"import", "--from", file}, membership(member), flags)
		t.Log(run(t, kvctl(t), args...))
	}
}

// membership is the flags of a new data directory.
func membership(member *process.Member) []string {
	return []string{
		"--data-dir", member.DataDir, "--name", member.Name, "--initial-cluster", member.InitialCluster,
		"--initial-cluster-token", process.Token, "--initial-advertise-peer-urls", member.PeerURL,
	}
}

func compare(t *testing.T, got, want described) {
	t.Helper()
	if got.Revision != want.Revision || got.Compacted != want.Compacted || got.Hash != want.Hash {
		t.Errorf("revision %d, compacted at %d, hash %d; want %d, %d, %d",
			got.Revision, got.Compacted, got.Hash, want.Revision, want.Compacted, want.Hash)
	}
	if got.Events != want.Events {
		t.Errorf("events: %s, want %s", got.Events, want.Events)
	}
	for _, both := range []struct{ got, want []string }{{got.Revisions, want.Revisions}, {got.Leases, want.Leases}} {
		for number := range max(len(both.got), len(both.want)) {
			line := func(lines []string) string {
				return strings.Join(lines[min(number, len(lines)):min(number+1, len(lines))], "")
			}
			if line(both.got) != line(both.want) {
				t.Errorf("%q, want %q", line(both.got), line(both.want))
				break
			}
		}
	}
}

// writes shows that a server goes on where the history ends.
func writes(t *testing.T, client *clientv3.Client, after int64) {
	t.Helper()
	put := must[*clientv3.PutResponse](t)(client.Put(deadline(t), "after", "1"))
	if put.Header.Revision != after+1 {
		t.Errorf("the next revision is %d, want %d", put.Header.Revision, after+1)
	}
}

func TestEtcdGoesOnFromASnapshotOfKvServer(t *testing.T) {
	source := start(t, prepare(t, kvServer(t), 1))
	generate(t, source, 1)
	want := describe(t, source)
	file := save(t, source, want)
	members := prepare(t, tool(t, "etcd"), 1)
	restore(t, file, members)
	client := start(t, members)
	compare(t, describe(t, client), want)
	writes(t, client, want.Revision)
}

func TestKvServerGoesOnFromASnapshotOfEtcd(t *testing.T) {
	kvServer(t)
	source := start(t, prepare(t, tool(t, "etcd"), 1))
	generate(t, source, 2)
	want := describe(t, source)
	file := save(t, source, want)
	members := prepare(t, kvServer(t), 1)
	imports(t, file, members)
	client := start(t, members)
	compare(t, describe(t, client), want)
	writes(t, client, want.Revision)
	// And back again, from what was imported.
	want = describe(t, client)
	back := prepare(t, tool(t, "etcd"), 1)
	restore(t, save(t, client, want), back)
	compare(t, describe(t, start(t, back)), want)
}

func TestThreeMembersGoOnFromASnapshotOfKvServer(t *testing.T) {
	source := start(t, prepare(t, kvServer(t), 1))
	generate(t, source, 3)
	want := describe(t, source)
	file := save(t, source, want)
	members := prepare(t, kvServer(t), 3)
	imports(t, file, members[:2])
	client := start(t, members[:2])
	compare(t, describe(t, client), want)
	writes(t, client, want.Revision)
	// A member that did not import has an empty log, and gets the store from the leader.
	third := start(t, members[2:])
	wantAfter := describe(t, client)
	compare(t, describe(t, third), wantAfter)
	// Nothing is lost when all of them start again.
	for _, member := range members {
		member.Kill()
	}
	compare(t, describe(t, start(t, members)), wantAfter)
}

func TestAnImportRaisesAndCompactsRevisionsAsEtcdutlDoes(t *testing.T) {
	source := start(t, prepare(t, kvServer(t), 1))
	for number := range 5 {
		must[*clientv3.PutResponse](t)(source.Put(deadline(t), "key", fmt.Sprint(number)))
	}
	file := save(t, source, describe(t, source))
	flags := []string{"--bump-revision", "1000", "--mark-compacted"}
	ours, theirs := prepare(t, kvServer(t), 1), prepare(t, tool(t, "etcd"), 1)
	imports(t, file, ours, flags...)
	args := slices.Concat([]string{"snapshot", "restore", file}, membership(theirs[0]), flags)
	run(t, tool(t, "etcdutl"), args...)
	for _, members := range [][]*process.Member{ours, theirs} {
		client := start(t, members)
		got := must[*clientv3.GetResponse](t)(client.Get(deadline(t), "key"))
		if got.Header.Revision != 1006 || string(got.Kvs[0].Value) != "4" || got.Kvs[0].ModRevision != 6 {
			t.Errorf("revision %d, %v", got.Header.Revision, got.Kvs)
		}
		if _, err := client.Get(deadline(t), "key", clientv3.WithRev(6)); !errors.Is(err, rpctypes.ErrCompacted) {
			t.Errorf("a read of a revision before the import: %v", err)
		}
		writes(t, client, 1006)
	}
}

func TestAFileThatIsNotWholeIsRefused(t *testing.T) {
	source := start(t, prepare(t, kvServer(t), 1))
	must[*clientv3.PutResponse](t)(source.Put(deadline(t), "key", strings.Repeat("x", 100_000)))
	whole := must[[]byte](t)(os.ReadFile(save(t, source, describe(t, source))))
	pages, hash := whole[:len(whole)-32], whole[len(whole)-32:]
	damaged := slices.Clone(whole)
	damaged[3*4096] ^= 1 // The number of page 3.
	for name, check := range map[string]struct {
		file  []byte
		flags []string
		want  string
	}{
		"cut":                 {whole[:len(whole)/2], nil, "has no SHA-256 trailer"},
		"cut, hash kept":      {slices.Concat(pages[:8*4096], hash), nil, "truncated or corrupted"},
		"cut, not checked":    {pages[:8*4096], []string{"--skip-hash-check"}, "page 8: the file ends at byte 32768"},
		"damaged":             {damaged, nil, "truncated or corrupted"},
		"damaged, no check":   {damaged, []string{"--skip-hash-check"}, "page 3: has the number of another page"},
		"a copy of the pages": {pages, nil, "needs --skip-hash-check"},
		"another kind":        {[]byte("not a database"), []string{"--skip-hash-check"}, "not a bbolt file"},
	} {
		file := filepath.Join(t.TempDir(), "file.db")
		if err := os.WriteFile(file, check.file, 0o600); err != nil {
			t.Fatal(err)
		}
		member := prepare(t, kvServer(t), 1)[0]
		args := slices.Concat([]string{"import", "--from", file}, membership(member), check.flags)
		output, err := exec.CommandContext(deadline(t), kvctl(t), args...).CombinedOutput()
		if err == nil || !strings.Contains(string(output), check.want) {
			t.Errorf("%s: %v, %s; want %q", name, err, output, check.want)
		}
	}
}

func TestUsersAndRolesAreMoved(t *testing.T) {
	server := kvServer(t)
	source := start(t, prepare(t, tool(t, "etcd"), 1))
	must[*clientv3.AuthUserAddResponse](t)(source.UserAdd(deadline(t), "root", "secret"))
	must[*clientv3.AuthUserGrantRoleResponse](t)(source.UserGrantRole(deadline(t), "root", "root"))
	must[*clientv3.AuthRoleAddResponse](t)(source.RoleAdd(deadline(t), "reader"))
	must[*clientv3.AuthStatusResponse](t)(source.AuthStatus(deadline(t)))
	file := filepath.Join(t.TempDir(), "snapshot.db")
	run(t, tool(t, "etcdctl"), "--endpoints", source.Endpoints()[0], "snapshot", "save", file)
	members := prepare(t, server, 1)
	run(t, kvctl(t), append([]string{"import", "--from", file}, membership(members[0])...)...)
	moved := start(t, members)
	roles := must[*clientv3.AuthRoleListResponse](t)(moved.RoleList(deadline(t)))
	if !slices.Equal(roles.Roles, []string{"reader"}) {
		t.Errorf("roles %v", roles.Roles)
	}
	must[*clientv3.AuthEnableResponse](t)(moved.AuthEnable(deadline(t)))
	login := must[*clientv3.AuthenticateResponse](t)(moved.Authenticate(deadline(t), "root", "secret"))
	if login.Token == "" {
		t.Error("no token")
	}
}
