// Command archive checks `kvctl archive` and `kvctl restore` under load: members and the archiver are
// killed while clients write, and then restored stores are compared with what a watcher of all keys saw.
//
//	archive -server ../target/release/kv-server -seconds 600 -rate 5000 -restores 20
//
// A restored store has to have the revision asked for as its newest one, and exactly the keys of that revision,
// with their values, versions, leases, and create and mod revisions. The first difference ends the command with
// status 1. The same seed gives the same times between kills. The newest revision is always restored.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"kv-server/interop/internal/process"
)

// How long the archiver and the watcher may take to see the last revision when the load has ended.
const patience = 5 * time.Minute

// options are those of the command line.
type options struct {
	server, dir                    string
	seconds, rate, keys, restores  int
	seed                           uint64
	archiverKilledEvery, downEvery time.Duration
	baseEvery                      time.Duration
}

func main() {
	log.SetFlags(0)
	var o options
	flag.StringVar(&o.server, "server", "../target/release/kv-server", "the server, with kvctl next to it")
	flag.StringVar(&o.dir, "dir", "", "where directories are made; default: the system's temporary directory")
	flag.IntVar(&o.seconds, "seconds", 600, "seconds of load")
	flag.IntVar(&o.rate, "rate", 5000, "writes in a second")
	flag.IntVar(&o.keys, "keys", 10_000, "different keys")
	flag.IntVar(&o.restores, "restores", 20, "revisions to restore")
	flag.Uint64Var(&o.seed, "seed", 1, "seed of the kills and of the revisions")
	flag.DurationVar(&o.archiverKilledEvery, "kill-archiver-every", 20*time.Second, "mean time between its kills")
	flag.DurationVar(&o.downEvery, "kill-member-every", 45*time.Second, "mean time between kills of a member")
	flag.DurationVar(&o.baseEvery, "base-every", 3*time.Minute, "time between two bases")
	flag.Parse()
	if err := run(o); err != nil {
		log.Fatal(err)
	}
}

func run(o options) error {
	binary, err := filepath.Abs(o.server)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp(o.dir, "archive-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	members, err := process.Prepare(binary, dir, 3)
	if err != nil {
		return err
	}
	for _, member := range members {
		member.AddFlags("--quota-backend-bytes=8589934592")
	}
	if err := process.StartAll(members); err != nil {
		return err
	}
	defer func() {
		for _, member := range members {
			member.Kill()
		}
	}()
	var urls []string
	for _, member := range members {
		urls = append(urls, member.ClientURL)
	}
	client, err := connect(urls)
	if err != nil {
		return err
	}
	defer client.Close()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	seen := record(ctx, client)
	archiver := &archiver{binary: process.Beside(binary, "kvctl"), place: filepath.Join(dir, "place"), urls: urls, baseEvery: o.baseEvery}
	defer archiver.kill()
	first, err := archiver.begin()
	if err != nil {
		return err
	}
	last, err := disturb(ctx, o, members, archiver, client)
	if err != nil {
		return err
	}
	if err := seen.waitFor(last); err != nil {
		return err
	}
	if err := archiver.waitFor(last); err != nil {
		return err
	}
	archiver.kill()
	fmt.Printf("archived revisions %d to %d; archiver killed %d times\n", first, last, archiver.kills-1)
	fmt.Printf("%v of processor time in %v: %.1f %% of one processor\n", archiver.used,
		archiver.ran.Round(time.Second), 100*archiver.used.Seconds()/archiver.ran.Seconds())
	fmt.Printf("behind by at most %v\n", archiver.behind.Round(time.Millisecond))
	for _, member := range members {
		member.Kill()
	}
	random := rand.New(rand.NewPCG(o.seed, 2))
	revisions := []int64{last}
	for len(revisions) < o.restores {
		revisions = append(revisions, first+random.Int64N(last-first+1))
	}
	slices.Sort(revisions)
	for number, revision := range revisions {
		at := filepath.Join(dir, fmt.Sprintf("restored-%d", number))
		keys, took, err := check(binary, at, archiver.place, revision, seen)
		if err != nil {
			return fmt.Errorf("revision %d: %w", revision, err)
		}
		fmt.Printf("revision %d: %d keys, equal; restored in %v\n", revision, keys, took.Round(time.Millisecond))
	}
	return nil
}

// connect makes a client that logs nothing: kills are meant.
func connect(urls []string) (*clientv3.Client, error) {
	return clientv3.New(clientv3.Config{
		Endpoints: urls, Logger: zap.NewNop(), DialTimeout: 10 * time.Second,
		DialKeepAliveTime: 5 * time.Second, DialKeepAliveTimeout: 5 * time.Second,
	})
}
