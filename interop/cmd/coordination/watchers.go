package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/protowire"

	"kv-server/interop/internal/measure"
	"kv-server/interop/internal/process"
	"kv-server/interop/internal/session"
)

const (
	// Watch streams on one connection.
	streamsEach = 10
	healthy     = 10
	// Readers of a history at once.
	readers = 10
)

// stream opens a watch stream without the client's machinery, so that nothing reads it unless it is asked to.
func stream(ctx context.Context, conn *grpc.ClientConn, key, end string, from int64) (etcdserverpb.Watch_WatchClient, error) {
	opened, err := etcdserverpb.NewWatchClient(conn).Watch(ctx)
	if err != nil {
		return nil, err
	}
	create := &etcdserverpb.WatchCreateRequest{Key: []byte(key), RangeEnd: []byte(end), StartRevision: from}
	request := &etcdserverpb.WatchRequest{RequestUnion: &etcdserverpb.WatchRequest_CreateRequest{CreateRequest: create}}
	return opened, opened.Send(request)
}

func dial(member *process.Member) (*grpc.ClientConn, error) {
	return grpc.NewClient(member.ClientURL[len("http://"):], grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(1<<30)))
}

// delays reads watch streams of all puts, and notes how long after its due time each put came.
func delays(ctx context.Context, members []*process.Member, count int) (*measure.Latencies, error) {
	seen := &measure.Latencies{}
	var opened sync.WaitGroup
	for number := range count {
		conn, err := dial(members[number%len(members)])
		if err != nil {
			return nil, err
		}
		watch, err := stream(ctx, conn, "p", "q", 0)
		if err != nil {
			return nil, err
		}
		opened.Add(1)
		go func() {
			defer conn.Close()
			isOpen := false
			for {
				response, err := watch.Recv()
				if !isOpen {
					isOpen = true
					opened.Done()
				}
				if err != nil {
					return
				}
				now := time.Now()
				for _, event := range response.Events {
					at := int64(binary.BigEndian.Uint64(event.Kv.Value))
					seen.Add(now.Sub(time.Unix(0, at)))
				}
			}
		}()
	}
	opened.Wait()
	return seen, nil
}

// loaded puts at the rate while some watchers read.
func loaded(members []*process.Member, all []*clientv3.Client, rate, count int) (puts, events *measure.Latencies, err error) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if events, err = delays(ctx, members, healthy); err != nil {
		return nil, nil, err
	}
	puts, failed := putAt(all, "p", rate, count, nil)
	if failed > 0 {
		return nil, nil, fmt.Errorf("%d puts failed", failed)
	}
	return puts, events, nil
}

func stalled(members []*process.Member, sizes sizes) ([]figure, error) {
	all, err := clients(members, connections)
	defer closeAll(all)
	if err != nil {
		return nil, err
	}
	// What grows with the number of keys and revisions alone has grown before.
	if _, _, err := loaded(members, all, sizes.rate, sizes.puts/4); err != nil {
		return nil, err
	}
	puts, events, grown, err := loadedPeak(members, all, sizes)
	if err != nil {
		return nil, err
	}
	figures := []figure{
		{"puts without them", puts.String()},
		{"events without them", events.String()},
		{"a member grew without them by at most", measure.Mebibytes(grown)},
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var conn *grpc.ClientConn
	for number := range sizes.watchers {
		if number%streamsEach == 0 {
			if conn, err = dial(members[number/streamsEach%len(members)]); err != nil {
				return nil, err
			}
			defer conn.Close()
		}
		if _, err := stream(ctx, conn, "p", "q", 0); err != nil {
			return nil, err
		}
	}
	stalledPuts, stalledEvents, stalledGrown, err := loadedPeak(members, all, sizes)
	if err != nil {
		return figures, err
	}
	return append(figures,
		figure{"puts with them", stalledPuts.String()},
		figure{"events with them", stalledEvents.String()},
		figure{"p99 of puts, with to without", ratio(stalledPuts, puts)},
		figure{"p99 of events, with to without", ratio(stalledEvents, events)},
		figure{"a member grew with them by at most", measure.Mebibytes(stalledGrown)}), nil
}

// loadedPeak is loaded, and by how much the resident memory of a member was larger at its peak than at the beginning: of
// the member that grew most.
func loadedPeak(members []*process.Member, all []*clientv3.Client, sizes sizes) (puts, events *measure.Latencies, grown int64, err error) {
	before := make([]int64, len(members))
	for at, member := range members {
		if _, before[at], err = member.Usage(); err != nil {
			return nil, nil, 0, err
		}
	}
	sampled, stop := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(sampled)
		for {
			select {
			case <-stop:
				return
			case <-time.After(200 * time.Millisecond):
			}
			for at, member := range members {
				if _, now, err := member.Usage(); err == nil {
					grown = max(grown, now-before[at])
				}
			}
		}
	}()
	puts, events, err = loaded(members, all, sizes.rate, sizes.puts)
	close(stop)
	<-sampled
	return puts, events, grown, err
}

func ratio(a, b *measure.Latencies) string {
	return fmt.Sprintf("%.2f", float64(a.Quantile(0.99))/float64(b.Quantile(0.99)))
}

// read counts events from the first revision on until there are so many. It does not decode them, which would cost
// more than to send them.
func read(member *process.Member, events int) (time.Duration, error) {
	link, err := session.Dial(member)
	if err != nil {
		return 0, err
	}
	defer link.Close()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	began := time.Now()
	watch, err := openWatch(ctx, link, &etcdserverpb.WatchCreateRequest{
		Key: []byte("h"), RangeEnd: []byte("i"), StartRevision: 1,
	})
	if err != nil {
		return 0, err
	}
	for seen := 0; seen < events; {
		var message []byte
		if err := watch.RecvMsg(&message); err != nil {
			return 0, fmt.Errorf("after %d events: %w", seen, err)
		}
		if err := fields(message, func(number protowire.Number, _ uint64, _ []byte) error {
			if number == eventsField {
				seen++
			}
			return nil
		}); err != nil {
			return 0, err
		}
	}
	return time.Since(began), nil
}

func history(members []*process.Member, sizes sizes) ([]figure, error) {
	all, err := clients(members, connections)
	defer closeAll(all)
	if err != nil {
		return nil, err
	}
	if err := many(all, sizes.events, func(client *clientv3.Client, number int) error {
		ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
		defer cancel()
		_, err := client.Put(ctx, fmt.Sprintf("h%06d", number%100_000), "0123456789abcdef")
		return err
	}); err != nil {
		return nil, err
	}
	leads, _, err := leaderOf(members)
	if err != nil {
		return nil, err
	}
	before, _, err := leads.Usage()
	if err != nil {
		return nil, err
	}
	took, err := read(leads, sizes.events)
	if err != nil {
		return nil, err
	}
	after, _, err := leads.Usage()
	if err != nil {
		return nil, err
	}
	perSecond := func(took time.Duration) string {
		return fmt.Sprintf("%.0f events/s", float64(sizes.events)/took.Seconds())
	}
	figures := []figure{
		{"one watcher of the history", perSecond(took)},
		{"processor time of its member, per event", fmt.Sprintf("%.2f µs", float64((after-before).Microseconds())/float64(sizes.events))},
	}
	alone, _ := putAt(all, "p", sizes.rate, 10*sizes.rate, nil)
	done := make(chan error, readers)
	stop := make(chan struct{})
	var slowest atomic.Int64
	for range readers {
		go func() {
			took, err := read(leads, sizes.events)
			if int64(took) > slowest.Load() {
				slowest.Store(int64(took))
			}
			done <- err
		}()
	}
	ended := make(chan error, 1)
	go func() {
		var first error
		for range readers {
			if err := <-done; err != nil && first == nil {
				first = err
			}
		}
		close(stop)
		ended <- first
	}()
	beside, _ := putAt(all, "p", sizes.rate, 600*sizes.rate, stop)
	if err := <-ended; err != nil {
		return figures, err
	}
	return append(figures,
		figure{"the slowest of ten at once", perSecond(time.Duration(slowest.Load()))},
		figure{"puts without readers", alone.String()},
		figure{"puts beside ten readers", beside.String()},
		figure{"p99 of puts, beside to without", ratio(beside, alone)}), nil
}

// many does something so many times, by all callers.
func many(all []*clientv3.Client, count int, do func(client *clientv3.Client, number int) error) error {
	var next atomic.Int64
	var running sync.WaitGroup
	failed := make(chan error, callers)
	for caller := range callers {
		client := all[caller%len(all)]
		running.Go(func() {
			for {
				number := int(next.Add(1)) - 1
				if number >= count {
					return
				}
				if err := do(client, number); err != nil {
					failed <- err
					return
				}
			}
		})
	}
	running.Wait()
	close(failed)
	return <-failed
}
