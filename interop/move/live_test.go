package move

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"kv-server/interop/internal/process"
)

// importer is a run of `kvctl import --live`.
type importer struct {
	cmd    *exec.Cmd
	output syncedText
	exited chan error
}

// syncedText collects what a process prints.
type syncedText struct {
	sync.Mutex
	text string
	grew chan struct{}
}

func (s *syncedText) Write(more []byte) (int, error) {
	s.Lock()
	defer s.Unlock()
	s.text += string(more)
	select {
	case s.grew <- struct{}{}:
	default:
	}
	return len(more), nil
}

func (s *syncedText) String() string {
	s.Lock()
	defer s.Unlock()
	return s.text
}

var _ io.Writer = (*syncedText)(nil)

// startImport begins a live import of the endpoints into the directories of the members.
func startImport(t *testing.T, endpoints []string, members []*process.Member, flags ...string) *importer {
	t.Helper()
	args := slices.Concat([]string{"import", "--live", strings.Join(endpoints, ",")}, membership(members[0]), flags)
	for _, other := range members[1:] {
		args = append(args, "--other-data-dir", other.Name+"="+other.DataDir)
	}
	running := &importer{cmd: exec.Command(kvctl(t), args...), exited: make(chan error, 1)}
	running.output.grew = make(chan struct{}, 1)
	running.cmd.Stdout, running.cmd.Stderr = &running.output, &running.output
	if err := running.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { running.exited <- running.cmd.Wait() }()
	t.Cleanup(func() {
		_ = running.cmd.Process.Kill()
		if t.Failed() {
			t.Logf("an import printed:\n%s", running.output.String())
		}
	})
	return running
}

// says waits until the import has printed something.
func (i *importer) says(t *testing.T, wanted string) {
	t.Helper()
	timeout := time.After(callTimeout)
	for !strings.Contains(i.output.String(), wanted) {
		select {
		case <-i.output.grew:
		case err := <-i.exited:
			i.exited <- err
			if !strings.Contains(i.output.String(), wanted) {
				t.Fatalf("the import ended (%v) without %q:\n%s", err, wanted, i.output.String())
			}
		case <-timeout:
			t.Fatalf("the import did not say %q:\n%s", wanted, i.output.String())
		}
	}
}

// ends waits for the end of the import, and returns what it printed.
func (i *importer) ends(t *testing.T) (string, error) {
	t.Helper()
	select {
	case err := <-i.exited:
		i.exited <- err
		return i.output.String(), err
	case <-time.After(2 * callTimeout):
		t.Fatalf("the import did not end:\n%s", i.output.String())
		return "", nil
	}
}

// succeeds waits for the end of the import.
func (i *importer) succeeds(t *testing.T) string {
	t.Helper()
	output, err := i.ends(t)
	if err != nil {
		t.Fatalf("import: %v\n%s", err, output)
	}
	return output
}

func (i *importer) signal(t *testing.T, signal os.Signal) {
	t.Helper()
	if err := i.cmd.Process.Signal(signal); err != nil {
		t.Fatal(err)
	}
}

// pace is the time between two writes.
const pace = 10 * time.Millisecond

// writer changes keys until it is stopped.
type writer struct {
	cancel context.CancelFunc
	done   chan error
	count  atomic.Int64
}

// startWriter changes keys and leases as generate does, some of the leases for a second only.
func startWriter(t *testing.T, endpoints []string, seed uint64) *writer {
	t.Helper()
	client, err := clientv3.New(clientv3.Config{Endpoints: endpoints, DialTimeout: 5 * time.Second, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	w := &writer{cancel: cancel, done: make(chan error, 1)}
	go func() {
		defer client.Close()
		random := rand.New(rand.NewPCG(seed, 1))
		for ctx.Err() == nil {
			call, end := context.WithTimeout(ctx, callTimeout)
			err := w.write(call, client, random)
			end()
			// A member of the source may be killed: what has failed may have been written or not.
			if err != nil && ctx.Err() == nil && len(endpoints) == 1 {
				w.done <- err
				return
			}
			w.count.Add(1)
			time.Sleep(pace) // So that the history stays small enough to be compared revision by revision.
		}
		w.done <- nil
	}()
	t.Cleanup(cancel)
	return w
}

func (w *writer) write(ctx context.Context, client *clientv3.Client, random *rand.Rand) error {
	key := func() string { return fmt.Sprintf("key/%06d", random.IntN(500)) }
	var err error
	switch random.IntN(9) {
	case 0:
		_, err = client.Delete(ctx, key())
	case 1:
		from := random.IntN(500)
		_, err = client.Delete(ctx, fmt.Sprintf("key/%06d", from), clientv3.WithRange(fmt.Sprintf("key/%06d", from+8)))
	case 2:
		granted, grantErr := client.Grant(ctx, []int64{1, 1000}[random.IntN(2)])
		if grantErr != nil {
			return grantErr
		}
		_, err = client.Put(ctx, key(), "leased", clientv3.WithLease(granted.ID))
		if err != nil && strings.Contains(err.Error(), "lease not found") {
			return nil // It lasts a second only.
		}
		if err == nil && random.IntN(3) == 0 {
			_, err = client.Revoke(ctx, granted.ID)
			if err != nil && strings.Contains(err.Error(), "lease not found") {
				return nil
			}
		}
	case 3:
		_, err = client.Txn(ctx).Then(
			clientv3.OpPut("txn/a", fmt.Sprint(w.count.Load())), clientv3.OpDelete("txn/b"), clientv3.OpPut("txn/c", ""),
			clientv3.OpDelete(key()),
		).Commit()
	case 4:
		_, err = client.Txn(ctx).Then(clientv3.OpPut("txn/b", strings.Repeat("large ", random.IntN(20_000)))).Commit()
	default:
		_, err = client.Put(ctx, key(), fmt.Sprint(random.Uint64()))
	}
	return err
}

// writes waits for some more writes.
func (w *writer) writes(t *testing.T, more int64) {
	t.Helper()
	for wanted := w.count.Load() + more; w.count.Load() < wanted; time.Sleep(pace) {
		select {
		case err := <-w.done:
			t.Fatalf("the writer ended: %v", err)
		default:
		}
	}
}

// stop ends the writer. Everything that it has written is acknowledged.
func (w *writer) stop(t *testing.T) {
	t.Helper()
	w.cancel()
	if err := <-w.done; err != nil && !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
}

// settle waits until no lease of the source ends within the next minutes.
func settle(t *testing.T, client *clientv3.Client) {
	t.Helper()
	for _, lease := range must[*clientv3.LeaseLeasesResponse](t)(client.Leases(deadline(t))).Leases {
		live := must[*clientv3.LeaseTimeToLiveResponse](t)(client.TimeToLive(deadline(t), lease.ID))
		if live.GrantedTTL > 0 && live.GrantedTTL < 100 {
			// etcd extends short leases; revoked, they end now.
			if _, err := client.Revoke(deadline(t), lease.ID); err != nil && !strings.Contains(err.Error(), "not found") {
				t.Fatal(err)
			}
		}
	}
}

// at returns the number after a word in what an import printed last.
func at(t *testing.T, output, word string) int64 {
	t.Helper()
	found := regexp.MustCompile(word+` (-?\d+)`).FindAllStringSubmatch(output, -1)
	if len(found) == 0 {
		t.Fatalf("no %q in %q", word, output)
	}
	return must[int64](t)(strconv.ParseInt(found[len(found)-1][1], 10, 64))
}

func endpoints(members []*process.Member) []string {
	var urls []string
	for _, member := range members {
		urls = append(urls, member.ClientURL)
	}
	return urls
}

// switches starts kv-server on the finished directories and compares it with the source.
func switches(t *testing.T, source *clientv3.Client, members []*process.Member) {
	t.Helper()
	want := describe(t, source)
	begun := time.Now()
	client := start(t, members)
	t.Logf("%.2f s for the start of %d members", time.Since(begun).Seconds(), len(members))
	compare(t, describe(t, client), want)
	writes(t, client, want.Revision)
}

func TestALiveImportFollowsEtcdUnderLoad(t *testing.T) {
	kvServer(t)
	sources := prepare(t, tool(t, "etcd"), 1)
	source := start(t, sources)
	generate(t, source, 11)
	load := startWriter(t, endpoints(sources), 11)
	members := prepare(t, kvServer(t), 1)
	following := startImport(t, endpoints(sources), members)
	following.says(t, "following from revision")
	reached := must[*clientv3.PutResponse](t)(source.Put(deadline(t), "reached", "1")).Header.Revision
	// The source compacts revisions that the copy has as history.
	copied := at(t, following.output.String(), "following from revision")
	must[*clientv3.CompactResponse](t)(source.Compact(deadline(t), copied, clientv3.WithCompactPhysical()))
	load.writes(t, 300)
	load.stop(t)
	settle(t, source)
	begun := time.Now()
	following.signal(t, syscall.SIGTERM)
	output := following.succeeds(t)
	if revision := at(t, output, "kv-server|: revision"); revision <= reached {
		t.Errorf("it ended at revision %d, and %d was there before", revision, reached)
	}
	t.Logf("%d writes during the import; %.2f s from the end of writes to a finished directory",
		load.count.Load(), time.Since(begun).Seconds())
	switches(t, source, members)
	// A member was started: the directory is no longer a copy.
	again := startImport(t, endpoints(sources), members, "--until-caught-up")
	for _, member := range members {
		member.Kill()
	}
	if output, err := again.ends(t); err == nil || !strings.Contains(output, "locked") && !strings.Contains(output, "has been started") {
		t.Errorf("an import into a used directory: %v, %s", err, output)
	}
	again = startImport(t, endpoints(sources), members, "--until-caught-up")
	if output, err := again.ends(t); err == nil || !strings.Contains(output, "has been started") {
		t.Errorf("an import into a used directory: %v, %s", err, output)
	}
}

func TestALiveImportIsKilledAndGoesOn(t *testing.T) {
	kvServer(t)
	sources := prepare(t, tool(t, "etcd"), 1)
	source := start(t, sources)
	generate(t, source, 12)
	load := startWriter(t, endpoints(sources), 12)
	members := prepare(t, kvServer(t), 3)
	random := rand.New(rand.NewPCG(12, 12))
	for range 4 {
		following := startImport(t, endpoints(sources), members)
		select {
		case err := <-following.exited:
			t.Fatalf("an import ended: %v, %s", err, following.output.String())
		case <-time.After(time.Duration(random.IntN(1200)) * time.Millisecond):
		}
		_ = following.cmd.Process.Kill()
		<-following.exited
		following.exited <- nil
		// What is there is not started.
		if err := members[0].Start(); err == nil || !strings.Contains(err.Error(), "not finished") {
			if _, statErr := os.Stat(filepath.Join(members[0].DataDir, "live-import.json")); statErr == nil {
				t.Fatalf("a member on an unfinished directory: %v", err)
			}
			t.Logf("killed before it began: %v", err)
			members[0].Kill()
			_ = os.RemoveAll(members[0].DataDir)
		}
	}
	// Finished once while the load goes on, and then again.
	output := startImport(t, endpoints(sources), members, "--until-caught-up").succeeds(t)
	first := at(t, output, ": revision")
	load.stop(t)
	settle(t, source)
	output = startImport(t, endpoints(sources), members, "--until-caught-up").succeeds(t)
	if !strings.Contains(output, fmt.Sprintf("following from revision %d", first)) {
		t.Errorf("it did not go on from revision %d: %s", first, output)
	}
	switches(t, source, members)
}

func TestALiveImportOutlivesAMemberOfItsSource(t *testing.T) {
	kvServer(t)
	sources := prepare(t, tool(t, "etcd"), 3)
	source := start(t, sources)
	load := startWriter(t, endpoints(sources), 13)
	members := prepare(t, kvServer(t), 1)
	following := startImport(t, endpoints(sources), members)
	following.says(t, "following from revision")
	following.says(t, ": following http")
	var rest []string
	for _, member := range sources {
		if strings.Contains(following.output.String(), ": following "+member.ClientURL) {
			member.Kill()
		} else {
			rest = append(rest, member.ClientURL)
		}
	}
	following.says(t, "reconnecting")
	source.SetEndpoints(rest...)
	deadlineAt := time.Now().Add(callTimeout)
	for {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		_, err := source.Put(ctx, "after", "the kill")
		cancel()
		if err == nil {
			break
		}
		if time.Now().After(deadlineAt) {
			t.Fatal(err)
		}
	}
	load.stop(t)
	settle(t, source)
	following.signal(t, os.Interrupt)
	following.succeeds(t)
	switches(t, source, members)
}

func TestALiveImportSaysWhatItCannotFollow(t *testing.T) {
	kvServer(t)
	sources := prepare(t, tool(t, "etcd"), 1)
	source := start(t, sources)
	put := func(key string) int64 {
		return must[*clientv3.PutResponse](t)(source.Put(deadline(t), key, "value")).Header.Revision
	}
	put("a")
	members := prepare(t, kvServer(t), 1)
	startImport(t, endpoints(sources), members, "--until-caught-up").succeeds(t)
	fails := func(wanted string, endpoints []string, members []*process.Member, flags ...string) {
		t.Helper()
		flags = append(flags, "--until-caught-up", "--timeout", "5")
		if output, err := startImport(t, endpoints, members, flags...).ends(t); err == nil || !strings.Contains(output, wanted) {
			t.Errorf("%v, %s; want %q", err, output, wanted)
		}
	}
	// The history that the copy does not have is compacted.
	put("b")
	must[*clientv3.CompactResponse](t)(source.Compact(deadline(t), put("c")))
	put("d")
	fails("is compacted to revision", endpoints(sources), members)
	// Users are changed after the copy.
	members = prepare(t, kvServer(t), 1)
	startImport(t, endpoints(sources), members, "--until-caught-up").succeeds(t)
	must[*clientv3.AuthRoleAddResponse](t)(source.RoleAdd(deadline(t), "reader"))
	fails("users, roles or their permissions were changed", endpoints(sources), members)
	// Another cluster, no cluster, and directories of others.
	members = prepare(t, kvServer(t), 1)
	startImport(t, endpoints(sources), members, "--until-caught-up").succeeds(t)
	other := prepare(t, tool(t, "etcd"), 3)
	start(t, other)
	fails("the endpoints belong to cluster", endpoints(other), members)
	fails("and no response for", []string{"http://127.0.0.1:1"}, prepare(t, kvServer(t), 1))
	three := prepare(t, kvServer(t), 3)
	fails("no --other-data-dir names its directory", endpoints(sources), three[:1])
	fails("is not empty", endpoints(sources), []*process.Member{{
		DataDir: filepath.Dir(members[0].DataDir), Name: members[0].Name, InitialCluster: members[0].InitialCluster, PeerURL: members[0].PeerURL,
	}})
}

func TestALiveImportReadsACheckedClusterOfKvServer(t *testing.T) {
	sources := prepare(t, kvServer(t), 1)
	source := start(t, sources)
	must[*clientv3.PutResponse](t)(source.Put(deadline(t), "a", "1"))
	must[*clientv3.AuthUserAddResponse](t)(source.UserAdd(deadline(t), "root", "secret"))
	must[*clientv3.AuthUserGrantRoleResponse](t)(source.UserGrantRole(deadline(t), "root", "root"))
	must[*clientv3.AuthEnableResponse](t)(source.AuthEnable(deadline(t)))
	members := prepare(t, kvServer(t), 1)
	output, err := startImport(t, endpoints(sources), members, "--until-caught-up").ends(t)
	if err == nil {
		t.Errorf("an import without a user: %s", output)
	}
	t.Setenv("ETCDCTL_USER", "root:secret")
	startImport(t, endpoints(sources), members, "--until-caught-up").succeeds(t)
	start(t, members)
	client, err := clientv3.New(clientv3.Config{
		Endpoints: endpoints(members), Username: "root", Password: "secret", DialTimeout: callTimeout, Logger: zap.NewNop(),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if got := must[*clientv3.GetResponse](t)(client.Get(deadline(t), "a")); string(got.Kvs[0].Value) != "1" {
		t.Errorf("%v", got.Kvs)
	}
}
