#!/usr/bin/env bash
# KubeRay resumes a suspended RayCluster only for `suspend: false`; without the field, it stays suspended for ever.
#
# spec.suspend is optional, and a new cluster without it runs. So tools that restore an object, or apply a manifest that
# never had the field, remove it. The condition RayClusterSuspended then stays True, and no pod is created again: the
# status is cleared only if `Suspend != nil && !*Suspend`. The same on a real API server, with the operator of this version.
#
# Version: github.com/ray-project/kuberay/ray-operator v1.6.0. Needs go (it fetches Go 1.25 if older); takes minutes.
# Output seen, of a cluster that was suspended:
#   suspend absent: RayClusterSuspended True, 0 pods created
#   suspend false: RayClusterSuspended False, 1 pods created
set -euo pipefail
work=$(mktemp -d)
trap 'chmod -R u+w "$work"; rm -rf "$work"' EXIT
cd "$work"

at=$(go mod download -json github.com/ray-project/kuberay/ray-operator@v1.6.0 | sed -n 's/.*"Dir": "\(.*\)".*/\1/p')
cp -r "$at" operator
chmod -R u+w operator
cd operator
rm controllers/ray/*_test.go
cat >controllers/ray/resume_test.go <<'GO'
package ray

import (
	"context"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	rayv1 "github.com/ray-project/kuberay/ray-operator/apis/ray/v1"
	"github.com/ray-project/kuberay/ray-operator/controllers/ray/common"
	"github.com/ray-project/kuberay/ray-operator/controllers/ray/expectations"
)

func TestResume(t *testing.T) {
	ctx, scheme := context.Background(), runtime.NewScheme()
	must(t, rayv1.AddToScheme(scheme), corev1.AddToScheme(scheme))
	for name, suspend := range map[string]*bool{"absent": nil, "false": ptr.To(false)} {
		container := corev1.Container{Name: "head", Image: "rayproject/ray:2.46.0"}
		template := corev1.PodTemplateSpec{Spec: corev1.PodSpec{Containers: []corev1.Container{container}}}
		head := rayv1.HeadGroupSpec{RayStartParams: map[string]string{}, Template: template}
		cluster := &rayv1.RayCluster{
			ObjectMeta: metav1.ObjectMeta{Name: "ray", Namespace: "team", UID: "u"},
			Spec:       rayv1.RayClusterSpec{Suspend: suspend, HeadGroupSpec: head},
		}
		suspended := string(rayv1.RayClusterSuspended)
		condition := metav1.Condition{Type: suspended, Reason: suspended, Status: metav1.ConditionTrue}
		meta.SetStatusCondition(&cluster.Status.Conditions, condition)
		service, err := common.BuildServiceForHeadPod(ctx, *cluster, nil, nil)
		must(t, err)
		client := fake.NewClientBuilder().WithScheme(scheme).WithRuntimeObjects(service).Build()
		r := &RayClusterReconciler{
			Client:                     client,
			Scheme:                     scheme,
			Recorder:                   &record.FakeRecorder{},
			rayClusterScaleExpectation: expectations.NewRayClusterScaleExpectation(client),
		}
		after, err := r.calculateStatus(ctx, cluster, nil)
		must(t, err, r.reconcilePods(ctx, after))
		pods := &corev1.PodList{}
		must(t, client.List(ctx, pods))
		status := meta.FindStatusCondition(after.Status.Conditions, suspended).Status
		fmt.Printf("suspend %s: RayClusterSuspended %s, %d pods created\n", name, status, len(pods.Items))
	}
}

func must(t *testing.T, errs ...error) {
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
}
GO
go test -count=1 -run '^TestResume$' -v ./controllers/ray >log || { cat log; exit 1; }
grep '^suspend ' log | sort >../seen

diff - ../seen <<'EXPECTED'
suspend absent: RayClusterSuspended True, 0 pods created
suspend false: RayClusterSuspended False, 1 pods created
EXPECTED
echo "as described"
