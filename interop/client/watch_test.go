package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// event is an event in one line.
func event(event *clientv3.Event) string {
	line := fmt.Sprintf("%s %s=%s", event.Type, event.Kv.Key, event.Kv.Value)
	if event.PrevKv != nil {
		line += " was " + string(event.PrevKv.Value)
	}
	return line
}

// events reads until there are count of them.
func events(t *testing.T, channel clientv3.WatchChan, count int) []*clientv3.Event {
	t.Helper()
	var found []*clientv3.Event
	for len(found) < count {
		select {
		case answer, open := <-channel:
			if !open || answer.Err() != nil {
				t.Fatalf("%d of %d events: open: %v, error: %v", len(found), count, open, answer.Err())
			}
			found = append(found, answer.Events...)
		case <-time.After(callTimeout):
			t.Fatalf("%d of %d events in time", len(found), count)
		}
	}
	if len(found) > count {
		t.Fatalf("%d events, want %d", len(found), count)
	}
	return found
}

func lines(found []*clientv3.Event) string {
	var lines []string
	for _, found := range found {
		lines = append(lines, event(found))
	}
	return strings.Join(lines, ", ")
}

func TestWatchDeliversAPrefixWithPreviousValues(t *testing.T) {
	client := connect(t)
	first := put(t, client, "watched/a", "1")
	channel := client.Watch(deadline(t), "watched/", clientv3.WithPrefix(), clientv3.WithPrevKV(),
		clientv3.WithRev(first))
	put(t, client, "watched/a", "2", "elsewhere/watched", "no", "watched/b", "3")
	if _, err := client.Delete(deadline(t), "watched/", clientv3.WithPrefix()); err != nil {
		t.Fatal(err)
	}
	found := events(t, channel, 5)
	want := "PUT watched/a=1, PUT watched/a=2 was 1, PUT watched/b=3, DELETE watched/a= was 2, DELETE watched/b= was 3"
	if lines(found) != want {
		t.Errorf("%s, want %s", lines(found), want)
	}
	if found[3].Kv.ModRevision != found[4].Kv.ModRevision || !found[0].IsCreate() || !found[1].IsModify() {
		t.Error(found)
	}
}

func TestWatchFiltersEvents(t *testing.T) {
	client := connect(t)
	puts := client.Watch(deadline(t), "filtered", clientv3.WithFilterDelete(), clientv3.WithCreatedNotify())
	deletes := client.Watch(deadline(t), "filtered", clientv3.WithFilterPut(), clientv3.WithCreatedNotify())
	for _, channel := range []clientv3.WatchChan{puts, deletes} {
		if answer := <-channel; !answer.Created {
			t.Fatal(answer)
		}
	}
	put(t, client, "filtered", "1")
	if _, err := client.Delete(deadline(t), "filtered"); err != nil {
		t.Fatal(err)
	}
	put(t, client, "filtered", "2")
	if got := lines(events(t, puts, 2)); got != "PUT filtered=1, PUT filtered=2" {
		t.Error(got)
	}
	if got := lines(events(t, deletes, 1)); got != "DELETE filtered=" {
		t.Error(got)
	}
}

func TestWatchOfACompactedRevisionFailsWithTheRevision(t *testing.T) {
	// Of one member: another one may apply the compaction after it was answered.
	client := connect(t, shared[0])
	first := put(t, client, "compacted", "1")
	last := put(t, client, "compacted", "2", "compacted", "3")
	if _, err := client.Compact(deadline(t), last); err != nil {
		t.Fatal(err)
	}
	answer := <-client.Watch(deadline(t), "compacted", clientv3.WithRev(first))
	if !errors.Is(answer.Err(), rpctypes.ErrCompacted) || answer.CompactRevision != last {
		t.Fatalf("%v, compact revision %d, want %d", answer.Err(), answer.CompactRevision, last)
	}
	if got := lines(events(t, client.Watch(deadline(t), "compacted", clientv3.WithRev(last)), 1)); got != "PUT compacted=3" {
		t.Error(got)
	}
}

func TestWatchPutsFragmentsTogether(t *testing.T) {
	client := connect(t)
	value := strings.Repeat("x", 900_000)
	first := put(t, client, "fragment/a", value)
	for _, key := range []string{"b", "c", "d", "e"} {
		put(t, client, "fragment/"+key, value)
	}
	for _, options := range [][]clientv3.OpOption{{clientv3.WithFragment()}, {}} {
		options = append(options, clientv3.WithPrefix(), clientv3.WithRev(first))
		found := events(t, client.Watch(deadline(t), "fragment/", options...), 5)
		for number, event := range found {
			if string(event.Kv.Key) != "fragment/"+string("abcde"[number]) || len(event.Kv.Value) != len(value) {
				t.Fatalf("%d: %s with %d bytes", number, event.Kv.Key, len(event.Kv.Value))
			}
		}
	}
}

func TestWatchReportsProgressOnRequest(t *testing.T) {
	client := connect(t)
	ctx := deadline(t)
	channel := client.Watch(ctx, "progress", clientv3.WithCreatedNotify())
	if answer := <-channel; !answer.Created {
		t.Fatal(answer)
	}
	revision := put(t, client, "progress-of-others", "1")
	for {
		// A request may come too early: then there is no answer.
		if err := client.RequestProgress(ctx); err != nil {
			t.Fatal(err)
		}
		select {
		case answer := <-channel:
			if !answer.IsProgressNotify() {
				t.Fatal(answer)
			}
			if answer.Header.Revision >= revision {
				return
			}
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func TestManyWatchersOfOneClient(t *testing.T) {
	const watchers = 1000
	client := connect(t)
	ctx := deadline(t)
	var channels []clientv3.WatchChan
	for number := range watchers {
		key := fmt.Sprintf("many/%d", number%10)
		channels = append(channels, client.Watch(ctx, key, clientv3.WithCreatedNotify()))
	}
	for _, channel := range channels {
		if answer := <-channel; !answer.Created {
			t.Fatal(answer)
		}
	}
	for key := range 10 {
		put(t, client, fmt.Sprintf("many/%d", key), "1")
	}
	for number, channel := range channels {
		if got, want := lines(events(t, channel, 1)), fmt.Sprintf("PUT many/%d=1", number%10); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

func TestWatchSeesEveryRevisionOnceWhileMembersAreKilled(t *testing.T) {
	members := newCluster(t)
	client := connect(t, members...)
	putUntil(t, client, "killed/first", "0")
	first, err := client.Get(deadline(t), "killed/first")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	channel := client.Watch(clientv3.WithRequireLeader(ctx), "killed/", clientv3.WithPrefix(),
		clientv3.WithRev(first.Header.Revision))
	next, seen := first.Header.Revision, map[string]bool{}
	follow := func(until string) {
		t.Helper()
		for !seen[until] {
			select {
			case answer, open := <-channel:
				if !open || answer.Err() != nil {
					// The client gives up when a member is without a leader; its caller continues.
					channel = client.Watch(clientv3.WithRequireLeader(ctx), "killed/", clientv3.WithPrefix(),
						clientv3.WithRev(next))
					continue
				}
				for _, event := range answer.Events {
					if event.Kv.ModRevision != next {
						t.Fatalf("revision %d, want %d", event.Kv.ModRevision, next)
					}
					next++
					seen[string(event.Kv.Value)] = true
				}
			case <-time.After(callTimeout):
				t.Fatalf("%s was not seen in time", until)
			}
		}
	}
	for round := range 4 {
		victim := leader(t, members)
		if round == 3 {
			victim = members[0]
		}
		for number := range 50 {
			putUntil(t, client, "killed/k", fmt.Sprintf("%d before %d", number, round))
		}
		victim.Kill()
		last := ""
		for number := range 50 {
			last = fmt.Sprintf("%d after %d", number, round)
			putUntil(t, client, "killed/k", last)
		}
		follow(last)
		if err := victim.Start(); err != nil {
			t.Fatal(err)
		}
	}
	sameEverywhere(t, members, client)
}

// watching runs etcdctl watch and returns what it printed when it has printed want.
func watching(t *testing.T, stdin string, want string, then func(), args ...string) {
	t.Helper()
	path, err := filepath.Abs(filepath.Join("..", "bin", "etcdctl"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Skipf("left out: no %s; run interop/build.sh", path)
	}
	urls := strings.ReplaceAll(strings.Join(endpoints(shared), ","), "http://", "")
	command := exec.CommandContext(deadline(t), path, append([]string{"--endpoints", urls, "watch"}, args...)...)
	input, err := command.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	output, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = command.Wait() }()
	defer command.Process.Kill()
	if _, err := input.Write([]byte(stdin)); err != nil {
		t.Fatal(err)
	}
	then()
	var printed bytes.Buffer
	buffer := make([]byte, 4096)
	for !strings.Contains(printed.String(), want) {
		count, err := output.Read(buffer)
		printed.Write(buffer[:count])
		if err != nil {
			t.Fatalf("etcdctl watch %s: %v after %q, want %q", strings.Join(args, " "), err, printed.String(), want)
		}
	}
}

func TestEtcdctlWatches(t *testing.T) {
	client := connect(t)
	first := put(t, client, "ctl-watch/a", "1")
	rev := fmt.Sprint(first)
	then := func() {
		put(t, client, "ctl-watch/b", "2")
		if _, err := client.Delete(deadline(t), "ctl-watch/a"); err != nil {
			t.Fatal(err)
		}
	}
	watching(t, "", "PUT\nctl-watch/a\n1\nPUT\nctl-watch/b\n2\nDELETE\nctl-watch/a\n\n", then,
		"ctl-watch/", "--prefix", "--rev", rev)
	watching(t, "", "DELETE\nctl-watch/a\n1\nctl-watch/a\n\n", func() {}, "ctl-watch/a", "--prev-kv", "--rev", rev)
	watching(t, "watch ctl-watch/b --rev "+rev+"\n", "PUT\nctl-watch/b\n2\n", func() {}, "--interactive")
	watching(t, "", "key=\"ctl-watch/b\" value=\"2\"\n", func() {}, "ctl-watch/b", "--rev", rev, "--",
		"sh", "-c", "echo key=$ETCD_WATCH_KEY value=$ETCD_WATCH_VALUE")
}
