package check

import (
	"context"
	"fmt"

	clientv3 "go.etcd.io/etcd/client/v3"
	extensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

const customGroup = "interop.example.com"

var widgets = schema.GroupVersionResource{Group: customGroup, Version: "v1", Resource: "widgets"}

func widget(name string, size int64) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": customGroup + "/v1", "kind": "Widget", "metadata": map[string]any{"name": name},
		"spec": map[string]any{"size": size},
	}}
}

func widgetDefinition() *extensions.CustomResourceDefinition {
	smallest := 1.0
	object := func(fields map[string]extensions.JSONSchemaProps) extensions.JSONSchemaProps {
		return extensions.JSONSchemaProps{Type: "object", Properties: fields}
	}
	schema := object(map[string]extensions.JSONSchemaProps{
		"spec":   object(map[string]extensions.JSONSchemaProps{"size": {Type: "integer", Minimum: &smallest}}),
		"status": object(map[string]extensions.JSONSchemaProps{"phase": {Type: "string"}}),
	})
	return &extensions.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: widgets.Resource + "." + customGroup},
		Spec: extensions.CustomResourceDefinitionSpec{
			Group: customGroup, Scope: extensions.NamespaceScoped,
			Names: extensions.CustomResourceDefinitionNames{
				Plural: widgets.Resource, Singular: "widget", Kind: "Widget", ListKind: "WidgetList",
			},
			Versions: []extensions.CustomResourceDefinitionVersion{{
				Name: "v1", Served: true, Storage: true,
				Schema:       &extensions.CustomResourceValidation{OpenAPIV3Schema: &schema},
				Subresources: &extensions.CustomResourceSubresources{Status: &extensions.CustomResourceSubresourceStatus{}},
			}},
		},
	}
}

// customResources defines a kind, uses it, and removes the definition, which removes the objects.
func customResources(ctx context.Context, t *task) error {
	definitions := t.Extensions.ApiextensionsV1().CustomResourceDefinitions()
	defined, err := definitions.Create(ctx, widgetDefinition(), metav1.CreateOptions{})
	if err != nil {
		return err
	}
	if err := until(ctx, func() (bool, error) {
		_, err := t.resource(widgets).List(ctx, metav1.ListOptions{})
		if apierrors.IsNotFound(err) {
			return false, nil
		}
		return true, err
	}); err != nil {
		return err
	}
	if err := t.useWidgets(ctx); err != nil {
		return err
	}
	if err := definitions.Delete(ctx, defined.Name, metav1.DeleteOptions{}); err != nil {
		return err
	}
	if err := until(ctx, func() (bool, error) {
		_, err := definitions.Get(ctx, defined.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return true, nil
		}
		return false, err
	}); err != nil {
		return err
	}
	left, err := t.Store.Get(ctx, "/registry/"+customGroup+"/", clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err != nil {
		return err
	}
	t.observe("keys left in the store: %d", left.Count)
	return nil
}

func (t *task) useWidgets(ctx context.Context) error {
	const count = 25
	objects := t.resource(widgets)
	empty, err := objects.List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	watcher, err := objects.Watch(ctx, metav1.ListOptions{ResourceVersion: empty.GetResourceVersion()})
	if err != nil {
		return err
	}
	defer watcher.Stop()
	for i, name := range numbered("w", count) {
		if _, err := objects.Create(ctx, widget(name, int64(i+1)), metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	_, err = objects.Create(ctx, widget("none", 0), metav1.CreateOptions{})
	t.observe("against the schema: %s", refused(err))
	read, err := objects.Get(ctx, "w-003", metav1.GetOptions{})
	if err != nil {
		return err
	}
	if err := unstructured.SetNestedField(read.Object, "Ready", "status", "phase"); err != nil {
		return err
	}
	updated, err := objects.UpdateStatus(ctx, read, metav1.UpdateOptions{})
	if err != nil {
		return err
	}
	t.observe("status %v, generation %d", updated.Object["status"], updated.GetGeneration())
	for range count + 1 {
		event, err := next(ctx, watcher)
		if err != nil {
			return err
		}
		object, isObject := event.Object.(*unstructured.Unstructured)
		if !isObject {
			return fmt.Errorf("an event has a %T", event.Object)
		}
		t.observe("%s %s", event.Type, object.GetName())
	}
	page, err := objects.List(ctx, metav1.ListOptions{Limit: 20})
	if err != nil {
		return err
	}
	t.observe("a page of %d", len(page.Items))
	rest, err := objects.List(ctx, metav1.ListOptions{Limit: 20, Continue: page.GetContinue()})
	if err != nil {
		return err
	}
	t.observe("the rest of %d", len(rest.Items))
	return nil
}
