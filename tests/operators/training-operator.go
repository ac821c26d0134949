// training-operator is Kubeflow's of that name, controllers and webhooks, without its own certificates: its main writes
// them to one folder for all of a machine, and waits for a kubelet to mount them.
package main

import (
	"flag"
	"net/http"

	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/webhook"

	kubeflow "github.com/kubeflow/training-operator/pkg/apis/kubeflow.org/v1"
	"github.com/kubeflow/training-operator/pkg/config"
	controllers "github.com/kubeflow/training-operator/pkg/controller.v1"
	"github.com/kubeflow/training-operator/pkg/controller.v1/common"
	"github.com/kubeflow/training-operator/pkg/webhooks"
)

func main() {
	probe := flag.String("health-probe-bind-address", "", "where it answers whether it is ready")
	port := flag.Int("webhook-server-port", 0, "of its webhooks")
	certificates := flag.String("webhook-cert-dir", "", "with tls.crt and tls.key")
	flag.Parse()
	ctrl.SetLogger(zap.New())
	config.Config.PyTorchInitContainerImage = config.PyTorchInitContainerImageDefault
	config.Config.PyTorchInitContainerTemplateFile = config.PyTorchInitContainerTemplateFileDefault
	config.Config.PyTorchInitContainerMaxTries = config.PyTorchInitContainerMaxTriesDefault
	config.Config.MPIKubectlDeliveryImage = config.MPIKubectlDeliveryImageDefault

	scheme := runtime.NewScheme()
	must(clientgoscheme.AddToScheme(scheme))
	must(kubeflow.AddToScheme(scheme))
	manager, err := ctrl.NewManager(ctrl.GetConfigOrDie(), ctrl.Options{
		Scheme:                 scheme,
		Metrics:                metricsserver.Options{BindAddress: "0"},
		HealthProbeBindAddress: *probe,
		WebhookServer:          webhook.NewServer(webhook.Options{Port: *port, CertDir: *certificates}),
	})
	must(err)
	for kind, add := range controllers.SupportedSchemeReconciler {
		must(add(manager, common.GenNonGangSchedulerSetupFunc(), 1))
		must(webhooks.SupportedSchemeWebhook[kind](manager))
	}
	must(manager.AddReadyzCheck("readyz", func(request *http.Request) error {
		return manager.GetWebhookServer().StartedChecker()(request)
	}))
	must(manager.Start(ctrl.SetupSignalHandler()))
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}
