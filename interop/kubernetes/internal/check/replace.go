package check

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"kv-server/interop/kubernetes/internal/cluster"
)

// Replace puts members of kv-server in the place of those of etcd while the apiserver runs, clients write, and
// watches are open.
func Replace(ctx context.Context, env *Env, dir, binary string, gates *cluster.Gates, report func(Result)) []Result {
	result := runOne(ctx, env, check{"etcd is replaced under a live apiserver", func(ctx context.Context, t *task) error {
		return t.replace(ctx, binary, filepath.Join(dir, "imported"), gates)
	}})
	report(result)
	return []Result{result}
}

func (t *task) replace(ctx context.Context, binary, dir string, gates *cluster.Gates) error {
	filled := &task{Env: t.Env, namespace: t.namespace + "-filled"}
	if err := filled.makeNamespace(ctx); err != nil {
		return err
	}
	if err := filled.fill(ctx); err != nil {
		return err
	}
	version, err := t.version(ctx, cached)
	if err != nil {
		return err
	}
	watcher, err := t.resource(cached).Watch(ctx, metav1.ListOptions{ResourceVersion: version})
	if err != nil {
		return err
	}
	defer watcher.Stop()
	load, err := startLoad(ctx, t)
	if err != nil {
		return err
	}
	if err := load.phase(writesPerPhase); err != nil {
		return err
	}
	began := time.Now()
	imported, err := t.Members.StartImport(ctx, binary, dir)
	if err != nil {
		return err
	}
	defer imported.End()
	t.remark("%.2f s to copy what was there", time.Since(began).Seconds())
	// The switch comes while the writes of the second phase are under way.
	switched := make(chan error, 1)
	go func() { switched <- t.switchTo(ctx, imported, gates) }()
	err = load.phase(2 * writesPerPhase)
	if switchErr := <-switched; switchErr != nil {
		return switchErr
	}
	if err != nil {
		return err
	}
	if err := t.change(ctx, cached); err != nil {
		return err
	}
	if err := t.watchWentOn(ctx, watcher, version); err != nil {
		return err
	}
	if err := load.phase(3 * writesPerPhase); err != nil {
		return err
	}
	if err := load.finish(ctx); err != nil {
		return err
	}
	if t.API.HasEnded() {
		return fmt.Errorf("the apiserver ended:\n%s", t.API.LogTail())
	}
	return membersAgree(ctx, t)
}

// switchTo is what an operator does: the writers are kept away, the import ends, etcd ends, kv-server starts, and
// the writers are admitted again.
func (t *task) switchTo(ctx context.Context, imported *cluster.Import, gates *cluster.Gates) error {
	began := time.Now()
	gates.Close()
	said, err := imported.Finish(ctx)
	if err != nil {
		return err
	}
	finished := time.Since(began)
	before, err := t.stored(ctx)
	if err != nil {
		return err
	}
	compared := time.Now()
	if err := t.Members.SwitchTo(ctx, imported); err != nil {
		return err
	}
	started := time.Since(compared)
	gates.Open()
	t.remark("%s", said)
	t.remark("%.2f s from the closed gate to the end of the import, %.2f s to three members that serve",
		finished.Seconds(), started.Seconds())
	after, err := t.storedAt(ctx, before)
	if err != nil {
		return err
	}
	t.remark("%d keys of objects with the same value, revisions, version and lease", after)
	return nil
}

// storedAt compares lines of keys from before the switch with the store, where objects are changed again.
func (t *task) storedAt(ctx context.Context, before []string) (int, error) {
	after, err := t.stored(ctx)
	if err != nil {
		return 0, err
	}
	if len(before) == 0 {
		return 0, fmt.Errorf("no keys before the switch")
	}
	for _, line := range before {
		if !slices.Contains(after, line) {
			return 0, fmt.Errorf("missing after the switch: %.300s", line)
		}
	}
	return len(before), nil
}

// watchWentOn takes the changes of the cached resource from the watch that was open before the switch. If the
// apiserver has ended it, another one from the version before has to bring all of them.
func (t *task) watchWentOn(ctx context.Context, watcher watch.Interface, version string) error {
	said, _, err := take(ctx, watcher, changes)
	if err != nil && ctx.Err() == nil {
		t.remark("the watch from before the switch ended (%v), another one was begun", err)
		again, watchErr := t.resource(cached).Watch(ctx, metav1.ListOptions{ResourceVersion: version})
		if watchErr != nil {
			return watchErr
		}
		defer again.Stop()
		said, _, err = take(ctx, again, changes)
	}
	t.observe("a watch from before: %s", strings.Join(said, ", "))
	return err
}
