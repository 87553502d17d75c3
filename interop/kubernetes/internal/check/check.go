// Package check asks a running control plane whether it works: each check is a use of the apiserver that
// depends on its store.
//
// A check fails by an error. Beside that it notes what it observed: numbers, names, error texts, nothing
// that differs between two runs. What one server lets be observed must be what etcd lets be observed.
package check

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"kv-server/interop/kubernetes/internal/cluster"
)

const (
	// No check should come near it, however busy the machine is: the longest waits for two compactions.
	checkTimeout = 5 * time.Minute
	// Between two looks at something that cannot be watched.
	poll = 100 * time.Millisecond
)

// The resources that checks of lists and watches are made with. The apiserver answers reads of the first
// from the store, and those of the second from its cache. Secrets are encrypted.
var (
	uncached = schema.GroupVersionResource{Version: "v1", Resource: cluster.UncachedResource}
	cached   = schema.GroupVersionResource{Version: "v1", Resource: "secrets"}
)

// Env is the control plane and clients of it.
type Env struct {
	Members    *cluster.Members
	API        *cluster.APIServer
	Store      *clientv3.Client
	Client     kubernetes.Interface
	Dynamic    dynamic.Interface
	Extensions clientset.Interface
}

// Result is what came of one check.
type Result struct {
	Name     string
	Observed []string
	Remarks  []string
	Took     time.Duration
	Err      error
}

// check is one question. Those that disturb processes run alone, after all others.
type check struct {
	name string
	run  func(ctx context.Context, t *task) error
}

// task is one check that runs: its namespace and what it observes.
type task struct {
	*Env
	namespace string
	observed  []string
	remarks   []string
}

// observe notes what must be the same with every server.
func (t *task) observe(format string, args ...any) {
	t.observed = append(t.observed, fmt.Sprintf(format, args...))
}

// remark notes what may differ.
func (t *task) remark(format string, args ...any) {
	t.remarks = append(t.remarks, fmt.Sprintf(format, args...))
}

// Run runs all checks, reports each when it is done, and returns their results in a fixed order.
func Run(ctx context.Context, env *Env, report func(Result)) []Result {
	calm := calmChecks()
	results := make([]Result, len(calm))
	var group sync.WaitGroup
	var one sync.Mutex
	for i, calm := range calm {
		group.Go(func() {
			results[i] = runOne(ctx, env, calm)
			one.Lock()
			defer one.Unlock()
			report(results[i])
		})
	}
	group.Wait()
	for _, one := range faultChecks() {
		result := runOne(ctx, env, one)
		report(result)
		results = append(results, result)
	}
	return results
}

func calmChecks() []check {
	checks := []check{
		{"objects are created, read and deleted", createGetDelete},
		{"an update of an old version is a conflict", conflicts},
		{"objects are patched", patches},
		{"a collection is deleted", deleteCollection},
		{"a request that is too large is refused", tooLarge},
		{"a custom resource is defined and used", customResources},
		{"a leader is elected, and another after it", leaderElection},
		{"events end with their lease", eventsExpire},
		{"lists from the cache are consistent", consistentReads},
		{"lists of the store are streamed", rangeStream},
		{"secrets are encrypted in the store", encryption},
		{"discovery is aggregated", discovery},
	}
	for _, resource := range []struct {
		schema.GroupVersionResource
		where string
	}{{uncached, "from the store"}, {cached, "from the cache"}} {
		with := func(run func(context.Context, *task, schema.GroupVersionResource) error) func(context.Context, *task) error {
			return func(ctx context.Context, t *task) error { return run(ctx, t, resource.GroupVersionResource) }
		}
		checks = append(checks,
			check{"lists come in pages, " + resource.where, with(pages)},
			check{"a watch has every change, " + resource.where, with(watchChanges)},
			check{"a watch goes on at a version, " + resource.where, with(watchResume)},
			check{"a watch has bookmarks, " + resource.where, with(bookmarks)},
			check{"compacted versions are gone, " + resource.where, with(expired)},
		)
	}
	return checks
}

func faultChecks() []check {
	return []check{
		{"a follower is killed and comes back under load", followerRestarts},
		{"the leader is killed and comes back under load", leaderRestarts},
		{"the apiserver is killed and comes back", apiserverRestarts},
		{"all members hold the same", membersAgree},
	}
}

func runOne(ctx context.Context, env *Env, one check) Result {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	began := time.Now()
	t := &task{Env: env, namespace: "check-" + strings.Map(letters, one.name)}
	err := t.makeNamespace(ctx)
	if err == nil {
		err = one.run(ctx, t)
	}
	return Result{one.name, t.observed, t.remarks, time.Since(began), err}
}

// letters keeps what a name of a namespace may have.
func letters(r rune) rune {
	switch {
	case r == ' ':
		return '-'
	case r == ',':
		return -1
	default:
		return r
	}
}

// makeNamespace makes the namespace with the service account that a controller makes in a whole cluster:
// without it no pod is admitted.
func (t *task) makeNamespace(ctx context.Context) error {
	return MakeNamespace(ctx, t.Client, t.namespace)
}

// MakeNamespace makes a namespace in which pods are admitted.
func MakeNamespace(ctx context.Context, client kubernetes.Interface, name string) error {
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if _, err := client.CoreV1().Namespaces().Create(ctx, namespace, metav1.CreateOptions{}); err != nil {
		return err
	}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}
	_, err := client.CoreV1().ServiceAccounts(name).Create(ctx, account, metav1.CreateOptions{})
	return err
}

// refused turns the error of a request that must fail into what is observed of it.
func refused(err error) string {
	if err == nil {
		return "accepted"
	}
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return err.Error()
	}
	answer := status.Status()
	return fmt.Sprintf("%d %s: %s", answer.Code, answer.Reason, answer.Message)
}

// until asks again and again until the answer is yes.
func until(ctx context.Context, question func() (bool, error)) error {
	for {
		yes, err := question()
		if yes || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(poll):
		}
	}
}
