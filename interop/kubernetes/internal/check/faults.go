package check

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

// Writes that a load makes before a fault, during it, and after the repair.
const writesPerPhase = 60

// load creates one object after the other and repeats a request that failed. A watch counts what arrives.
type load struct {
	task         *task
	wanted       chan int // the number of writes to reach
	reached      chan error
	failures     int
	gapLongest   time.Duration
	arrived      chan error
	arrivedTotal int
}

// startLoad starts the load and its watch. The load rests until phase asks for writes.
func startLoad(ctx context.Context, t *task) (*load, error) {
	version, err := t.version(ctx, uncached)
	if err != nil {
		return nil, err
	}
	l := &load{task: t, wanted: make(chan int), reached: make(chan error), arrived: make(chan error, 1)}
	go l.write(ctx)
	go func() { l.arrived <- l.follow(ctx, version, 3*writesPerPhase) }()
	return l, nil
}

func (l *load) write(ctx context.Context) {
	written := 0
	for target := range l.wanted {
		var err error
		last := time.Now()
		for ; written < target && err == nil; written++ {
			err = l.create(ctx, fmt.Sprintf("load-%05d", written))
			l.gapLongest = max(l.gapLongest, time.Since(last))
			last = time.Now()
		}
		l.reached <- err
	}
}

// create repeats the request until it is acknowledged. A write whose answer was lost is there at the
// repetition.
func (l *load) create(ctx context.Context, name string) error {
	hasFailed := false
	return until(ctx, func() (bool, error) {
		err := l.task.create(ctx, uncached, name)
		if err == nil || hasFailed && apierrors.IsAlreadyExists(err) {
			return true, nil
		}
		if ctx.Err() != nil {
			return false, errors.Join(ctx.Err(), err)
		}
		hasFailed = true
		l.failures++
		return false, nil
	})
}

// phase lets the load write until it has made so many writes in all.
func (l *load) phase(total int) error {
	l.wanted <- total
	return <-l.reached
}

// follow watches until so many objects were added, each once and in the order of writing. A watch that ends
// is begun again at the last version.
func (l *load) follow(ctx context.Context, version string, count int) error {
	for l.arrivedTotal < count {
		watcher, err := l.task.resource(uncached).Watch(ctx, metav1.ListOptions{ResourceVersion: version})
		if err != nil {
			if ctx.Err() != nil {
				return err
			}
			continue
		}
		for l.arrivedTotal < count {
			event, err := next(ctx, watcher)
			if ctx.Err() != nil {
				watcher.Stop()
				return err
			}
			if err != nil {
				break
			}
			said, versions, err := named(event)
			if err != nil {
				return err
			}
			if want := fmt.Sprintf("load-%05d", l.arrivedTotal); said != want || event.Type != watch.Added {
				return fmt.Errorf("the watch brought %s %s, want ADDED %s", event.Type, said, want)
			}
			version = versions
			l.arrivedTotal++
		}
		watcher.Stop()
	}
	return nil
}

// finish ends the load and compares what is there with what was acknowledged.
func (l *load) finish(ctx context.Context) error {
	close(l.wanted)
	if err := <-l.arrived; err != nil {
		return fmt.Errorf("watch: %w", err)
	}
	list, err := l.task.resource(uncached).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	l.task.observe("acknowledged %d, listed %d, watched %d", 3*writesPerPhase, len(list.Items), l.arrivedTotal)
	l.task.remark("longest write %.2f s, %d requests repeated", l.gapLongest.Seconds(), l.failures)
	if len(list.Items) != 3*writesPerPhase {
		return fmt.Errorf("%d writes were acknowledged, %d objects are there", 3*writesPerPhase, len(list.Items))
	}
	return nil
}

func followerRestarts(ctx context.Context, t *task) error {
	victim, err := t.Members.Follower(ctx, t.Store)
	if err != nil {
		return err
	}
	return t.memberRestarts(ctx, victim)
}

func leaderRestarts(ctx context.Context, t *task) error {
	victim, err := t.Members.Leader(ctx, t.Store)
	if err != nil {
		return err
	}
	return t.memberRestarts(ctx, victim)
}

func (t *task) memberRestarts(ctx context.Context, victim int) error {
	load, err := startLoad(ctx, t)
	if err != nil {
		return err
	}
	if err := load.phase(writesPerPhase); err != nil {
		return err
	}
	// The member is killed while the writes of the second phase are under way.
	killed := make(chan struct{})
	go func() {
		t.Members.KillMember(victim)
		close(killed)
	}()
	err = load.phase(2 * writesPerPhase)
	<-killed
	if err != nil {
		return err
	}
	began := time.Now()
	if err := t.Members.StartMember(ctx, victim); err != nil {
		return err
	}
	t.remark("ready again after %.2f s", time.Since(began).Seconds())
	if err := load.phase(3 * writesPerPhase); err != nil {
		return err
	}
	return load.finish(ctx)
}

// apiserverRestarts kills the apiserver and compares lists, and a watch over the time in which it was away.
func apiserverRestarts(ctx context.Context, t *task) error {
	if err := t.create(ctx, uncached, numbered("k", 20)...); err != nil {
		return err
	}
	if err := t.create(ctx, cached, numbered("k", 20)...); err != nil {
		return err
	}
	before, err := t.resource(uncached).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	secrets, err := t.resource(cached).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	if err := t.change(ctx, uncached); err != nil {
		return err
	}
	t.API.Kill()
	began := time.Now()
	if err := t.API.Start(ctx); err != nil {
		return err
	}
	t.remark("ready again after %.2f s", time.Since(began).Seconds())
	after, err := t.resource(cached).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	same := len(after.Items) == len(secrets.Items)
	for i := range after.Items {
		same = same && after.Items[i].GetUID() == secrets.Items[i].GetUID() &&
			after.Items[i].GetResourceVersion() == secrets.Items[i].GetResourceVersion()
	}
	t.observe("%d secrets, the same as before: %t", len(after.Items), same)
	if !same {
		return errors.New("the lists before and after differ")
	}
	watcher, err := t.resource(uncached).Watch(ctx, metav1.ListOptions{ResourceVersion: before.GetResourceVersion()})
	if err != nil {
		return err
	}
	defer watcher.Stop()
	said, _, err := take(ctx, watcher, changes)
	t.observe("watch: %v", said)
	return err
}

// membersAgree compares the hashes of all members at one revision.
func membersAgree(ctx context.Context, t *task) error {
	read, err := t.Store.Get(ctx, "compact_rev_key")
	if err != nil {
		return err
	}
	endpoints := t.Members.Endpoints()
	hashes := make([]*clientv3.HashKVResponse, len(endpoints))
	errs := make([]error, len(endpoints))
	var group sync.WaitGroup
	for i, endpoint := range endpoints {
		group.Go(func() {
			// A member may hear of the revision a moment later, and of a compaction at another one.
			errs[i] = until(ctx, func() (bool, error) {
				hashes[i], errs[i] = t.Store.HashKV(ctx, endpoint, read.Header.Revision)
				return errs[i] == nil, ctx.Err()
			})
		})
	}
	group.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	for _, hash := range hashes {
		if hash.Hash != hashes[0].Hash && hash.CompactRevision == hashes[0].CompactRevision {
			return fmt.Errorf("hashes at revision %d: %v", read.Header.Revision, hashes)
		}
	}
	alarms, err := t.Store.AlarmList(ctx)
	if err != nil {
		return err
	}
	t.observe("hashes equal, %d alarms", len(alarms.Alarms))
	return nil
}
