package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/maphash"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// A written value begins with who wrote it, and with the number of its event among those of its transaction.
const (
	writerAt, sequenceAt, numberAt, ofAt = 0, 4, 12, 13
	writtenBytes                         = 32
	// Of so many revisions that a reader sees, one is read as well.
	readOneOf = 5000
	// Violations that are described.
	describedMax = 10
	// Of a WatchResponse.
	eventsField = 11
)

// violations are counted by their kind. The first are described.
type violations struct {
	mutex     sync.Mutex
	counts    map[string]int
	described []string
}

func (v *violations) add(kind, text string) {
	v.mutex.Lock()
	defer v.mutex.Unlock()
	v.counts[kind]++
	if len(v.described) < describedMax {
		v.described = append(v.described, kind+": "+text)
	}
}

// observations are what all readers together have seen, by revision. Every revision after the first is a write to keys
// that are watched.
type observations struct {
	first  int64
	events []atomic.Uint64 // a hash of the events, set by the first reader
	seen   []atomic.Uint64 // the write that they show
	acked  []atomic.Uint64 // the write that was acknowledged with this revision
	last   atomic.Int64    // the newest that a reader has seen
	seed   maphash.Seed
	found  violations
	// The newest revision at which a compaction was asked for.
	compacted atomic.Int64
	delivered atomic.Int64
	cancels   atomic.Int64 // answers that history was compacted
}

func newObservations(first int64, revisions int) *observations {
	return &observations{
		first: first, events: make([]atomic.Uint64, revisions), seen: make([]atomic.Uint64, revisions),
		acked: make([]atomic.Uint64, revisions), seed: maphash.MakeSeed(),
		found: violations{counts: map[string]int{}},
	}
}

func (h *observations) at(revision int64) int { return int(revision - h.first) }

// write is the number of a writer's transaction, never 0.
func write(writer uint32, sequence uint64) uint64 { return uint64(writer)<<40 | sequence }

// manner is what a reader does besides reading.
type manner int

const (
	steady manner = iota
	withPrevious
	slow
	reconnecting
)

// reader watches all written keys, and checks what it is told.
type reader struct {
	number  int
	manner  manner
	history *observations
	next    atomic.Int64 // the first revision that it has not seen
	links   []*grpc.ClientConn
	random  *rand.Rand
}

// group is the events of a revision so far.
type group struct {
	revision int64
	hash     uint64
	write    uint64
	puts, of int
	deletes  int
}

var errCompacted = errors.New("history was compacted")

// run reads until the end, on another member after each error.
func (r *reader) run(ctx context.Context) {
	for at := r.number; ctx.Err() == nil; at++ {
		err := r.follow(ctx, r.links[at%len(r.links)])
		if !errors.Is(err, errCompacted) {
			time.Sleep(time.Duration(r.random.IntN(100)) * time.Millisecond)
		}
	}
}

// follow opens a stream at the next revision, and reads it until it ends.
func (r *reader) follow(ctx context.Context, link *grpc.ClientConn) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := openWatch(ctx, link, &etcdserverpb.WatchCreateRequest{
		Key: []byte("e/"), RangeEnd: []byte("e0"), StartRevision: r.next.Load(), PrevKv: r.manner == withPrevious,
	})
	if err != nil {
		return err
	}
	progress := &etcdserverpb.WatchRequest{
		RequestUnion: &etcdserverpb.WatchRequest_ProgressRequest{ProgressRequest: &etcdserverpb.WatchProgressRequest{}},
	}
	for responses := 1; ; responses++ {
		var message []byte
		if err := stream.RecvMsg(&message); err != nil {
			return err
		}
		if err := r.response(ctx, link, message); err != nil {
			return err
		}
		if responses%16 == 0 {
			if err := send(stream, progress); err != nil {
				return err
			}
		}
		switch {
		case r.manner == reconnecting && r.random.IntN(500) == 0:
			return nil
		case r.manner == slow && r.random.IntN(500) == 0:
			time.Sleep(time.Duration(r.random.IntN(2000)) * time.Millisecond)
		}
	}
}

// openWatch opens a stream with one watcher, whose responses are read as bytes.
func openWatch(ctx context.Context, link *grpc.ClientConn, create *etcdserverpb.WatchCreateRequest) (grpc.ClientStream, error) {
	description := &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}
	stream, err := link.NewStream(ctx, description, "/etcdserverpb.Watch/Watch")
	if err != nil {
		return nil, err
	}
	request := &etcdserverpb.WatchRequest{RequestUnion: &etcdserverpb.WatchRequest_CreateRequest{CreateRequest: create}}
	return stream, send(stream, request)
}

func send(stream grpc.ClientStream, request *etcdserverpb.WatchRequest) error {
	bytes, err := proto.Marshal(request)
	if err != nil {
		return err
	}
	return stream.SendMsg(bytes)
}

// response checks one response.
func (r *reader) response(ctx context.Context, link *grpc.ClientConn, message []byte) error {
	answer, err := parse(message)
	if err != nil {
		return err
	}
	next := r.next.Load()
	switch {
	case answer.canceled && answer.compactRevision > 0:
		if answer.compactRevision <= next || answer.compactRevision > r.history.compacted.Load() {
			r.violation("lost", "revision %d is compacted up to %d", next, answer.compactRevision)
		}
		r.history.cancels.Add(1)
		r.next.Store(answer.compactRevision)
		return errCompacted
	case answer.canceled:
		return errors.New(answer.reason)
	case answer.created:
		return nil
	case len(answer.events) == 0:
		if answer.revision >= next {
			r.violation("early bookmark", "progress %d before the events of %d", answer.revision, next)
		}
		return nil
	}
	var current group
	for _, event := range answer.events {
		if event.revision != current.revision {
			r.finish(ctx, link, &current)
			r.begin(event.revision)
			current = group{revision: event.revision}
		}
		r.event(&current, event)
	}
	r.finish(ctx, link, &current)
	if answer.revision < current.revision {
		r.violation("early event", "revision %d in a response of %d", current.revision, answer.revision)
	}
	r.history.delivered.Add(int64(len(answer.events)))
	return nil
}

// begin checks that a revision is the next one.
func (r *reader) begin(revision int64) {
	next := r.next.Load()
	switch {
	case revision < next:
		r.violation("duplicated or out of order", "revision %d after %d", revision, next-1)
	case revision > next:
		r.violation("lost", "revision %d after %d", revision, next-1)
	}
}

func (r *reader) event(group *group, event event) {
	group.hash = (group.hash ^ maphash.Bytes(r.history.seed, event.pair)) * 0x100000001b3
	if event.isDelete {
		group.deletes++
	} else if len(event.value) != writtenBytes {
		r.violation("other value", "%d bytes at revision %d", len(event.value), event.revision)
	} else {
		write := write(binary.BigEndian.Uint32(event.value[writerAt:]), binary.BigEndian.Uint64(event.value[sequenceAt:]))
		if group.puts > 0 && write != group.write || int(event.value[numberAt]) != group.puts || group.deletes > 0 {
			r.violation("out of order", "event %d of revision %d", event.value[numberAt], event.revision)
		}
		group.write, group.of = write, int(event.value[ofAt])
		group.puts++
	}
	if r.manner == withPrevious && event.previousVersion != 0 && event.previousVersion+1 != event.version && !event.isDelete {
		r.violation("wrong previous pair", "version %d before %d at %d", event.previousVersion, event.version, event.revision)
	}
	if event.previousRevision >= event.revision {
		r.violation("wrong previous pair", "revision %d at %d", event.previousRevision, event.revision)
	}
}

// finish checks that all events of a revision were there, and are those that other readers have seen.
func (r *reader) finish(ctx context.Context, link *grpc.ClientConn, group *group) {
	at := r.history.at(group.revision)
	if group.revision == 0 {
		return
	}
	if at < 0 || at >= len(r.history.seen) {
		r.violation("other revision", "%d", group.revision)
		return
	}
	if group.puts != group.of || group.deletes > 1 {
		r.violation("split revision", "%d of %d events of %d", group.puts, group.of, group.revision)
	}
	if !r.history.events[at].CompareAndSwap(0, group.hash) && r.history.events[at].Load() != group.hash {
		r.violation("other events", "at revision %d", group.revision)
	}
	r.history.seen[at].CompareAndSwap(0, group.write)
	r.next.Store(max(r.next.Load(), group.revision+1))
	for last := r.history.last.Load(); last < group.revision; last = r.history.last.Load() {
		r.history.last.CompareAndSwap(last, group.revision)
	}
	if r.random.IntN(readOneOf) == 0 {
		r.read(ctx, link, group.revision)
	}
}

// read checks that the revision of an event can be read from the member that sent it.
func (r *reader) read(ctx context.Context, link *grpc.ClientConn, revision int64) {
	request := &etcdserverpb.RangeRequest{Key: []byte("e/"), Revision: revision, Serializable: true}
	bytes, err := proto.Marshal(request)
	if err != nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	var answer []byte
	err = link.Invoke(ctx, "/etcdserverpb.KV/Range", bytes, &answer)
	if err != nil && strings.Contains(err.Error(), "future revision") {
		r.violation("early event", "revision %d cannot be read", revision)
	}
}

func (r *reader) violation(kind, format string, arguments ...any) {
	r.history.found.add(kind, fmt.Sprintf("reader %d: ", r.number)+fmt.Sprintf(format, arguments...))
}

// answer is a response of a watch. Its slices are those of the message.
type answer struct {
	revision, compactRevision int64
	created, canceled         bool
	reason                    string
	events                    []event
}

type event struct {
	isDelete                          bool
	pair, value                       []byte
	revision, version                 int64
	previousRevision, previousVersion int64
}

// parse reads a WatchResponse without allocating a message for each event: there are a hundred million.
func parse(message []byte) (answer, error) {
	var answer answer
	err := fields(message, func(number protowire.Number, value uint64, bytes []byte) error {
		switch number {
		case 1:
			return fields(bytes, func(number protowire.Number, value uint64, _ []byte) error {
				if number == 3 {
					answer.revision = int64(value)
				}
				return nil
			})
		case 3:
			answer.created = value != 0
		case 4:
			answer.canceled = value != 0
		case 5:
			answer.compactRevision = int64(value)
		case 6:
			answer.reason = string(bytes)
		case eventsField:
			event, err := parseEvent(bytes)
			answer.events = append(answer.events, event)
			return err
		}
		return nil
	})
	return answer, err
}

func parseEvent(message []byte) (event, error) {
	var event event
	err := fields(message, func(number protowire.Number, value uint64, bytes []byte) error {
		switch number {
		case 1:
			event.isDelete = value != 0
		case 2:
			event.pair = bytes
			return fields(bytes, func(number protowire.Number, value uint64, bytes []byte) error {
				switch number {
				case 3:
					event.revision = int64(value)
				case 4:
					event.version = int64(value)
				case 5:
					event.value = bytes
				}
				return nil
			})
		case 3:
			return fields(bytes, func(number protowire.Number, value uint64, _ []byte) error {
				switch number {
				case 3:
					event.previousRevision = int64(value)
				case 4:
					event.previousVersion = int64(value)
				}
				return nil
			})
		}
		return nil
	})
	return event, err
}

// fields calls for each field with its number, or its bytes.
func fields(message []byte, each func(protowire.Number, uint64, []byte) error) error {
	for len(message) > 0 {
		number, kind, length := protowire.ConsumeTag(message)
		if length < 0 {
			return protowire.ParseError(length)
		}
		message = message[length:]
		var value uint64
		var bytes []byte
		switch kind {
		case protowire.VarintType:
			value, length = protowire.ConsumeVarint(message)
		case protowire.BytesType:
			bytes, length = protowire.ConsumeBytes(message)
		default:
			length = protowire.ConsumeFieldValue(number, kind, message)
		}
		if length < 0 {
			return protowire.ParseError(length)
		}
		message = message[length:]
		if err := each(number, value, bytes); err != nil {
			return err
		}
	}
	return nil
}
