// Package load makes the requests of a cluster with many objects: pods with their status, leases of nodes
// that are renewed every ten seconds, events with a TTL, gets, and lists in pages. The requests follow from
// the number of objects; the order in which they are answered does not.
package load

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"kv-server/interop/kubernetes/internal/check"
)

const (
	namespace = "load"
	// Every kubelet renews the lease of its node so often.
	renewalInterval = 10 * time.Second
	// Requests under way at a time while objects are made and removed.
	workers = 16
	// Objects of a page, as the client package's own pager asks for.
	pageSize = 500
)

// Latencies are the times of all requests, by verb and resource.
type Latencies struct {
	lock  sync.Mutex
	times map[string][]time.Duration
	// Requests of the steady phase that failed.
	failed int
}

// timed makes a request and keeps its time, if it succeeded.
func (l *Latencies) timed(request string, call func() error) error {
	began := time.Now()
	if err := call(); err != nil {
		return fmt.Errorf("%s: %w", request, err)
	}
	took := time.Since(began)
	l.lock.Lock()
	defer l.lock.Unlock()
	l.times[request] = append(l.times[request], took)
	return nil
}

// Failed is the number of requests of the steady phase that failed.
func (l *Latencies) Failed() int { return l.failed }

func (l *Latencies) fail() {
	l.lock.Lock()
	defer l.lock.Unlock()
	l.failed++
}

// Requests are the names of all requests, sorted.
func (l *Latencies) Requests() []string {
	var names []string
	for name := range l.times {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// Quantile is the time within which the share q of the requests was answered.
func (l *Latencies) Quantile(request string, q float64) time.Duration {
	sorted := slices.Sorted(slices.Values(l.times[request]))
	return sorted[min(int(q*float64(len(sorted))), len(sorted)-1)]
}

// Count is the number of requests.
func (l *Latencies) Count(request string) int { return len(l.times[request]) }

// Plan is how much load there is.
type Plan struct {
	// Pods that are made and deleted, and nodes, each with a lease that is renewed every ten seconds.
	Pods, Nodes int
	// How long the nodes renew their leases, and how many pods a second report another status meanwhile.
	Steady time.Duration
	Churn  int
}

// Phase is one part of the load.
type Phase string

// The phases, in their order.
const (
	Making   Phase = "making"
	Steady   Phase = "steady"
	Deleting Phase = "deleting"
)

// Run makes pods, keeps the leases of their nodes for the time given, and deletes the pods. It reports the end
// of each phase.
func Run(ctx context.Context, client kubernetes.Interface, plan Plan, ended func(Phase) error) (*Latencies, error) {
	if err := check.MakeNamespace(ctx, client, namespace); err != nil {
		return nil, err
	}
	l := &Latencies{times: map[string][]time.Duration{}}
	phases := []struct {
		Phase
		run func() error
	}{
		{Making, func() error {
			if err := inParallel(plan.Nodes, func(i int) error { return l.createLease(ctx, client, i) }); err != nil {
				return err
			}
			return inParallel(plan.Pods, func(i int) error { return l.createPod(ctx, client, i, plan.Nodes) })
		}},
		{Steady, func() error {
			l.keep(ctx, client, plan)
			return ctx.Err()
		}},
		{Deleting, func() error {
			return inParallel(plan.Pods, func(i int) error { return l.deletePod(ctx, client, i) })
		}},
	}
	for _, phase := range phases {
		if err := phase.run(); err != nil {
			return nil, fmt.Errorf("%s: %w", phase.Phase, err)
		}
		if err := ended(phase.Phase); err != nil {
			return nil, err
		}
	}
	return l, nil
}

func (l *Latencies) deletePod(ctx context.Context, client kubernetes.Interface, i int) error {
	return l.timed("delete pod", func() error {
		now := int64(0) // no kubelet is there to end the pod
		return client.CoreV1().Pods(namespace).Delete(ctx, podName(i), metav1.DeleteOptions{GracePeriodSeconds: &now})
	})
}

func inParallel(count int, each func(i int) error) error {
	var next atomic.Int64
	var group sync.WaitGroup
	errs := make([]error, workers)
	for worker := range workers {
		group.Go(func() {
			for errs[worker] == nil {
				i := int(next.Add(1)) - 1
				if i >= count {
					return
				}
				errs[worker] = each(i)
			}
		})
	}
	group.Wait()
	return errors.Join(errs...)
}

func podName(i int) string  { return fmt.Sprintf("pod-%06d", i) }
func nodeName(i int) string { return fmt.Sprintf("node-%05d", i) }

// createPod does what scheduler, kubelet and controllers do for a new pod: it is made, bound, reported as
// running, and two events speak of it.
func (l *Latencies) createPod(ctx context.Context, client kubernetes.Interface, i, nodes int) error {
	pods, name := client.CoreV1().Pods(namespace), podName(i)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name:   name,
			Labels: map[string]string{"app": fmt.Sprintf("app-%d", i%100), "pod-template-hash": "7c5d9f8b6"},
		},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{
			Name: "main", Image: "registry.example.com/app:1.0",
			Env: []corev1.EnvVar{{Name: "INDEX", Value: fmt.Sprint(i)}},
		}}},
	}
	if err := l.timed("create pod", func() error {
		_, err := pods.Create(ctx, pod, metav1.CreateOptions{})
		return err
	}); err != nil {
		return err
	}
	if err := l.timed("bind pod", func() error {
		return pods.Bind(ctx, &corev1.Binding{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Target:     corev1.ObjectReference{Kind: "Node", Name: nodeName(i % nodes)},
		}, metav1.CreateOptions{})
	}); err != nil {
		return err
	}
	if err := l.report(ctx, client, i, 0); err != nil {
		return err
	}
	return errors.Join(l.createEvent(ctx, client, name, "Scheduled"), l.createEvent(ctx, client, name, "Started"))
}

// report writes the status of a pod as its kubelet does. Each time it is another one.
func (l *Latencies) report(ctx context.Context, client kubernetes.Interface, i, times int) error {
	running := fmt.Appendf(nil, `{"status":{"phase":"Running","podIP":"10.%d.%d.%d","message":"report %d"}}`,
		i>>16&255, i>>8&255, i&255, times)
	return l.timed("patch pod status", func() error {
		_, err := client.CoreV1().Pods(namespace).Patch(
			ctx, podName(i), types.StrategicMergePatchType, running, metav1.PatchOptions{}, "status")
		return err
	})
}

func (l *Latencies) createEvent(ctx context.Context, client kubernetes.Interface, pod, reason string) error {
	event := &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{GenerateName: pod + "."},
		InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: namespace, Name: pod},
		Reason:         reason, Message: "the message of an event has a line of text such as this one",
		Type: corev1.EventTypeNormal, Source: corev1.EventSource{Component: "load"},
	}
	return l.timed("create event", func() error {
		_, err := client.CoreV1().Events(namespace).Create(ctx, event, metav1.CreateOptions{})
		return err
	})
}

func (l *Latencies) createLease(ctx context.Context, client kubernetes.Interface, i int) error {
	holder, seconds := nodeName(i), int32(40)
	lease := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: holder},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: &holder, LeaseDurationSeconds: &seconds},
	}
	return l.timed("create lease", func() error {
		_, err := client.CoordinationV1().Leases(namespace).Create(ctx, lease, metav1.CreateOptions{})
		return err
	})
}

// keep renews every lease every ten seconds, spread evenly, while pods report their status and a controller
// reads: a get of one pod and a page of the list of pods, ten times a second each. A request that fails is
// counted and not repeated: the next one comes at its time.
func (l *Latencies) keep(ctx context.Context, client kubernetes.Interface, plan Plan) {
	ctx, cancel := context.WithTimeout(ctx, plan.Steady)
	defer cancel()
	var group sync.WaitGroup
	for i := range plan.Nodes {
		group.Go(func() {
			offset := renewalInterval * time.Duration(i) / time.Duration(plan.Nodes)
			l.every(ctx, offset, renewalInterval, l.renewal(ctx, client, i))
		})
	}
	group.Go(func() { l.read(ctx, client, plan.Pods) })
	if plan.Churn > 0 {
		group.Go(func() {
			reports := 0
			l.every(ctx, 0, time.Second/time.Duration(plan.Churn), func() error {
				reports++
				return l.report(ctx, client, reports*7919%plan.Pods, reports)
			})
		})
	}
	group.Wait()
}

// every makes a call at fixed times until the context ends. A call that the end interrupts does not count.
func (l *Latencies) every(ctx context.Context, offset, interval time.Duration, call func() error) {
	first := time.NewTimer(offset)
	defer first.Stop()
	select {
	case <-first.C:
	case <-ctx.Done():
		return
	}
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		if err := call(); err != nil && ctx.Err() == nil {
			l.fail()
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

// renewal renews a lease at each call. As a kubelet does, it reads the lease at first and after a failure, and
// otherwise updates what the last update answered.
func (l *Latencies) renewal(ctx context.Context, client kubernetes.Interface, i int) func() error {
	leases := client.CoordinationV1().Leases(namespace)
	var last *coordinationv1.Lease
	return func() (err error) {
		if last == nil {
			if last, err = leases.Get(ctx, nodeName(i), metav1.GetOptions{}); err != nil {
				return err
			}
		}
		now := metav1.NowMicro()
		last.Spec.RenewTime = &now
		err = l.timed("update lease", func() error {
			last, err = leases.Update(ctx, last, metav1.UpdateOptions{})
			return err
		})
		if err != nil {
			last = nil
		}
		return err
	}
}

func (l *Latencies) read(ctx context.Context, client kubernetes.Interface, objects int) {
	pods, next, page := client.CoreV1().Pods(namespace), 0, metav1.ListOptions{Limit: pageSize}
	l.every(ctx, 0, renewalInterval/100, func() error {
		next = (next + 7919) % objects // a prime: each pod has its turn
		err := l.timed("get pod", func() error {
			_, err := pods.Get(ctx, podName(next), metav1.GetOptions{})
			return err
		})
		return errors.Join(err, l.timed("list 500 pods", func() error {
			list, err := pods.List(ctx, page)
			page.Continue = "" // after a failure from the beginning: the version may be compacted
			if err == nil {
				page.Continue = list.Continue
			}
			return err
		}))
	})
}
