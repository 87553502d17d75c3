package check

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
)

// next is the next event of a watch.
func next(ctx context.Context, watcher watch.Interface) (watch.Event, error) {
	select {
	case event, isOpen := <-watcher.ResultChan():
		if !isOpen {
			return event, errors.New("the watch ended")
		}
		if event.Type == watch.Error {
			return event, apierrors.FromObject(event.Object)
		}
		return event, nil
	case <-ctx.Done():
		return watch.Event{}, fmt.Errorf("no event: %w", ctx.Err())
	}
}

// show is what an event says: its kind, the name of the object, and its value.
func show(event watch.Event) (string, error) {
	object, isObject := event.Object.(*unstructured.Unstructured)
	if !isObject {
		return "", fmt.Errorf("an event has a %T", event.Object)
	}
	value, _, err := unstructured.NestedString(object.Object, "data", "value")
	return fmt.Sprintf("%s %s %s", event.Type, object.GetName(), value), err
}

// take reads so many events and returns what they say. Their versions must rise.
func take(ctx context.Context, watcher watch.Interface, count int) ([]string, []string, error) {
	var said, versions []string
	for range count {
		event, err := next(ctx, watcher)
		if err != nil {
			return said, versions, fmt.Errorf("after %v: %w", said, err)
		}
		line, err := show(event)
		if err != nil {
			return said, versions, err
		}
		object, err := meta.Accessor(event.Object)
		if err != nil {
			return said, versions, err
		}
		version := object.GetResourceVersion()
		if len(versions) > 0 && !isBefore(versions[len(versions)-1], version) {
			return said, versions, fmt.Errorf("version %s follows %s", version, versions[len(versions)-1])
		}
		said, versions = append(said, line), append(versions, version)
	}
	return said, versions, nil
}

// isBefore compares two versions, which are numbers without leading zeros.
func isBefore(a, b string) bool {
	return len(a) < len(b) || len(a) == len(b) && a < b
}

// change makes five changes: two objects are created, one is updated twice, one is deleted.
func (t *task) change(ctx context.Context, of schema.GroupVersionResource) error {
	if err := t.create(ctx, of, "a", "b"); err != nil {
		return err
	}
	for _, value := range []string{"2", "3"} {
		if _, err := t.resource(of).Update(ctx, object(of, "a", value), metav1.UpdateOptions{}); err != nil {
			return err
		}
	}
	return t.resource(of).Delete(ctx, "b", metav1.DeleteOptions{})
}

const changes = 5

func (t *task) version(ctx context.Context, of schema.GroupVersionResource) (string, error) {
	list, err := t.resource(of).List(ctx, metav1.ListOptions{})
	if err != nil {
		return "", err
	}
	return list.GetResourceVersion(), nil
}

func watchChanges(ctx context.Context, t *task, of schema.GroupVersionResource) error {
	version, err := t.version(ctx, of)
	if err != nil {
		return err
	}
	watcher, err := t.resource(of).Watch(ctx, metav1.ListOptions{ResourceVersion: version})
	if err != nil {
		return err
	}
	defer watcher.Stop()
	selected, err := t.resource(of).Watch(ctx, metav1.ListOptions{
		ResourceVersion: version, FieldSelector: "metadata.name=b",
	})
	if err != nil {
		return err
	}
	defer selected.Stop()
	if err := t.change(ctx, of); err != nil {
		return err
	}
	said, _, err := take(ctx, watcher, changes)
	if err != nil {
		return err
	}
	t.observe("all: %s", strings.Join(said, ", "))
	if said, _, err = take(ctx, selected, 2); err != nil {
		return err
	}
	t.observe("of one name: %s", strings.Join(said, ", "))
	return nil
}

// watchResume begins watches at each version that an earlier watch saw.
func watchResume(ctx context.Context, t *task, of schema.GroupVersionResource) error {
	version, err := t.version(ctx, of)
	if err != nil {
		return err
	}
	if err := t.change(ctx, of); err != nil {
		return err
	}
	versions := []string{version}
	for from := 0; from < changes; from++ {
		watcher, err := t.resource(of).Watch(ctx, metav1.ListOptions{ResourceVersion: versions[from]})
		if err != nil {
			return err
		}
		said, seen, err := take(ctx, watcher, changes-from)
		watcher.Stop()
		if err != nil {
			return err
		}
		if from == 0 {
			versions = append(versions, seen...)
		}
		t.observe("after %d changes: %s", from, strings.Join(said, ", "))
	}
	return nil
}

// bookmarks waits for the bookmark after the objects of the beginning, and for one of a watch without them.
func bookmarks(ctx context.Context, t *task, of schema.GroupVersionResource) error {
	if err := t.create(ctx, of, "a", "b"); err != nil {
		return err
	}
	if _, err := t.resource(of).Update(ctx, object(of, "a", "2"), metav1.UpdateOptions{}); err != nil {
		return err
	}
	version, err := t.version(ctx, of)
	if err != nil {
		return err
	}
	yes, seconds := true, int64(10)
	all := []metav1.ListOptions{{
		SendInitialEvents: &yes, ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan, AllowWatchBookmarks: true,
	}}
	if of == cached {
		// The cache sends a bookmark two seconds before the watch ends.
		all = append(all, metav1.ListOptions{ResourceVersion: version, AllowWatchBookmarks: true, TimeoutSeconds: &seconds})
	}
	for _, options := range all {
		watcher, err := t.resource(of).Watch(ctx, options)
		if err != nil {
			return err
		}
		defer watcher.Stop()
		for {
			event, err := next(ctx, watcher)
			if err != nil {
				return err
			}
			object, err := meta.Accessor(event.Object)
			if err != nil {
				return err
			}
			if event.Type != watch.Bookmark {
				t.observe("%s %s", event.Type, object.GetName())
				continue
			}
			t.observe("%s, annotations %v", event.Type, object.GetAnnotations())
			if isBefore(object.GetResourceVersion(), version) {
				return fmt.Errorf("a bookmark of %s after a list of %s", object.GetResourceVersion(), version)
			}
			break
		}
	}
	return nil
}

// expired waits until the apiserver has compacted a version, and asks for that version.
func expired(ctx context.Context, t *task, of schema.GroupVersionResource) error {
	if err := t.create(ctx, of, numbered("e", 7)...); err != nil {
		return err
	}
	first, err := t.resource(of).List(ctx, metav1.ListOptions{Limit: 3})
	if err != nil {
		return err
	}
	if err := t.change(ctx, of); err != nil {
		return err
	}
	version := first.GetResourceVersion()
	if err := t.compacted(ctx, version); err != nil {
		return err
	}
	exact := metav1.ListOptions{ResourceVersion: version, ResourceVersionMatch: metav1.ResourceVersionMatchExact}
	// The apiserver knows of a compaction a moment after the store.
	if err := until(ctx, func() (bool, error) {
		_, err = t.resource(of).List(ctx, exact)
		return err != nil, nil
	}); err != nil {
		return err
	}
	t.observe("list: %s", refused(err))
	if !apierrors.IsResourceExpired(err) {
		return fmt.Errorf("a list of a compacted version: %w", err)
	}
	_, err = t.resource(of).List(ctx, metav1.ListOptions{Limit: 3, Continue: first.GetContinue()})
	t.observe("page: %s", refused(err))
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return fmt.Errorf("a page of a compacted version: %w", err)
	}
	rest, err := t.resource(of).List(ctx, metav1.ListOptions{Continue: status.Status().Continue})
	if err != nil {
		return err
	}
	t.observe("the rest, of the newest version: %s", namesOf(rest))
	return t.expiredWatch(ctx, of, version)
}

// expiredWatch begins a watch at a compacted version. The apiserver's cache may go back further than the
// store.
func (t *task) expiredWatch(ctx context.Context, of schema.GroupVersionResource, version string) error {
	watcher, err := t.resource(of).Watch(ctx, metav1.ListOptions{ResourceVersion: version})
	if err == nil {
		defer watcher.Stop()
		_, err = next(ctx, watcher)
	}
	if of == uncached && !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) {
		return fmt.Errorf("a watch at a compacted version: %w", err)
	}
	if of == uncached {
		t.observe("watch: %s", refused(err))
	}
	return nil
}

// compacted waits until the store has compacted the version.
func (t *task) compacted(ctx context.Context, version string) error {
	var revision int64
	if _, err := fmt.Sscan(version, &revision); err != nil {
		return err
	}
	return until(ctx, func() (bool, error) {
		_, err := t.Store.Get(ctx, "compact_rev_key", clientv3.WithRev(revision))
		if errors.Is(err, rpctypes.ErrCompacted) {
			return true, nil
		}
		return false, err
	})
}

// named is the name and the version of the object of an event.
func named(event watch.Event) (name, version string, err error) {
	object, err := meta.Accessor(event.Object)
	if err != nil {
		return "", "", err
	}
	return object.GetName(), object.GetResourceVersion(), nil
}
