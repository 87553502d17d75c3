package check

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	extensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kv-server/interop/kubernetes/internal/cluster"
)

// The keys that are compared: those of objects that the apiserver does not write by itself.
var movedPrefixes = []string{
	"/registry/configmaps/", "/registry/secrets/", "/registry/" + customGroup + "/", "/registry/namespaces/",
	"/registry/apiextensions.k8s.io/",
}

// Move takes the data of a live control plane from its members to those of each program, one after the
// other, and asks after each move whether everything is there, and whether a watch goes on where it was.
func Move(ctx context.Context, env *Env, dir string, programs []cluster.Program, report func(Result)) []Result {
	var results []Result
	for i, program := range programs {
		name := fmt.Sprintf("the data moves to %s", filepath.Base(program.Server))
		result := runOne(ctx, env, check{name, func(ctx context.Context, t *task) error {
			if i == 0 {
				if err := t.fill(ctx); err != nil {
					return err
				}
			}
			return t.move(ctx, program, filepath.Join(dir, fmt.Sprintf("move-%d", i)))
		}})
		report(result)
		results = append(results, result)
		if result.Err != nil {
			break
		}
	}
	return results
}

// fill makes objects of several kinds, with history.
func (t *task) fill(ctx context.Context) error {
	definition, err := t.Extensions.ApiextensionsV1().CustomResourceDefinitions().Create(
		ctx, widgetDefinition(), metav1.CreateOptions{})
	if err != nil {
		return err
	}
	if err := until(ctx, func() (bool, error) {
		read, err := t.Extensions.ApiextensionsV1().CustomResourceDefinitions().Get(
			ctx, definition.Name, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		return slices.ContainsFunc(read.Status.Conditions, func(c extensions.CustomResourceDefinitionCondition) bool {
			return c.Type == extensions.Established && c.Status == extensions.ConditionTrue
		}), nil
	}); err != nil {
		return err
	}
	for i, name := range numbered("w", 50) {
		if _, err := t.resource(widgets).Create(ctx, widget(name, int64(i+1)), metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	for _, of := range both {
		if err := t.create(ctx, of, numbered("m", 100)...); err != nil {
			return err
		}
	}
	return nil
}

// move stops the apiserver, moves the data, and starts it again.
func (t *task) move(ctx context.Context, program cluster.Program, dir string) error {
	version, err := t.version(ctx, uncached)
	if err != nil {
		return err
	}
	for _, of := range both {
		if err := t.change(ctx, of); err != nil {
			return err
		}
	}
	began := time.Now()
	t.API.Stop()
	before, err := t.stored(ctx)
	if err != nil {
		return err
	}
	snapshot := dir + ".db"
	if err := t.Members.Save(ctx, snapshot); err != nil {
		return err
	}
	if err := t.Members.MoveTo(ctx, program, snapshot, dir); err != nil {
		return err
	}
	after, err := t.stored(ctx)
	if err != nil {
		return err
	}
	if len(before) == 0 || !slices.Equal(before, after) {
		return fmt.Errorf("%d keys before, %d after, and they differ", len(before), len(after))
	}
	if err := t.API.Start(ctx); err != nil {
		return err
	}
	if err := t.create(ctx, uncached, "after"); err != nil {
		return err
	}
	t.remark("%d keys the same; %.1f s without the apiserver", len(after), time.Since(began).Seconds())
	watcher, err := t.resource(uncached).Watch(ctx, metav1.ListOptions{ResourceVersion: version})
	if err != nil {
		return err
	}
	defer watcher.Stop()
	said, _, err := take(ctx, watcher, changes+1)
	if err != nil {
		return err
	}
	t.observe("a watch from before: %s", strings.Join(said, ", "))
	return nil
}

// stored is a line for each key of an object, with everything that the store knows of it.
func (t *task) stored(ctx context.Context) ([]string, error) {
	var lines []string
	for _, prefix := range movedPrefixes {
		read, err := t.Store.Get(ctx, prefix, clientv3.WithPrefix())
		if err != nil {
			return nil, err
		}
		for _, kv := range read.Kvs {
			lines = append(lines, kv.String())
		}
	}
	return lines, nil
}
