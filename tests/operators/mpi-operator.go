// mpi-operator is Kubeflow's controller of MPIJobs v2beta1, without its main's lease, and without its one health port for
// all of a machine.
package main

import (
	"context"
	"flag"
	"net/http"
	"time"

	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/kubeflow/mpi-operator/cmd/mpi-operator/app/options"
	mpijobs "github.com/kubeflow/mpi-operator/pkg/client/clientset/versioned"
	kubeflow "github.com/kubeflow/mpi-operator/pkg/client/clientset/versioned/scheme"
	mpiinformers "github.com/kubeflow/mpi-operator/pkg/client/informers/externalversions"
	"github.com/kubeflow/mpi-operator/pkg/controller"
)

func main() {
	kubeconfig := flag.String("kubeconfig", "", "of an administrator")
	probe := flag.String("health-probe-bind-address", "", "where it answers that it runs")
	flag.Parse()
	config, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	must(err)
	config.QPS, config.Burst = 100, 200
	must(kubeflow.AddToScheme(scheme.Scheme))
	client, jobs := kubernetes.NewForConfigOrDie(config), mpijobs.NewForConfigOrDie(config)
	core, own := informers.NewSharedInformerFactory(client, 0), mpiinformers.NewSharedInformerFactory(jobs, 0)
	ctx := context.Background()
	operator, err := controller.NewMPIJobController(
		ctx, client, jobs, nil, nil,
		core.Core().V1().ConfigMaps(), core.Core().V1().Secrets(), core.Core().V1().Services(),
		core.Batch().V1().Jobs(), core.Core().V1().Pods(), core.Scheduling().V1().PriorityClasses(),
		own.Kubeflow().V2beta1().MPIJobs(),
		&options.ServerOption{ControllerRateLimit: 10, ControllerBurst: 100},
	)
	must(err)
	core.Start(ctx.Done())
	own.Start(ctx.Done())
	http.HandleFunc("/readyz", func(http.ResponseWriter, *http.Request) {})
	server := &http.Server{Addr: *probe, ReadHeaderTimeout: time.Second}
	go func() { must(server.ListenAndServe()) }()
	must(operator.Run(2, ctx.Done()))
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}
