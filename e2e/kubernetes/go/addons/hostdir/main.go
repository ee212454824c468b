// hostdir KUBECONFIG DIR: dynamic provisioner for a one-node cluster; a volume is a directory below DIR.
package main

import (
	"context"
	"log"
	"os"
	"path/filepath"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	"sigs.k8s.io/sig-storage-lib-external-provisioner/v10/controller"
)

type dirs string

func (d dirs) Provision(_ context.Context, o controller.ProvisionOptions) (*v1.PersistentVolume, controller.ProvisioningState, error) {
	p := filepath.Join(string(d), strings.Join([]string{o.PVC.Namespace, o.PVC.Name, o.PVName}, "_"))
	if err := os.Mkdir(p, 0o777); err != nil && !os.IsExist(err) {
		return nil, controller.ProvisioningFinished, err
	}
	os.Chmod(p, 0o777)
	t := v1.HostPathDirectory
	return &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: o.PVName}, Spec: v1.PersistentVolumeSpec{
		AccessModes: o.PVC.Spec.AccessModes, PersistentVolumeReclaimPolicy: *o.StorageClass.ReclaimPolicy,
		Capacity:               v1.ResourceList{v1.ResourceStorage: o.PVC.Spec.Resources.Requests[v1.ResourceStorage]},
		PersistentVolumeSource: v1.PersistentVolumeSource{HostPath: &v1.HostPathVolumeSource{Path: p, Type: &t}},
	}}, controller.ProvisioningFinished, nil
}

func (d dirs) Delete(_ context.Context, pv *v1.PersistentVolume) error {
	if filepath.Dir(pv.Spec.HostPath.Path) != string(d) {
		return &controller.IgnoredError{Reason: "not ours"}
	}
	return os.RemoveAll(pv.Spec.HostPath.Path)
}

func main() {
	cfg, err := clientcmd.BuildConfigFromFlags("", os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	controller.NewProvisionController(klog.FromContext(ctx), kubernetes.NewForConfigOrDie(cfg), "ballast.dev/hostdir", dirs(filepath.Clean(os.Args[2])),
		controller.LeaderElection(false), controller.Threadiness(8)).Run(ctx)
}
