// Command coordination measures what watchers and leases cost the other clients of a cluster, on any number of servers
// in turn.
//
//	coordination -server kv-server=../target/release/kv-server -server etcd=bin/etcd stalled
//
// Experiments:
//
//	stalled   watchers of all keys that never read, while puts go on: latency of puts and of watchers that read, memory
//	expiry    leases that expire in the same second, the leader killed half-way: how late keys go, and whether one is early
//	leader    leases at rest: processor time of the leader, time to the first renewal of the next one, what TTLs lose
//	history   a watcher that reads a long history, then ten at once while puts go on
//	events    readers check each event while members are killed and paused and history is compacted each 100 ms
//
// What renewals and idle watchers cost is measured by "loadgen compare coordination".
//
// Latency of puts counts from the moment at which a put was due, not from the one at which it was sent. Each server runs
// in a directory of its own that is removed afterwards. Rounds go around the servers.
package main

import (
	"flag"
	"fmt"
	"log"
	"os"
	"time"

	"kv-server/interop/internal/measure"
	"kv-server/interop/internal/process"
)

// sizes are those of the experiments.
type sizes struct {
	members, watchers, puts, rate, leases, atRest, events int
	checked, readers                                      int
	untilExpiry                                           time.Duration
}

// An experiment runs on a fresh cluster and returns its figures in order.
type experiment struct {
	run func(members []*process.Member, sizes sizes) ([]figure, error)
	// Flags of the members.
	flags []string
}

type figure struct {
	name, value string
}

func main() {
	log.SetFlags(0)
	var programs measure.Servers
	var sizes sizes
	flag.Var(&programs, "server", "a program to measure, as NAME=PROGRAM; repeatable")
	dir := flag.String("dir", "", "where data directories are made; default: the system's temporary directory")
	rounds := flag.Int("rounds", 1, "rounds of each server")
	flag.IntVar(&sizes.members, "members", 3, "members of a cluster")
	flag.IntVar(&sizes.watchers, "watchers", 1000, "watchers that never read")
	flag.IntVar(&sizes.puts, "puts", 200_000, "puts of 1 KiB while they do not")
	flag.IntVar(&sizes.rate, "rate", 2000, "puts in a second")
	flag.IntVar(&sizes.leases, "leases", 100_000, "leases that expire")
	flag.DurationVar(&sizes.untilExpiry, "until-expiry", 90*time.Second, "from the first grant to the end of the leases")
	flag.IntVar(&sizes.atRest, "leases-at-rest", 1_000_000, "leases at rest")
	flag.IntVar(&sizes.events, "events", 1_000_000, "events of a history")
	flag.IntVar(&sizes.checked, "checked-events", 100_000_000, "events that readers check, all of them together")
	flag.IntVar(&sizes.readers, "readers", 200, "readers that check events")
	flag.Parse()
	experiments := map[string]experiment{
		"stalled": {run: stalled},
		"expiry":  {run: expiry},
		"leader":  {run: leader},
		"history": {run: history},
		// Logs are trimmed soon, so that a member that was paused needs a snapshot.
		"events": {run: eventCheck, flags: []string{"--snapshot-count=1000", "--snapshot-catchup-entries=100"}},
	}
	run, known := experiments[flag.Arg(0)]
	if !known || len(programs) == 0 {
		flag.Usage()
		os.Exit(2)
	}
	for round := range *rounds {
		for _, program := range programs {
			if err := runOn(program, *dir, sizes, run, round); err != nil {
				log.Fatalf("%s: %v", program.Name, err)
			}
		}
	}
}

func runOn(program measure.Server, parent string, sizes sizes, run experiment, round int) error {
	dir, err := os.MkdirTemp(parent, "coordination-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	members, err := process.Prepare(program.Binary, dir, sizes.members)
	if err != nil {
		return err
	}
	for _, member := range members {
		member.AddFlags("--quota-backend-bytes=8589934592")
		member.AddFlags(run.flags...)
	}
	if err := process.StartAll(members); err != nil {
		return err
	}
	defer func() {
		for _, member := range members {
			member.Kill()
		}
	}()
	began := time.Now()
	figures, err := run.run(members, sizes)
	for _, figure := range figures {
		fmt.Printf("round %d | %-10s | %-44s | %s\n", round+1, program.Name, figure.name, figure.value)
	}
	fmt.Printf("round %d | %-10s | %-44s | %.0f s\n", round+1, program.Name, "the experiment took", time.Since(began).Seconds())
	return err
}
