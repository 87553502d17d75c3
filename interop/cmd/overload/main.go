// Command overload asks for large ranges with very many clients, and measures what that costs the server's memory and the
// small calls of other clients.
//
//	overload -server kv-server=../target/release/kv-server -flag kv-server=--memory-limit=512MiB -server etcd=bin/etcd
//
// For each server in turn: one member, some keys whose values make up one large range, small calls alone, then small calls
// while the clients of large ranges go on. Small calls are puts and ranges of one key, renewals of a lease, and GETs of
// /health; latency counts from the moment at which a call was due. Clients of large ranges run in a process of their own,
// do not decode what they read, and try again after the delay that a refusal names, or after 1 s.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"kv-server/interop/internal/measure"
	"kv-server/interop/internal/process"
)

const (
	callTimeout = 30 * time.Second
	valueBytes  = 64 << 10
	key         = "large/"
	sampleEvery = 20 * time.Millisecond
)

// serverFlags are flags for the servers of a name.
type serverFlags map[string][]string

func (f serverFlags) String() string { return fmt.Sprint(map[string][]string(f)) }

func (f serverFlags) Set(text string) error {
	name, given, found := strings.Cut(text, "=")
	if !found {
		return fmt.Errorf("expected NAME=FLAG, not %q", text)
	}
	f[name] = append(f[name], given)
	return nil
}

// load is what the clients of large ranges do.
type load struct {
	clients, connections, bytes, ramp, seconds int
}

func main() {
	log.SetFlags(0)
	var programs measure.Servers
	flags := serverFlags{}
	var load load
	flag.Var(&programs, "server", "a program to measure, as NAME=PROGRAM; repeatable")
	flag.Var(flags, "flag", "a flag for the servers of a name, as NAME=FLAG; repeatable")
	dir := flag.String("dir", "", "where data directories are made; default: the system's temporary directory")
	rate := flag.Int("rate", 200, "small calls of each kind in a second")
	flag.IntVar(&load.clients, "clients", 20_000, "clients of large ranges")
	flag.IntVar(&load.connections, "connections", 8_000, "their connections")
	flag.IntVar(&load.bytes, "bytes", 10<<20, "bytes of a large range")
	flag.IntVar(&load.ramp, "ramp", 15, "seconds in which they come")
	flag.IntVar(&load.seconds, "seconds", 60, "seconds of load after that")
	target := flag.String("load-on", "", "only be the clients of large ranges, of this address (used by the command itself)")
	flag.Parse()
	if *target != "" {
		fmt.Println(askFor(*target, load))
		return
	}
	if len(programs) == 0 {
		flag.Usage()
		os.Exit(2)
	}
	for _, program := range programs {
		if err := run(program, flags[program.Name], *dir, *rate, load); err != nil {
			log.Fatalf("%s: %v", program.Name, err)
		}
	}
}

func run(program measure.Server, flags []string, parent string, rate int, load load) error {
	dir, err := os.MkdirTemp(parent, "overload-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	members, err := process.Prepare(program.Binary, dir, 1)
	if err != nil {
		return err
	}
	member := members[0]
	member.AddFlags(flags...)
	if err := member.Start(); err != nil {
		return err
	}
	defer member.Kill()
	print := func(what, value string) { fmt.Printf("%-10s | %-44s | %s\n", program.Name, what, value) }
	client, err := clientv3.New(clientv3.Config{
		Endpoints: []string{member.ClientURL}, DialTimeout: callTimeout, Logger: zap.NewNop(),
	})
	if err != nil {
		return err
	}
	defer client.Close()
	for i := range load.bytes / valueBytes {
		value := strings.Repeat(string(rune('a'+i%26)), valueBytes)
		if _, err := client.Put(context.Background(), fmt.Sprintf("%s%04d", key, i), value); err != nil {
			return err
		}
	}
	alone, err := small(client, member.ClientURL, rate, 5*time.Second)
	if err != nil {
		return err
	}
	report(print, "alone", alone)
	_, before, err := member.Usage()
	if err != nil {
		return err
	}
	print("resident memory before", measure.Mebibytes(before))

	done := make(chan error, 1)
	var counts strings.Builder
	go func() { done <- others(member.ClientURL, load, &counts) }()
	peak := watchMemory(member)
	coming, err := small(client, member.ClientURL, rate, time.Duration(load.ramp)*time.Second)
	if err != nil {
		return fmt.Errorf("%w\n%s", err, member.LogTail())
	}
	report(print, "while they come", coming)
	loaded, err := small(client, member.ClientURL, rate, time.Duration(load.seconds)*time.Second)
	if err != nil {
		return fmt.Errorf("%w\n%s", err, member.LogTail())
	}
	if err := <-done; err != nil {
		return err
	}
	report(print, "under load", loaded)
	print("large ranges", strings.TrimSpace(counts.String()))
	print("resident memory at most", measure.Mebibytes(peak()))
	time.Sleep(5 * time.Second)
	_, after, err := member.Usage()
	print("resident memory 5 s after", measure.Mebibytes(after))
	return err
}

// watchMemory samples the member's memory until the returned function is called, which gives the largest.
func watchMemory(member *process.Member) func() int64 {
	var peak atomic.Int64
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			if _, bytes, err := member.Usage(); err == nil {
				peak.Store(max(peak.Load(), bytes))
			}
			select {
			case <-stop:
				return
			case <-time.After(sampleEvery):
			}
		}
	}()
	return func() int64 {
		close(stop)
		<-stopped
		return peak.Load()
	}
}

// kind is one kind of small calls.
type kind struct {
	name   string
	call   func(context.Context) error
	took   measure.Latencies
	failed atomic.Int64
	last   atomic.Value
}

// small makes small calls of all kinds at a rate.
func small(client *clientv3.Client, url string, rate int, lasts time.Duration) ([]*kind, error) {
	lease, err := client.Grant(context.Background(), 60)
	if err != nil {
		return nil, err
	}
	kinds := []*kind{
		{name: "puts", call: func(ctx context.Context) error {
			_, err := client.Put(ctx, "small", "value")
			return err
		}},
		{name: "ranges of one key", call: func(ctx context.Context) error {
			_, err := client.Get(ctx, "small")
			return err
		}},
		{name: "renewals", call: func(ctx context.Context) error {
			_, err := client.KeepAliveOnce(ctx, lease.ID)
			return err
		}},
		{name: "health checks", call: func(ctx context.Context) error { return health(ctx, url) }},
	}
	var all sync.WaitGroup
	for _, kind := range kinds {
		all.Go(func() { kind.at(rate, lasts) })
	}
	all.Wait()
	return kinds, nil
}

func (k *kind) at(rate int, lasts time.Duration) {
	var calls sync.WaitGroup
	began := time.Now()
	for number := 0; ; number++ {
		due := time.Duration(number) * time.Second / time.Duration(rate)
		if due >= lasts {
			break
		}
		time.Sleep(time.Until(began.Add(due)))
		calls.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
			defer cancel()
			if err := k.call(ctx); err != nil {
				k.failed.Add(1)
				k.last.Store(err.Error())
			}
			k.took.Add(time.Since(began.Add(due)))
		})
	}
	calls.Wait()
}

func health(ctx context.Context, url string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/health", nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if _, err := io.Copy(io.Discard, response.Body); err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s", response.Status)
	}
	return nil
}

func report(print func(what, value string), when string, kinds []*kind) {
	for _, kind := range kinds {
		text := kind.took.String()
		if failed := kind.failed.Load(); failed > 0 {
			text += ", failed " + strconv.FormatInt(failed, 10) + " (" + fmt.Sprint(kind.last.Load()) + ")"
		}
		print(kind.name+" "+when, text)
	}
}
