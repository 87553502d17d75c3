package check

import (
	"context"
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
)

// both are the resources with which a check is made for the store and for the cache.
var both = []schema.GroupVersionResource{uncached, cached}

func (t *task) resource(of schema.GroupVersionResource) dynamic.ResourceInterface {
	return t.Dynamic.Resource(of).Namespace(t.namespace)
}

// object is a ConfigMap or a Secret: both have string values under a name.
func object(of schema.GroupVersionResource, name, value string) *unstructured.Unstructured {
	kind, field := "ConfigMap", "data"
	if of == cached {
		kind, field = "Secret", "stringData"
	}
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": kind, "metadata": map[string]any{"name": name},
		field: map[string]any{"value": value},
	}}
}

func (t *task) create(ctx context.Context, of schema.GroupVersionResource, names ...string) error {
	for _, name := range names {
		if _, err := t.resource(of).Create(ctx, object(of, name, "1"), metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("create %s: %w", name, err)
		}
	}
	return nil
}

// numbered are the names prefix-000 up to, and without, prefix-count.
func numbered(prefix string, count int) []string {
	var names []string
	for i := range count {
		names = append(names, fmt.Sprintf("%s-%03d", prefix, i))
	}
	return names
}

func namesOf(list *unstructured.UnstructuredList) string {
	var names []string
	for _, item := range list.Items {
		names = append(names, item.GetName())
	}
	return strings.Join(names, " ")
}

// pages reads a list in pages while it changes. Every page is of the version of the first one.
func pages(ctx context.Context, t *task, of schema.GroupVersionResource) error {
	const count = 33
	if err := t.create(ctx, of, numbered("p", count)...); err != nil {
		return err
	}
	options := metav1.ListOptions{Limit: 10}
	var first string
	for page := 1; ; page++ {
		list, err := t.resource(of).List(ctx, options)
		if err != nil {
			return err
		}
		remaining := "none"
		if left := list.GetRemainingItemCount(); left != nil {
			remaining = fmt.Sprint(*left)
		}
		t.observe("page %d: %s; remaining %s", page, namesOf(list), remaining)
		if page == 1 {
			first = list.GetResourceVersion()
			if err := t.create(ctx, of, "p-005-new", "p-025-new"); err != nil {
				return err
			}
			if err := t.resource(of).Delete(ctx, "p-020", metav1.DeleteOptions{}); err != nil {
				return err
			}
		}
		if list.GetResourceVersion() != first {
			return fmt.Errorf("page %d has version %s, the first one %s", page, list.GetResourceVersion(), first)
		}
		if options.Continue = list.GetContinue(); options.Continue == "" {
			break
		}
	}
	for _, one := range []metav1.ListOptions{
		{},
		{ResourceVersion: first, ResourceVersionMatch: metav1.ResourceVersionMatchExact},
		{ResourceVersion: first, ResourceVersionMatch: metav1.ResourceVersionMatchExact, Limit: 5},
		{ResourceVersion: first, ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan},
		{FieldSelector: "metadata.name=p-025-new"},
	} {
		list, err := t.resource(of).List(ctx, one)
		if err != nil {
			return fmt.Errorf("list with %+v: %w", one, err)
		}
		one.ResourceVersion = ""
		t.observe("match %q, limit %d, fields %q: %s", one.ResourceVersionMatch, one.Limit, one.FieldSelector, namesOf(list))
	}
	if of == uncached {
		return t.futureVersion(ctx, of)
	}
	return nil // the cache waits for the version, and the client asks ten times
}

// futureVersion asks for a version that does not exist yet.
func (t *task) futureVersion(ctx context.Context, of schema.GroupVersionResource) error {
	_, err := t.resource(of).List(ctx, metav1.ListOptions{
		ResourceVersion: "1000000000", ResourceVersionMatch: metav1.ResourceVersionMatchExact,
	})
	if err == nil {
		return fmt.Errorf("a version of the future was listed")
	}
	// The text has the version of the moment.
	t.observe("a version of the future: %s", strings.SplitN(refused(err), ", current", 2)[0])
	return nil
}
