// Command strangers counts what honest clients get while strangers hold connections, on each server in turn.
//
//	strangers -server kv-server=../target/debug/kv-server -server etcd=bin/etcd
//
// Two experiments, for each server:
//
//   - connections: a member that may open 1,024 files. 60 connections of one address put, 20 watch. Then strangers at 98
//     addresses hold 4 connections each with a Health/Watch, and open them again when they are closed.
//   - probes: a member of three that has lost the others. Strangers at 24 addresses poll /readyz of its metrics listener;
//     an honest probe asks for /livez twice a second.
//
// With more than one server it fails if honest clients of the first have more failures than those of any other.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	health "google.golang.org/grpc/health/grpc_health_v1"

	"kv-server/interop/internal/measure"
	"kv-server/interop/internal/process"
)

const (
	openFiles   = 1024
	honest      = "127.0.200.1"
	putters     = 60
	watchers    = 20
	putEvery    = 200 * time.Millisecond
	putTimeout  = 5 * time.Second
	addresses   = 98
	ofAddress   = 4
	pollers     = 24
	probeEvery  = 500 * time.Millisecond
	probeWithin = 2 * time.Second
)

// count is what honest clients got.
type count struct {
	what       string
	ok, failed int64
}

func main() {
	log.SetFlags(0)
	var programs measure.Servers
	flag.Var(&programs, "server", "a program to measure, as NAME=PROGRAM; repeatable")
	seconds := flag.Int("seconds", 15, "how long strangers stay")
	flag.Parse()
	if len(programs) == 0 {
		flag.Usage()
		os.Exit(2)
	}
	var first []count
	worse := false
	for _, program := range programs {
		counts, err := run(program, time.Duration(*seconds)*time.Second)
		if err != nil {
			log.Fatalf("%s: %v", program.Name, err)
		}
		for i, count := range counts {
			fmt.Printf("%-10s | %-44s | %6d ok | %5d failed\n", program.Name, count.what, count.ok, count.failed)
			if first != nil && first[i].failed > count.failed {
				worse = true
				fmt.Printf("%-10s | more failures than %s: %s\n", programs[0].Name, program.Name, count.what)
			}
		}
		if first == nil {
			first = counts
		}
	}
	if worse {
		os.Exit(1)
	}
}

func run(program measure.Server, lasts time.Duration) ([]count, error) {
	dir, err := os.MkdirTemp("", "strangers-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	counts, err := connections(program, dir, lasts)
	if err != nil {
		return nil, err
	}
	probes, err := probes(program, filepath.Join(dir, "probes"), lasts)
	return append(counts, probes), err
}

// dialer connects from an address of this machine.
func dialer(source string) func(context.Context, string, string) (net.Conn, error) {
	return (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(source)}}).DialContext
}

// channel is a separate connection from this address to a server.
func channel(source, target string) (*grpc.ClientConn, error) {
	dial := dialer(source)
	return grpc.NewClient("passthrough:///"+target, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, target string) (net.Conn, error) {
			return dial(ctx, "tcp", target)
		}))
}

func connections(program measure.Server, dir string, lasts time.Duration) ([]count, error) {
	limited := filepath.Join(dir, "limited")
	script := fmt.Sprintf("#!/bin/sh\nulimit -n %d\nexec '%s' \"$@\"\n", openFiles, program.Binary)
	if err := os.WriteFile(limited, []byte(script), 0o700); err != nil {
		return nil, err
	}
	members, err := process.Start(limited, dir, 1)
	if err != nil {
		return nil, err
	}
	defer members[0].Kill()
	target := members[0].ClientURL[len("http://"):]

	all, stop := context.WithCancel(context.Background())
	defer stop()
	var clients, served sync.WaitGroup
	var isBusy atomic.Bool
	var ok, failed, watching, ended atomic.Int64
	served.Add(putters + watchers)
	for range putters {
		clients.Go(func() { putter(all, target, &isBusy, &served, &ok, &failed) })
	}
	for range watchers {
		clients.Go(func() { watcher(all, target, &served, &watching, &ended) })
	}
	served.Wait()
	for address := range addresses {
		for range ofAddress {
			clients.Go(func() { stranger(all, fmt.Sprintf("127.0.1.%d", address+1), target) })
		}
	}
	isBusy.Store(true)
	time.Sleep(lasts)
	isBusy.Store(false)
	puts := count{fmt.Sprintf("puts of %d clients", putters), ok.Load(), failed.Load()}
	watches := count{"watches that go on", watching.Load() - ended.Load(), ended.Load()}
	stop()
	clients.Wait()
	return []count{puts, watches}, nil
}

// putter puts on one connection, which is opened again when it fails. It counts while isBusy.
func putter(ctx context.Context, target string, isBusy *atomic.Bool, served *sync.WaitGroup, ok, failed *atomic.Int64) {
	conn, err := channel(honest, target)
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	first := sync.OnceFunc(served.Done)
	for ctx.Err() == nil {
		next := time.After(putEvery)
		call, cancel := context.WithTimeout(ctx, putTimeout)
		_, err := pb.NewKVClient(conn).Put(call, &pb.PutRequest{Key: []byte("k"), Value: []byte("v")})
		cancel()
		switch {
		case !isBusy.Load() || ctx.Err() != nil:
		case err == nil:
			ok.Add(1)
		default:
			failed.Add(1)
		}
		if err == nil {
			first()
		}
		<-next
	}
}

// watcher watches until its stream ends.
func watcher(ctx context.Context, target string, served *sync.WaitGroup, watching, ended *atomic.Int64) {
	conn, err := channel(honest, target)
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	stream, err := pb.NewWatchClient(conn).Watch(ctx)
	if err != nil {
		log.Fatal(err)
	}
	create := &pb.WatchCreateRequest{Key: []byte("watched")}
	if err := stream.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: create}}); err != nil {
		log.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil {
		log.Fatal(err)
	}
	watching.Add(1)
	served.Done()
	for err == nil {
		_, err = stream.Recv()
	}
	if ctx.Err() == nil {
		ended.Add(1)
	}
}

// stranger holds a connection with an open Health/Watch.
func stranger(ctx context.Context, source, target string) {
	for ctx.Err() == nil {
		conn, err := channel(source, target)
		if err != nil {
			log.Fatal(err)
		}
		stream, err := health.NewHealthClient(conn).Watch(ctx, &health.HealthCheckRequest{})
		for err == nil {
			_, err = stream.Recv()
		}
		_ = conn.Close() // a stranger's
		select {
		case <-ctx.Done():
		case <-time.After(time.Second / 10):
		}
	}
}

func probes(program measure.Server, dir string, lasts time.Duration) (count, error) {
	result := count{what: "probes of /livez without a quorum"}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return result, err
	}
	members, err := process.Prepare(program.Binary, dir, 3)
	if err != nil {
		return result, err
	}
	ports, err := process.FreePorts(1)
	if err != nil {
		return result, err
	}
	metrics := fmt.Sprintf("http://127.0.0.1:%d", ports[0])
	members[0].AddFlags("--listen-metrics-urls", metrics)
	if err := process.StartAll(members); err != nil {
		return result, err
	}
	defer members[0].Kill()
	members[1].Kill()
	members[2].Kill()
	all, stop := context.WithTimeout(context.Background(), lasts)
	defer stop()
	var polling sync.WaitGroup
	for address := range pollers {
		polling.Go(func() {
			for all.Err() == nil {
				_ = get(all, fmt.Sprintf("127.0.1.%d", address+1), metrics+"/readyz", putTimeout*3)
				time.Sleep(time.Second / 50)
			}
		})
	}
	for all.Err() == nil {
		next := time.After(probeEvery)
		if get(context.Background(), honest, metrics+"/livez", probeWithin) == nil {
			result.ok++
		} else {
			result.failed++
		}
		<-next
	}
	polling.Wait()
	return result, nil
}

// get asks on a new connection from this address.
func get(ctx context.Context, source, url string, within time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	client := &http.Client{Transport: &http.Transport{DialContext: dialer(source), DisableKeepAlives: true}}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	answer, err := client.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if _, err := io.Copy(io.Discard, answer.Body); err != nil {
		return err
	}
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("%s", answer.Status)
	}
	return nil
}
