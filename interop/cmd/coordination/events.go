package main

import (
	"bufio"
	"context"
	crand "crypto/rand"
	"encoding/binary"
	"fmt"
	"log"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	"kv-server/interop/internal/measure"
	"kv-server/interop/internal/process"
	"kv-server/interop/internal/session"
)

const (
	writers      = 16
	putsMax      = 6
	keysOfWriter = 50
	compactEvery = 100 * time.Millisecond
	// Revisions that compactions leave.
	kept = 3000
	// A write waits a little while readers are so far behind.
	behindMax = 1000
	// Longer than a member is paused, killed or receives a snapshot.
	catchUpWithin = 2 * time.Minute
	writeTimeout  = 5 * time.Second
	// A log is trimmed when it is so long, and some more: a paused member needs a snapshot after it.
	filled       = 160 << 20
	filledWithin = time.Minute
	filledBytes  = 512 << 10
	fillers      = 16
	betweenKills = 3 * time.Second
	sayEvery     = 10 * time.Second
)

// faults count what was done to the members.
type faults struct {
	kills, pauses, filled, compactions, snapshots atomic.Int64
}

// eventCheck has readers check events while members are killed and paused and history is compacted.
func eventCheck(members []*process.Member, sizes sizes) ([]figure, error) {
	all, err := clients(members, connections)
	defer closeAll(all)
	if err != nil {
		return nil, err
	}
	put, err := all[0].Put(context.Background(), "before", "")
	if err != nil {
		return nil, err
	}
	first := put.Header.Revision + 1
	history := newObservations(first, sizes.checked/sizes.readers+(4<<20))
	history.last.Store(first - 1)
	reading, stopReading := context.WithCancel(context.Background())
	defer stopReading()
	readers, err := openReaders(reading, members, history, sizes.readers)
	if err != nil {
		return nil, err
	}
	var done faults
	working, stopWork := context.WithCancel(context.Background())
	defer stopWork()
	var writing, harming sync.WaitGroup
	for number := range writers {
		client := all[number%len(all)]
		writing.Go(func() { writeUntil(working, client, uint32(number+1), history, readers) })
	}
	writing.Go(func() { compactUntil(working, all[0], history, &done) })
	harmed := make(chan error, 1)
	harming.Go(func() { harmed <- harmUntil(working, members, all[1], &done) })
	reached := waitFor(sizes.checked, history, harmed)
	stopWork()
	writing.Wait()
	harming.Wait()
	if reached != nil {
		return report(members, history, &done), reached
	}
	end, err := lastWrite(all[0], history)
	if err != nil {
		return nil, err
	}
	for _, reader := range readers {
		deadline := time.Now().Add(catchUpWithin)
		for reader.next.Load() <= end && time.Now().Before(deadline) {
			time.Sleep(10 * time.Millisecond)
		}
		if next := reader.next.Load(); next <= end {
			reader.violation("lost", "revision %d did not come, the last is %d", next, end)
		}
	}
	stopReading()
	compare(history, end)
	figures := report(members, history, &done)
	if len(history.found.described) > 0 {
		return figures, fmt.Errorf("violations:\n%s", strings.Join(history.found.described, "\n"))
	}
	return figures, nil
}

func waitFor(events int, history *observations, harmed <-chan error) error {
	before, since, said := int64(0), time.Now(), time.Now()
	for {
		if time.Since(said) > sayEvery {
			said = time.Now()
			log.Printf("%d events, %d revisions", history.delivered.Load(), history.last.Load()-history.first+1)
		}
		select {
		case err := <-harmed:
			return err
		case <-time.After(100 * time.Millisecond):
		}
		now := history.delivered.Load()
		if now >= int64(events) {
			return nil
		}
		if now > before {
			before, since = now, time.Now()
		}
		if time.Since(since) > catchUpWithin {
			return fmt.Errorf("no event for %v", catchUpWithin)
		}
	}
}

// openReaders starts readers that are spread over members and some connections to each.
func openReaders(ctx context.Context, members []*process.Member, history *observations, count int) ([]*reader, error) {
	reconnect := grpc.ConnectParams{Backoff: backoff.Config{
		BaseDelay: 100 * time.Millisecond, Multiplier: 1.5, Jitter: 0.2, MaxDelay: time.Second,
	}, MinConnectTimeout: time.Second}
	groups := make([][]*grpc.ClientConn, connections)
	for group := range groups {
		for _, member := range members {
			link, err := session.Dial(member, grpc.WithConnectParams(reconnect))
			if err != nil {
				return nil, err
			}
			context.AfterFunc(ctx, func() { _ = link.Close() })
			groups[group] = append(groups[group], link)
		}
	}
	manners := []manner{steady, steady, steady, steady, steady, withPrevious, slow, reconnecting}
	readers := make([]*reader, count)
	for number := range readers {
		readers[number] = &reader{
			number: number, manner: manners[number%len(manners)], history: history,
			links: groups[number%connections], random: rand.New(rand.NewPCG(uint64(number), 15)),
		}
		readers[number].next.Store(history.first)
		go readers[number].run(ctx)
	}
	return readers, nil
}

// writeUntil writes transactions of one to six puts, some with a delete after them, one after the other.
func writeUntil(ctx context.Context, client *clientv3.Client, writer uint32, history *observations, readers []*reader) {
	random := rand.New(rand.NewPCG(uint64(writer), 16))
	for sequence := uint64(1); ctx.Err() == nil; sequence++ {
		waitForReaders(history, readers[:min(len(readers), 32)])
		count := 1 + random.IntN(putsMax)
		var operations []clientv3.Op
		for number, key := range random.Perm(keysOfWriter)[:count] {
			value := make([]byte, writtenBytes)
			binary.BigEndian.PutUint32(value[writerAt:], writer)
			binary.BigEndian.PutUint64(value[sequenceAt:], sequence)
			value[numberAt], value[ofAt] = byte(number), byte(count)
			operations = append(operations, clientv3.OpPut(fmt.Sprintf("e/%03d/%02d", writer, key), string(value)))
		}
		if random.IntN(8) == 0 {
			// A key that this transaction does not put.
			absent := random.Perm(keysOfWriter)[0]
			key := fmt.Sprintf("e/%03d/%02d", writer, absent)
			if !puts(operations, key) {
				operations = append(operations, clientv3.OpDelete(key))
			}
		}
		limited, cancel := context.WithTimeout(context.Background(), writeTimeout)
		answer, err := client.Txn(limited).Then(operations...).Commit()
		cancel()
		if err != nil {
			time.Sleep(20 * time.Millisecond)
			continue
		}
		if at := history.at(answer.Header.Revision); at < len(history.acked) {
			history.acked[at].Store(write(writer, sequence))
		}
	}
}

func puts(operations []clientv3.Op, key string) bool {
	for _, operation := range operations {
		if string(operation.KeyBytes()) == key {
			return true
		}
	}
	return false
}

// waitForReaders waits a little while steady readers are far behind, so that most of them read what is written.
func waitForReaders(history *observations, readers []*reader) {
	for range 20 {
		least := history.last.Load()
		for _, reader := range readers {
			if reader.manner == steady {
				least = min(least, reader.next.Load())
			}
		}
		if history.last.Load()-least < behindMax {
			return
		}
		time.Sleep(2 * time.Millisecond)
	}
}

func compactUntil(ctx context.Context, client *clientv3.Client, history *observations, done *faults) {
	for ctx.Err() == nil {
		time.Sleep(compactEvery)
		revision := history.last.Load() - kept
		if revision <= history.compacted.Load() || revision < history.first {
			continue
		}
		history.compacted.Store(revision)
		limited, cancel := context.WithTimeout(context.Background(), writeTimeout)
		if _, err := client.Compact(limited, revision); err == nil {
			done.compactions.Add(1)
		}
		cancel()
	}
}

// harmUntil kills the leader, pauses a follower until it needs a snapshot, and kills any member, in turn. At the end all
// members run.
func harmUntil(ctx context.Context, members []*process.Member, client *clientv3.Client, done *faults) error {
	for cycle := 0; ctx.Err() == nil; cycle++ {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(betweenKills):
		}
		leads, others, err := leaderOf(members)
		if err != nil {
			continue // on a busy machine an election takes long
		}
		victim := leads
		switch cycle % 3 {
		case 1:
			others[cycle%len(others)].Pause()
			bytes := fill(client)
			others[cycle%len(others)].Resume()
			done.filled.Add(bytes)
			done.pauses.Add(1)
			continue
		case 2:
			victim = members[cycle%len(members)]
		}
		done.snapshots.Add(snapshotsReceived(victim)) // a new process counts from 0
		victim.Kill()
		done.kills.Add(1)
		time.Sleep(time.Second)
		if err := victim.Start(); err != nil {
			return err
		}
	}
	return nil
}

// fill makes the log longer than what it keeps, by transactions whose comparison is false: they have no revision. It
// returns the bytes that were written.
func fill(client *clientv3.Client) int64 {
	var written atomic.Int64
	var writing sync.WaitGroup
	deadline := time.Now().Add(filledWithin)
	for range fillers {
		writing.Go(func() {
			value := make([]byte, filledBytes)
			for written.Load() < filled && time.Now().Before(deadline) {
				_, _ = crand.Read(value) // it never fails
				never := clientv3.Compare(clientv3.Version("e/none"), "=", 1)
				ctx, cancel := context.WithTimeout(context.Background(), writeTimeout)
				_, err := client.Txn(ctx).If(never).Then(clientv3.OpPut("none", string(value))).Commit()
				cancel()
				if err == nil {
					written.Add(filledBytes)
				} else {
					time.Sleep(20 * time.Millisecond)
				}
			}
		})
	}
	writing.Wait()
	return written.Load()
}

// lastWrite writes once more, when all members run again, and returns its revision.
func lastWrite(client *clientv3.Client, history *observations) (int64, error) {
	value := make([]byte, writtenBytes)
	binary.BigEndian.PutUint32(value[writerAt:], writers+1)
	value[ofAt] = 1
	deadline := time.Now().Add(catchUpWithin)
	for sequence := uint64(1); ; sequence++ {
		binary.BigEndian.PutUint64(value[sequenceAt:], sequence)
		ctx, cancel := context.WithTimeout(context.Background(), writeTimeout)
		answer, err := client.Put(ctx, "e/end", string(value))
		cancel()
		if err == nil {
			history.acked[history.at(answer.Header.Revision)].Store(write(writers+1, sequence))
			return answer.Header.Revision, nil
		}
		if time.Now().After(deadline) {
			return 0, err
		}
	}
}

// compare looks whether each revision was seen, and each acknowledged write at its revision.
func compare(history *observations, end int64) {
	for revision := history.first; revision <= end; revision++ {
		at := history.at(revision)
		seen, acked := history.seen[at].Load(), history.acked[at].Load()
		if seen == 0 {
			history.found.add("lost", fmt.Sprintf("no reader saw revision %d", revision))
		} else if acked != 0 && acked != seen {
			history.found.add("lost", fmt.Sprintf("revision %d is write %x, readers saw %x", revision, acked, seen))
		}
	}
}

func report(members []*process.Member, history *observations, done *faults) []figure {
	for _, member := range members {
		done.snapshots.Add(snapshotsReceived(member))
	}
	figures := []figure{
		{"events checked", fmt.Sprint(history.delivered.Load())},
		{"revisions", fmt.Sprint(history.last.Load() - history.first + 1)},
		{"kills of members", fmt.Sprint(done.kills.Load())},
		{"pauses of a follower", fmt.Sprint(done.pauses.Load())},
		{"written to the log meanwhile", measure.Mebibytes(done.filled.Load())},
		{"snapshots received", fmt.Sprint(done.snapshots.Load())},
		{"compactions", fmt.Sprint(done.compactions.Load())},
		{"readers told that history was compacted", fmt.Sprint(history.cancels.Load())},
	}
	for _, kind := range []string{
		"lost", "duplicated or out of order", "out of order", "split revision", "early bookmark", "early event",
		"other events", "other value", "other revision", "wrong previous pair",
	} {
		history.found.mutex.Lock()
		figures = append(figures, figure{"violations: " + kind, fmt.Sprint(history.found.counts[kind])})
		history.found.mutex.Unlock()
	}
	return figures
}

// snapshotsReceived is the counter of a member, from all others.
func snapshotsReceived(member *process.Member) int64 {
	answer, err := http.Get(member.ClientURL + "/metrics")
	if err != nil {
		return 0
	}
	defer answer.Body.Close()
	total := 0.0
	for lines := bufio.NewScanner(answer.Body); lines.Scan(); {
		if line := lines.Text(); strings.HasPrefix(line, "etcd_network_snapshot_receive_success") {
			value, _ := strconv.ParseFloat(line[strings.LastIndexByte(line, ' ')+1:], 64)
			total += value
		}
	}
	return int64(total)
}
