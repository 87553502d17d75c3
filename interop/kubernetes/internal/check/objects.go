package check

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func configMap(name string, data map[string]string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: data}
}

func createGetDelete(ctx context.Context, t *task) error {
	maps := t.Client.CoreV1().ConfigMaps(t.namespace)
	created, err := maps.Create(ctx, configMap("a", map[string]string{"k": "v"}), metav1.CreateOptions{})
	if err != nil {
		return err
	}
	_, err = maps.Create(ctx, configMap("a", nil), metav1.CreateOptions{})
	t.observe("created twice: %s", refused(err))
	read, err := maps.Get(ctx, "a", metav1.GetOptions{})
	if err != nil {
		return err
	}
	if read.UID != created.UID || read.ResourceVersion != created.ResourceVersion || read.Data["k"] != "v" {
		return fmt.Errorf("created %v, read %v", created, read)
	}
	wrong := types.UID("other")
	err = maps.Delete(ctx, "a", metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &wrong}})
	t.observe("deleted under another UID: %s", strings.ReplaceAll(refused(err), string(created.UID), "UID"))
	if err := maps.Delete(ctx, "a", metav1.DeleteOptions{}); err != nil {
		return err
	}
	_, err = maps.Get(ctx, "a", metav1.GetOptions{})
	t.observe("read after the delete: %s", refused(err))
	t.observe("deleted twice: %s", refused(maps.Delete(ctx, "a", metav1.DeleteOptions{})))
	return nil
}

// conflicts lets many writers count in one object: each adds one to what it read.
func conflicts(ctx context.Context, t *task) error {
	const writers, rounds = 4, 15
	maps := t.Client.CoreV1().ConfigMaps(t.namespace)
	first, err := maps.Create(ctx, configMap("counter", map[string]string{"n": "0"}), metav1.CreateOptions{})
	if err != nil {
		return err
	}
	second := first.DeepCopy()
	second.Data["n"] = "1"
	if _, err := maps.Update(ctx, second, metav1.UpdateOptions{}); err != nil {
		return err
	}
	_, err = maps.Update(ctx, second, metav1.UpdateOptions{})
	t.observe("an old version: %s", refused(err))
	var group sync.WaitGroup
	errs := make([]error, writers)
	for i := range writers {
		group.Go(func() {
			for range rounds {
				errs[i] = errors.Join(errs[i], increment(ctx, t))
			}
		})
	}
	group.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	last, err := maps.Get(ctx, "counter", metav1.GetOptions{})
	if err != nil {
		return err
	}
	t.observe("counted to %s", last.Data["n"])
	if want := strconv.Itoa(1 + writers*rounds); last.Data["n"] != want {
		return fmt.Errorf("counted to %s, want %s", last.Data["n"], want)
	}
	return nil
}

// increment adds one to the counter, and begins again whenever another writer was faster.
func increment(ctx context.Context, t *task) error {
	maps := t.Client.CoreV1().ConfigMaps(t.namespace)
	for {
		read, err := maps.Get(ctx, "counter", metav1.GetOptions{})
		if err != nil {
			return err
		}
		n, err := strconv.Atoi(read.Data["n"])
		if err != nil {
			return err
		}
		read.Data["n"] = strconv.Itoa(n + 1)
		if _, err = maps.Update(ctx, read, metav1.UpdateOptions{}); !apierrors.IsConflict(err) {
			return err
		}
	}
}

func patches(ctx context.Context, t *task) error {
	maps := t.Client.CoreV1().ConfigMaps(t.namespace)
	if _, err := maps.Create(ctx, configMap("p", map[string]string{"a": "1"}), metav1.CreateOptions{}); err != nil {
		return err
	}
	apply := func(value string) string {
		return `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"p"},"data":{"applied":"` + value + `"}}`
	}
	for _, one := range []struct {
		kind    types.PatchType
		body    string
		manager string
	}{
		{types.JSONPatchType, `[{"op":"add","path":"/data/b","value":"2"}]`, "one"},
		{types.JSONPatchType, `[{"op":"test","path":"/data/b","value":"3"}]`, "one"},
		{types.MergePatchType, `{"data":{"a":null,"c":"3"}}`, "one"},
		{types.StrategicMergePatchType, `{"metadata":{"labels":{"l":"v"}}}`, "one"},
		{types.MergePatchType, `{"metadata":{"resourceVersion":"1"}}`, "one"},
		{types.ApplyPatchType, apply("x"), "one"},
		{types.ApplyPatchType, apply("y"), "two"},
	} {
		patched, err := maps.Patch(ctx, "p", one.kind, []byte(one.body), metav1.PatchOptions{FieldManager: one.manager})
		if err != nil {
			t.observe("%s %s: %s", one.kind, one.body, refused(err))
			continue
		}
		t.observe("%s %s: data %v, labels %v", one.kind, one.body, patched.Data, patched.Labels)
	}
	return nil
}

func deleteCollection(ctx context.Context, t *task) error {
	const count = 120
	maps := t.Client.CoreV1().ConfigMaps(t.namespace)
	for i := range count {
		object := configMap(fmt.Sprintf("m-%03d", i), nil)
		object.Labels = map[string]string{"third": strconv.Itoa(i % 3)}
		if _, err := maps.Create(ctx, object, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	for _, selector := range []string{"third=1", ""} {
		if err := maps.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: selector}); err != nil {
			return err
		}
		left, err := maps.List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		t.observe("after the delete of %q: %d", selector, len(left.Items))
	}
	return nil
}

// tooLarge makes an object that the apiserver takes and the store does not.
func tooLarge(ctx context.Context, t *task) error {
	pods := t.Client.CoreV1().Pods(t.namespace)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "large"},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{
			Name: "c", Image: "i", Args: []string{strings.Repeat("x", 1_600_000)},
		}}},
	}
	_, err := pods.Create(ctx, pod, metav1.CreateOptions{})
	t.observe("1.6 MB: %s", refused(err))
	pod.Spec.Containers[0].Args[0] = pod.Spec.Containers[0].Args[0][:1_400_000]
	_, err = pods.Create(ctx, pod, metav1.CreateOptions{})
	t.observe("1.4 MB: %s", refused(err))
	return nil
}
